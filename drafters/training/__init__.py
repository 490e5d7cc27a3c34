"""How the built-in drafters are trained: one module per drafter, reached through `agentbench_spec.trainers`."""
