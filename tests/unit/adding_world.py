"""A live workload of two sums, with numbers that are traps: the process it lives in loads little, so it starts fast."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentbench_spec.rollout import Message

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}


class Adding:
    """A sum to bring to ten; some numbers are traps."""

    labels: Mapping[str, Any] = {"category": "adding"}
    source: Mapping[str, Any] = {"name": "adding"}

    def __init__(self, number: int) -> None:
        self.id = f"adding/{number}"

    def tools(self) -> Sequence[dict[str, Any]]:
        return [TOOL]

    def start(self) -> Sequence[Message]:
        self._sum = 0
        return [Message(role="user", content="Add up to ten.")]

    def step(self, said: Message) -> Sequence[Message] | None:
        if not said.tool_calls:
            return None
        for one in said.tool_calls:
            trap = TRAPS.get(one.arguments.get("n", 0))
            self._sum += one.arguments.get("n", 0)
            if trap is not None:
                trap()
        text = "x" * 200 if self._sum == 7 else str(self._sum)
        return [Message(role="tool", content=text, tool_call_id=said.tool_calls[0].id, name="add")]

    def state(self) -> Any:
        return self._sum

    def score(self) -> Mapping[str, Any]:
        return {"solved": self._sum == 10}


class Submitting(Adding):
    """The same, and the sum is handed in."""

    def score(self) -> Mapping[str, Any]:
        return {**super().score(), "submission": f"the sum is {self._sum}"}


def _endless() -> None:
    while True:
        pass


def _raises() -> None:
    raise RuntimeError("the world is broken")


def _exits() -> None:
    sys.exit(3)


def _dies() -> None:
    os._exit(9)


def _eats() -> None:
    bytearray(8 << 30)


def _shell() -> None:
    os.system("touch /tmp/agentbench-spec-escaped")


def _connects() -> None:
    socket.create_connection(("127.0.0.1", 9), timeout=1)


def _writes() -> None:
    Path("escaped.txt").write_text("x")


TRAPS = {
    100: _endless,
    101: _raises,
    102: _exits,
    103: _dies,
    104: _eats,
    105: _shell,
    106: _connects,
    107: _writes,
}


class Sums:
    """Two tasks."""

    name = "sums"

    def environments(self, *, limit: int | None = None, seed: int = 0) -> list[Adding]:
        return [Adding(i) for i in range(2)][:limit]


class Unstartable(Adding):
    """A task without a world."""

    def start(self) -> Sequence[Message]:
        raise RuntimeError("there is no such world")


class BrokenSums(Sums):
    """Two tasks of which the first cannot be started."""

    def environments(self, *, limit: int | None = None, seed: int = 0) -> list[Adding]:
        return [Unstartable(0), Adding(1)][:limit]


class Submissions(Sums):
    """Two tasks that hand something in."""

    def environments(self, *, limit: int | None = None, seed: int = 0) -> list[Adding]:
        return [Submitting(i) for i in range(2)][:limit]
