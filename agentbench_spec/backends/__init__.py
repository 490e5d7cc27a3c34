"""Decoders that are not ours: serving engines, driven over HTTP as a client sees them."""
