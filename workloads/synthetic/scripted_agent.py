"""A scripted agent at work in a World: it calls tools, reads what they return, and goes on from that.

Requests of a user follow each other; each takes a few calls and ends with a reply that states what was found. The
script is ours, so every text is marked as generated; results come from really running the call.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from agentbench_spec.rollout import ConfigError, Message, Rollout, ToolCall

from .words import REGIONS, identifier
from .world import TOOLS, World

__all__ = ["Shape", "build_session", "characters"]

SYSTEM = "You look after a small code base and a sales database. Use the tools; say what you found in one sentence."
_LINE_CHARACTERS = 58
"""About what a numbered program line has; a table row has less."""
_ROW_CHARACTERS = 36
_MIN_OBSERVATION = 60
_MAX_FILES = 200
_SHORT_TURN = 160
"""About what a turn adds besides a long result."""
_TURNS_PER_LONG_RESULT = 4
"""Three requests take twelve turns, three of which bring a long result."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a session."""

    turns: int | None = 20
    """Decode points; None: as many as the context takes."""
    observation_characters: int = 1200
    """Mean length of a long result; with both turns and context given, what the context asks for instead."""
    repetition: float = 0.2
    """Share of file reads that read a file again that was read before, 0..1."""
    context_characters: int | None = None
    """Characters of tools and messages that the session does not exceed."""

    def __post_init__(self) -> None:
        if self.turns is None and self.context_characters is None:
            raise ConfigError("turns: give turns, context_characters, or both; neither would never end")
        if self.turns is not None and self.turns < 1:
            raise ConfigError(f"turns: expected 1 or more, found {self.turns}")
        if self.observation_characters < _MIN_OBSERVATION:
            raise ConfigError(f"observation_characters: expected {_MIN_OBSERVATION} or more")
        if not 0 <= self.repetition <= 1:
            raise ConfigError(f"repetition: expected 0 to 1, found {self.repetition}")


def build_session(shape: Shape, *, name: str, workload: str, seed: int, source: dict[str, Any]) -> Rollout:
    """The session called `name`; the same arguments give the same bytes."""
    draw = random.Random(f"{seed}:{name}")
    agent = _Agent(draw, shape)
    try:
        agent.work()
    finally:
        agent.world.close()
    return Rollout(
        id=name,
        workload=workload,
        source={**source, "seed": seed},
        tools=TOOLS,
        messages=tuple(agent.messages),
        labels={"category": "synthetic", "synthetic": True, "repetition": shape.repetition},
        notes=("generated session: user and agent texts are scripted; tool results come from running the calls",),
    )


def characters(rollout: Rollout) -> int:
    """Characters of the tool list, texts and calls of a rollout."""
    return len(json.dumps(rollout.tools)) + sum(map(_size, rollout.messages))


def _size(message: Message) -> int:
    return len(message.content) + sum(len(c.name) + len(json.dumps(c.arguments)) for c in message.tool_calls)


class _Full(Exception):
    """The session has its turns, or its context."""


