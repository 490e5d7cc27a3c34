"""Session files of agents and harnesses, each a module: SWE-agent, OpenHands, Claude Code, Codex, ATIF."""
