"""Session files of agents and harnesses, each a module: Claude Code, Codex, ATIF."""
