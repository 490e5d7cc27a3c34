"""Measure speculative decoding where it is used today: inside agents."""
