"""Live runs: the target's own calls are carried out, and every drafter decodes each turn of that one trajectory."""
