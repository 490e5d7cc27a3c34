"""Public interface for workload authors: Rollout, Message, Workload.

A **rollout** is one recorded or simulated agent session. Each assistant message is a **decode point**: the target is
asked for it with everything before it as context, and the recorded message is the reference. One JSON object per
line is the interchange form (`read_rollouts`, `write_rollouts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from agentbench_spec.errors import ConfigError

__all__ = [
    "SCHEMA",
    "ConfigError",
    "Message",
    "Rollout",
    "ToolCall",
    "Workload",
]

SCHEMA = 1
"""Version of the rollout JSONL form; readers refuse newer ones."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(_Model):
    """One call an assistant message makes."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    raw_arguments: str | None = None
    """The arguments as recorded, kept where they were a string, for exact replay."""


class Message(_Model):
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    """Thinking recorded apart from the content."""
    tools: tuple[dict[str, Any], ...] | None = None
    """If not None: the tool list in force from this message on (it replaces the earlier one)."""
    synthetic: bool = False
    """True if the text is ours, not recorded; a synthetic assistant message is never a reference."""


class Rollout(_Model):
    """One agent session: an ordered list of messages over which the context only grows."""

    id: str = Field(min_length=1)
    workload: str
    source: dict[str, Any] = Field(default_factory=dict)
    """Where it comes from: name, version, row, sha256 of the data."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON-schema function declarations, {"type": "function", "function": {...}}, in force from the start."""
    messages: tuple[Message, ...] = Field(min_length=1)
    labels: dict[str, Any] = Field(default_factory=dict)
    """Anything worth grouping by: category, length bucket, task."""
    notes: tuple[str, ...] = ()
    """Every repair the builder or importer made, in words."""

    def decode_points(self) -> list[int]:
        """Indices of the assistant messages that follow at least one other message."""
        return [i for i, m in enumerate(self.messages) if m.role == "assistant" and i > 0]

    def tools_at(self, index: int) -> tuple[dict[str, Any], ...]:
        """The tool list in force when message `index` is asked for."""
        in_force = self.tools
        for message in self.messages[:index]:
            if message.tools is not None:
                in_force = message.tools
        return in_force


class Workload(Protocol):
    """A named source of rollouts; an entry point or "module:factory" names a callable `make(**options) -> Workload`."""

    name: str

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterable[Rollout]:
        """The rollouts, at most `limit` of them; a smaller limit gives a subset of a larger one (same seed).

        Raises ConfigError naming the file, row and field if the data cannot be used.
        """
        ...


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """Rollouts of a JSONL file, one at a time. Raises ConfigError naming file, line and field."""
    raise NotImplementedError


def write_rollouts(path: Path, rollouts: Iterable[Rollout]) -> int:
    """Write rollouts as JSONL, atomically; returns how many."""
    raise NotImplementedError
