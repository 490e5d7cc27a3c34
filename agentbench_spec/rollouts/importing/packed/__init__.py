"""Bytes before they are rows: standard input, pipes, compression, archives, and what a file looks like."""
