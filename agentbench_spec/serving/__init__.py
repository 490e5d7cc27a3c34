"""The same rows from a server, driven over HTTP as a client sees it."""
