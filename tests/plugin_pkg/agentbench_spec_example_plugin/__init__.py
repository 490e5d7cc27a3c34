"""A drafter and a workload that are not part of agentbench-spec."""
