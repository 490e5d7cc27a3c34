"""Served live runs: each drafter's servers walk the tasks by their own calls."""
