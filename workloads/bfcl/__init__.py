"""How BFCL-v3 multi-turn rows become rollouts: rows, tools, the simulated APIs, the builder."""