class _Agent:
    """Writes the messages of one session."""

    def __init__(self, draw: random.Random, shape: Shape) -> None:
        self.draw, self.shape = draw, shape
        self.messages: list[Message] = [Message(role="system", content=SYSTEM)]
        self._used = len(json.dumps(TOOLS)) + len(SYSTEM)
        self._turns = 0
        self._read: list[str] = []
        longest = max(shape.observation_characters, self._wanted_observation()) * 2
        files = self._turn_estimate() // 3 + 4
        self.world = World(
            draw,
            files=min(files, _MAX_FILES),
            lines=min(longest // _LINE_CHARACTERS + 20, 20_000),
            rows=min(len(REGIONS) * (longest // _ROW_CHARACTERS) + 600, 60_000),
        )

    def work(self) -> None:
        """Fulfil requests until the session is full; what does not fit whole is left out."""
        requests = (self._rename, self._report, self._limit)
        try:
            for number in range(1_000_000):
                requests[number % 3](number)
        except _Full:
            while self.messages[-1].role != "assistant" or self.messages[-1].tool_calls:
                if self.messages[-1].role == "tool" and self._turns:
                    return
                self.messages.pop()
                if len(self.messages) < 3:
                    raise ConfigError("context_characters: too small for one request and its first turn") from None

    def _turn_estimate(self) -> int:
        if self.shape.turns is not None:
            return self.shape.turns
        context = self.shape.context_characters or 0
        return context // (self.shape.observation_characters // 2 + 150) + 1

    def _wanted_observation(self) -> int:
        """Characters the next long result should have."""
        shape = self.shape
        if shape.turns is None or shape.context_characters is None:
            return shape.observation_characters
        turns = max(1, shape.turns - self._turns)
        spare = shape.context_characters - self._used - turns * _SHORT_TURN
        share = spare * min(0.5, _TURNS_PER_LONG_RESULT / turns)  # never so much that the last turns find no room
        return max(_MIN_OBSERVATION, int(share))

    def _add(self, message: Message, *following: Message) -> None:
        """Append messages that belong together, or end the session."""
        size = sum(map(_size, (message, *following)))
        limit = self.shape.context_characters
        if limit is not None and self._used + size > limit:
            raise _Full
        if message.role == "assistant":
            if self.shape.turns is not None and self._turns >= self.shape.turns:
                raise _Full
            self._turns += 1
        self.messages += (message, *following)
        self._used += size

    def _ask(self, text: str) -> None:
        self._add(Message(role="user", content=text))

    def _say(self, text: str) -> None:
        self._add(Message(role="assistant", content=text))

    def _call(self, why: str, name: str, **arguments: Any) -> str:
        call = ToolCall(name=name, arguments=arguments, id=f"call_{self._turns}")
        result = self.world.run(name, arguments)
        self._add(
            Message(role="assistant", content=why, tool_calls=(call,)),
            Message(role="tool", content=result, tool_call_id=call.id, name=name),
        )
        return result

    def _rename(self, number: int) -> None:
        which = (number // 3) % len(self.world.functions)
        old, new = self.world.functions[which], identifier(self.draw)
        self._ask(f"Rename the function {old} to {new} and show me the file.")
        found = self._call(f"I look for {old} first.", "search", text=old, limit=10)
        path = found.split("\n")[1].split(":", 1)[0]
        self._show(path, f"{old} stands in {path}; I read it before I change it.")
        self._show(self.draw.choice(list(self.world.files)), "Who calls it? I read another file.")
        done = self._call(f"Now I replace {old} by {new} in {path}.", "replace_text", path=path, old=old, new=new)
        self.world.functions[which] = new
        self._say(f"Done: {done}. The function is now called {new}.")

    def _show(self, path: str, why: str) -> None:
        if self._read and self.draw.random() < self.shape.repetition:
            path = self.draw.choice(self._read)
            why = f"I compare with {path}, which I have read before."
        elif path in self._read:
            unread = [other for other in self.world.files if other not in self._read]
            path = unread[0] if unread else path
            why = f"I read {path} for its callers."
        self._read.append(path)
        self._call(why, "read_file", path=path, first_line=1, lines=self._lines(_LINE_CHARACTERS))

    def _report(self, number: int) -> None:
        region = self.draw.choice(REGIONS)
        self._ask(f"How many units were sold in the region {region}? Note it under reports.{region}.")
        where = f"FROM sales WHERE region = '{region}'"
        offset = (number // 3) * self._lines(_ROW_CHARACTERS) % 500
        sql = f"SELECT product, units {where} ORDER BY id LIMIT {self._lines(_ROW_CHARACTERS)} OFFSET {offset}"
        rows = self._call("I look at the rows.", "query", sql=sql).count("\n")
        total = self._call(f"{rows} rows read; now the sum.", "query", sql=f"SELECT SUM(units) {where}").split("\n")[-1]
        self._call(f"The sum is {total}; I note it.", "set_key", key=f"reports.{region}", value=total)
        self._say(f"{total} units were sold in the region {region}, and reports.{region} says so now.")

    def _limit(self, number: int) -> None:
        region = REGIONS[number % len(REGIONS)]
        self._ask(f"Raise the limit of the region {region} by 5.")
        now = self._call("I read the limit.", "get_key", key=f"limits.{region}")
        after = str(int(now) + 5)
        self._call(f"It is {now}, so it becomes {after}.", "set_key", key=f"limits.{region}", value=after)
        self._say(f"The limit of the region {region} was {now} and is {after} now.")

    def _lines(self, line_characters: int) -> int:
        wanted = self._wanted_observation() * self.draw.uniform(0.6, 1.4)
        return max(1, int(wanted / line_characters))
