"""Generated sessions whose tools really run, and stand-ins built from them."""
