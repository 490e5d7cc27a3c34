"""Networks and checkpoint loaders of the drafters; no loop logic."""
