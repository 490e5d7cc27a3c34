"""Passes of continuous batching: a row each, and the figures of the cells they make."""
