"""`python -m agentbench_spec`: the command line, where its script is not on the path."""

from agentbench_spec.cli import start

if __name__ == "__main__":
    start()
