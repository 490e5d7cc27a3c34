"""One self-contained page from finished runs, and its plots."""
