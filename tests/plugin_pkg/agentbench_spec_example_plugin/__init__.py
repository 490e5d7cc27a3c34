"""A drafter, a workload and an environment that are not part of agentbench-spec."""
