"""Rows, and what follows from rows. Imports nothing of ours but errors and writing, and no torch."""
