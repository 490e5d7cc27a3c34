"""Environment `bfcl_v3`: the model's own calls on the benchmark's simulated APIs, user turns as it stops calling.

The world is that of the workload `bfcl_v3`: the package's APIs, called by parsed arguments only, never its executor,
which evaluates text. A task is solved if the public state of all APIs at its end is the one that the gold calls leave.
The benchmark also compares after every user turn and looks for the gold results; here the end alone decides. As there,
a user turn with more than 20 steps ends the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from agentbench_spec.rollout import ConfigError
from agentbench_spec.rollouts.environments import Message, ToolCall, results

from .bfcl.apis import World
from .bfcl.build import BuildOptions, labels_of, source_of, turns_of, user_messages
from .bfcl.reader import Entry
from .bfcl.tools import ToolsForm, plan_tools
from .bfcl_v3 import CATEGORIES, BfclV3, shipped_ids
from .bfcl_v3 import make as make_rollouts

__all__ = ["BfclTask", "BfclTasks", "make"]

MOST_STEPS = 20
"""Assistant messages with calls in one user turn; the benchmark's own limit."""


def make(
    *,
    data: str | Path | None = None,
    subset: Literal["shipped"] | None = None,
    categories: str | Sequence[str] = CATEGORIES,
    ids: str | Sequence[str] | None = None,
    tools: ToolsForm | None = None,
    distractors: int | None = None,
    strict: bool | None = None,
) -> BfclTasks:
    """BFCL-v3 tasks; the options are those of the workload. subset "shipped": the rows of the sample.

    Raises ConfigError if the package bfcl-eval==2025.7.9 is absent, whose APIs are the world, or an option is unknown.
    """
    if subset is not None:
        if ids is not None:
            raise ConfigError("subset and ids exclude each other: name one")
        ids = shipped_ids()
        tools = tools or "involved"
    made = make_rollouts(data=data, categories=categories, ids=ids, tools=tools, distractors=distractors, strict=strict)
    if not isinstance(made, BfclV3):
        raise ConfigError(f"data: {data}: a file of rollouts has no world to act on; give a folder of BFCL rows")
    return BfclTasks(made)


class BfclTasks:
    """The rows of a BFCL-v3 workload as tasks."""

    name = "bfcl_v3"

    def __init__(self, rows: BfclV3) -> None:
        self._rows = rows

    def environments(self, *, limit: int | None = None, seed: int = 0) -> Iterator[BfclTask]:
        """The tasks, in the order of the workload's rollouts."""
        rows = self._rows
        source = rows.source, rows.options, rows.executor
        return islice(rows.each(seed, lambda entry: BfclTask(entry, *source)), limit)


class BfclTask:
    """One row: its APIs, its user turns, and its gold calls to compare with."""

    def __init__(self, entry: Entry, data: Any, options: BuildOptions, executor: str) -> None:
        self.id, self._entry = entry.id, entry
        self.labels: Mapping[str, Any] = labels_of(entry, options)
        self.source: Mapping[str, Any] = source_of(entry, data, executor)
        self._turns, _ = turns_of(entry, options.strict)
        called = [call.name for turn in self._turns for call in turn.calls]
        self._plan = plan_tools(entry, data, called, form=options.tools, distractors=options.distractors)
        self._world: World | None = None

    def tools(self) -> Sequence[dict[str, Any]]:
        """The functions offered from the start."""
        return self._plan.start

    def start(self) -> Sequence[Message]:
        """The first user turn."""
        self._world = World(self._entry)
        self._turn = self._steps = 0
        self._gave_up = False
        self._offered = {tool["function"]["name"] for tool in self._plan.start}
        return self._asked()

    def step(self, said: Message) -> Sequence[Message] | None:
        """Results of the calls; without a call, the next user turn."""
        if not said.tool_calls:
            self._turn, self._steps = self._turn + 1, 0
            return self._asked() if self._turn < len(self._turns) else None
        self._steps += 1
        if self._steps > MOST_STEPS:
            self._gave_up = True
            return None
        return results(said, self._run)

    def state(self) -> Any:
        """The public state of the APIs."""
        return self._open().state()

    def score(self) -> Mapping[str, Any]:
        """solved: every user turn was answered and the state is the gold one; user_turns: those answered."""
        done = self._turn >= len(self._turns) and not self._gave_up
        return {"solved": done and self.state() == self._gold_state(), "user_turns": self._turn}

    def _asked(self) -> list[Message]:
        tools = self._plan.from_turn.get(self._turn)
        if tools is not None:
            self._offered = {tool["function"]["name"] for tool in tools}
        return list(user_messages(self._entry, self._turn, self._turns[self._turn], tools))

    def _run(self, call: ToolCall) -> str:
        if call.name not in self._offered:
            return f"Error: there is no function {call.name[:80]!r}"
        return self._open().result(call.name, call.arguments)

    def _open(self) -> World:
        if self._world is None:
            raise RuntimeError("start() comes first")
        return self._world

    def _gold_state(self) -> Any:
        world = World(self._entry)
        for turn in self._turns:
            for call in turn.calls:
                world.result(call.name, world.arguments(call))
        return world.state()
