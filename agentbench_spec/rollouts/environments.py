"""Public interface for live sessions: an environment carries out what the model calls, and says what came of it.

A **task** is one environment: it gives the first messages, answers every assistant message with what follows it, and
scores where the world ended. A **live workload** gives tasks; an entry point of the group
`agentbench_spec.environments` or "module:factory" names a callable `make(**options) -> LiveWorkload`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from agentbench_spec.rollout import ConfigError, Message, ToolCall

__all__ = ["ConfigError", "Environment", "LiveWorkload", "Message", "ToolCall", "results"]


class Environment(Protocol):
    """One task and its world. What it holds is made by `start`, so that a list of tasks costs little.

    Same task, same calls, same answers: a world that was lost is made again by its calls. A call that cannot be carried
    out is answered with words, as real tools do; an exception is a fault of the environment and costs the turn.
    """

    id: str
    """Unique among the tasks of its workload."""
    labels: Mapping[str, Any]
    """Anything worth grouping by; they become the labels of rows."""
    source: Mapping[str, Any]
    """Where it comes from: name, version, row, sha256 of the data."""

    def tools(self) -> Sequence[dict[str, Any]]:
        """JSON-schema function declarations in force from the start; a message's own `tools` replace them later."""
        ...

    def start(self) -> Sequence[Message]:
        """Make the world anew and return the messages before the first decode point."""
        ...

    def step(self, said: Message) -> Sequence[Message] | None:
        """What follows an assistant message: a result for each call, or the user's next words; None: the task is over.

        said: content and calls that could be read, of any names and arguments.
        """
        ...

    def state(self) -> Any:
        """The world as JSON values: two worlds are the same if their states are."""
        ...

    def score(self) -> Mapping[str, Any]:
        """What came of the task: `solved` (bool), and other figures as JSON values; `submission`: a diff handed in."""
        ...


class LiveWorkload(Protocol):
    """A named source of tasks."""

    name: str

    def environments(self, *, limit: int | None = None, seed: int = 0) -> Iterable[Environment]:
        """The tasks, at most `limit` of them; a smaller limit gives a subset of a larger one (same seed).

        Raises ConfigError naming the file, row and field if the data cannot be used.
        """
        ...


def results(said: Message, run: Callable[[ToolCall], str]) -> list[Message]:
    """One tool message for each call of `said`, in order; run: carries a call out and returns what the model reads."""
    return [
        Message(role="tool", content=run(call), tool_call_id=call.id or None, name=call.name)
        for call in said.tool_calls
    ]
