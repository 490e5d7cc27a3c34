"""Where a live session ends that does not end by itself, and what a message of the model may ask for."""

from __future__ import annotations

from pydantic import Field

from agentbench_spec.config.strict_section import Section


class LiveConfig(Section):
    """Limits of a session with replay.history=live."""

    turns: int = Field(default=50, ge=1)
    """Turns of a session, where replay.max_turns names none."""
    tokens: int = Field(default=32_768, ge=1)
    """Tokens the target says in a session."""
    repeats: int = Field(default=5, ge=2)
    """Messages in a row with the same calls, or with none that can be read, after which a session is a loop."""
    calls: int = Field(default=16, ge=1)
    """Calls of one message."""
    argument_bytes: int = Field(default=65_536, ge=1)
    """Arguments of one message's calls, as JSON."""
    result_bytes: int = Field(default=65_536, ge=1)
    """One result; the rest is cut, and the model is told."""
    step_s: float = Field(default=10.0, gt=0)
    """Seconds in which an environment must answer."""
    memory_bytes: int = Field(default=2 << 30, ge=1 << 28)
    """What the process of the environments may hold."""
