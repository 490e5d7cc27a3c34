"""The command line: one file for each verb or small group of verbs; main.py says which there are."""

from agentbench_spec.cli.main import app

__all__ = ["app"]
