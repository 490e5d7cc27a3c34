"""The command line: verbs over the library."""

from agentbench_spec.cli.run import app

__all__ = ["app"]
