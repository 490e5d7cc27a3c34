"""What others take from the rows of runs: how many tokens to draft, and how many are accepted."""
