"""Environment `synthetic_agent`: requests on a generated code base, settings and sales table, all in memory.

The world and its tools are those of the workload `synthetic_agent`; here the model calls them. A request follows when
it stops calling. Each is judged by where the world ends: a function renamed, a sum noted, a limit raised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.rollout import ConfigError
from agentbench_spec.rollouts.environments import Message, ToolCall, results

from .guarded_sql import MOST_ROWS, GuardedDatabase
from .synthetic.scripted_agent import SYSTEM
from .synthetic.words import REGIONS, identifier
from .synthetic.world import TOOLS, World, line

__all__ = ["SyntheticTask", "SyntheticTasks", "make"]

MOST_CHARACTERS = 1_000_000
"""Of all files together."""


def make(*, sessions: int = 10, requests: int = 3, files: int = 8, lines: int = 40, rows: int = 120) -> SyntheticTasks:
    """Generated tasks.

    sessions: how many; requests: user turns of each; files, lines: size of the code base; rows: of the sales table.
    Raises ConfigError if an option is out of range.
    """
    given = {"sessions": sessions, "requests": requests, "files": files, "lines": lines, "rows": rows}
    for name, value in given.items():
        if not 1 <= value <= 10_000:
            raise ConfigError(f"{name}: expected 1 to 10,000, found {value}")
    if requests > 3 * files:
        raise ConfigError(f"requests: every third one renames the function of a file, and there are {files} files")
    return SyntheticTasks(sessions, requests, files, lines, rows)


@dataclass(frozen=True, slots=True)
class SyntheticTasks:
    """Tasks of one size."""

    sessions: int
    requests: int
    files: int
    lines: int
    rows: int
    name: str = "synthetic_agent"

    def environments(self, *, limit: int | None = None, seed: int = 0) -> Iterator[SyntheticTask]:
        """The tasks; a smaller limit gives the first ones of a larger."""
        count = self.sessions if limit is None else min(limit, self.sessions)
        return (SyntheticTask(f"synthetic-live-{seed}-{number:04d}", self, seed) for number in range(count))


class LiveWorld(World):
    """The world with its SQL guarded and the size of its files bounded."""

    def __init__(self, draw: random.Random, *, files: int, lines: int, rows: int) -> None:
        super().__init__(draw, files=files, lines=lines, rows=rows)
        self._sql.commit()
        self._guarded = GuardedDatabase(self._sql)
        self._guarded.guard()

    def total(self, region: str) -> int:
        """Units sold in a region."""
        rows = self._guarded.run(f"SELECT SUM(units) FROM sales WHERE region = '{region}'")[1]
        return int(rows[0][0] or 0)

    def sales(self) -> list[list[Any]] | None:
        """The table, in order; None if it was dropped."""
        return self._guarded.rows_of("sales")

    def query(self, sql: str) -> str:
        columns, rows, changed = self._guarded.run(sql)
        if not columns:
            return f"{changed} rows changed"
        more = ["... more rows"] if len(rows) > MOST_ROWS else []
        return "\n".join([*map(line, [columns, *rows[:MOST_ROWS]]), *more])

    def replace_text(self, path: str, old: str, new: str) -> str:
        grown = sum(map(len, self.files.values())) + self.files[path].count(old) * (len(new) - len(old))
        if grown > MOST_CHARACTERS:
            return f"Error: the files would have {grown:,} characters, more than {MOST_CHARACTERS:,}"
        return super().replace_text(path, old, new)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user wants, and whether the world says that it is done."""

    text: str
    done: Callable[[LiveWorld], bool]


class SyntheticTask:
    """One generated session."""

    labels: Mapping[str, Any] = {"category": "synthetic"}

    def __init__(self, name: str, shape: SyntheticTasks, seed: int) -> None:
        self.id, self._shape = name, shape
        self.source: Mapping[str, Any] = {"name": "synthetic_agent", "seed": seed}
        self._world: LiveWorld | None = None

    def tools(self) -> Sequence[dict[str, Any]]:
        """The tools of the world."""
        return TOOLS

    def start(self) -> Sequence[Message]:
        """The system prompt and the first request."""
        if self._world is not None:
            self._world.close()
        draw, shape = random.Random(f"live:{self.id}"), self._shape
        self._world = world = LiveWorld(draw, files=shape.files, lines=shape.lines, rows=shape.rows)
        kinds = (_rename, _report, _raise)
        self._requests = [kinds[number % 3](draw, world, number) for number in range(shape.requests)]
        self._turn = 0
        return [Message(role="system", content=SYSTEM), Message(role="user", content=self._requests[0].text)]

    def step(self, said: Message) -> Sequence[Message] | None:
        """Results of the calls; without a call, the next request."""
        if said.tool_calls:
            return results(said, self._run)
        self._turn += 1
        if self._turn >= len(self._requests):
            return None
        return [Message(role="user", content=self._requests[self._turn].text)]

    def state(self) -> Any:
        """Files, settings and table."""
        world = self._open()
        return {"files": world.files, "keys": world.keys, "sales": world.sales()}

    def score(self) -> Mapping[str, Any]:
        """solved: all requests are done; done: how many."""
        done = sum(request.done(self._open()) for request in self._requests)
        return {"solved": done == len(self._requests), "done": done}

    def _run(self, call: ToolCall) -> str:
        return self._open().run(call.name, call.arguments)

    def _open(self) -> LiveWorld:
        if self._world is None:
            raise RuntimeError("start() comes first")
        return self._world


def _rename(draw: random.Random, world: LiveWorld, number: int) -> Request:
    place = (number // 3) % len(world.functions)
    old, new = world.functions[place], identifier(draw)
    world.functions[place] = new
    before = sum(text.count(old) for text in world.files.values())

    def done(now: LiveWorld) -> bool:
        texts = now.files.values()
        return not any(old in text for text in texts) and sum(text.count(new) for text in texts) >= before

    return Request(f"Rename the function {old} to {new}, wherever it stands.", done)


def _report(draw: random.Random, world: LiveWorld, number: int) -> Request:
    region = draw.choice(REGIONS)
    units = world.total(region)
    text = f"How many units were sold in the region {region}? Note the number under the key reports.{region}."
    return Request(text, lambda now: now.keys.get(f"reports.{region}") == str(units))


def _raise(draw: random.Random, world: LiveWorld, number: int) -> Request:
    region = REGIONS[number % len(REGIONS)]
    wanted = int(world.keys[f"limits.{region}"]) + 5 * (number + 1)

    def done(now: LiveWorld) -> bool:
        value = str(now.keys.get(f"limits.{region}"))
        return value.isdecimal() and len(value) < 10 and int(value) >= wanted  # a later request raises it further

    return Request(f"Set the key limits.{region} to {wanted}.", done)
