"""The tasks of AgentMemoryBench, each read or executed in its own module."""
