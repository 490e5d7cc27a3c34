"""Tool calls in what a target says: parsed by the family of its chat template, and judged by the tools it was given."""
