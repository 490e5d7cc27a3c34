"""Environments in a process of their own, which is ended when it takes too long, and made again as it was before.

A step that gives no answer in time, raises, or ends the process costs itself only: the world is built anew and the
earlier steps are taken again.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentbench_spec.errors import AgentBenchError, ConfigError, ContractError
from agentbench_spec.rollout import Message

_LISTING_S = 600.0
"""Data may have to be read, or fetched, before the tasks are known."""
_MOST_BYTES = 64 << 20
"""Of one answer."""


class EnvironmentFault(AgentBenchError):
    """A step that the environment did not carry out; the world is what it was before."""


class _Lost(Exception):
    """The process gave no usable answer, and is gone."""


class _Raised(Exception):
    """The environment raised."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is known of a task before it is started."""

    id: str
    labels: dict[str, Any]
    source: dict[str, Any]


class Sandbox:
    """The tasks of a live workload, and the one at work; use it in a `with` block."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        limit: int | None,
        seed: int,
        step_s: float,
        memory_bytes: int = 2 << 30,
    ) -> None:
        """step_s: seconds a step may take; memory_bytes: what the process may hold.

        Raises ConfigError for an unknown name, option or unusable data, ContractError for a broken plugin.
        """
        wanted = {"name": name, "options": dict(options), "limit": limit, "seed": seed}
        self._list = {"do": "list", "path": [entry or str(Path.cwd()) for entry in sys.path], **wanted}
        self._step_s, self._memory_bytes = step_s, memory_bytes
        self._started: str | None = None
        self._said: list[Message] = []
        listed = self._open()
        self.name: str = listed["name"]
        self.left_out: list[str] = listed["left_out"]
        self.tasks = [Task(**one) for one in listed["tasks"]]

    def start(self, task: str) -> tuple[list[dict[str, Any]], list[Message]]:
        """(tools, first messages) of a task whose world is made anew. Raises ContractError if it cannot be."""
        self._started, self._said = task, []
        try:
            begun = self._begin()
        except (_Lost, _Raised) as error:
            self._open()
            raise ContractError(f"environment {self.name}: {task} cannot be started: {error}") from error
        return begun["tools"], _read(begun["messages"])

    def step(self, said: Message) -> list[Message] | None:
        """What follows; None: the task is over. Raises EnvironmentFault, and the world is as if nothing was said."""
        try:
            found = self._take(said)
        except (_Lost, _Raised) as error:
            self._again()
            raise EnvironmentFault(str(error)) from error
        self._said.append(said)
        return None if found is None else _read(found)

    def score(self) -> dict[str, Any]:
        """What came of the task. Raises ContractError if the environment cannot tell."""
        try:
            found = self._ask({"do": "score"}, self._step_s)
        except (_Lost, _Raised) as error:
            self._again()
            raise ContractError(f"environment {self.name}: {self._started} has no score: {error}") from error
        if not isinstance(found, dict) or not isinstance(found.get("solved"), bool):
            raise ContractError(f"environment {self.name}: score() must hold solved, a bool; found {found!r:.80}")
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> Any:
        return self._ask({"do": "start", "id": self._started}, self._step_s)

    def _take(self, said: Message) -> Any:
        return self._ask({"do": "step", "message": said.model_dump(exclude_defaults=True)}, self._step_s)

    def _again(self) -> None:
        """The world at work as it was after the last good step."""
        self.close()
        self._open()
        try:
            self._begin()
            for said in self._said:
                self._take(said)
        except (_Lost, _Raised) as error:
            raise ContractError(
                f"environment {self.name}: {self._started} cannot be made again by its {len(self._said)} steps: {error}"
            ) from error

    def _open(self) -> Any:
        """A new process with the tasks listed."""
        self._socket, theirs = socket.socketpair()
        self._buffer = b""
        command = [sys.executable, "-P", "-m", "agentbench_spec.runs.live.sandboxed", str(theirs.fileno())]
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        with theirs:
            self._process = subprocess.Popen(
                command, env=environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        try:
            listed = self._ask(self._list, _LISTING_S)
            self._ask({"do": "guard", "memory_bytes": self._memory_bytes}, self._step_s)
        except (_Lost, _Raised) as error:
            self.close()
            raise ContractError(f"environment {self._list['name']}: {error}") from error
        except BaseException:
            self.close()
            raise
        return listed

    def _ask(self, command: Mapping[str, Any], most_s: float) -> Any:
        try:
            self._socket.settimeout(most_s)
            self._socket.sendall(json.dumps(command).encode() + b"\n")
            answer = json.loads(self._line(time.monotonic() + most_s, most_s))
        except (OSError, ValueError) as error:
            raise _Lost(f"its process is gone ({error})") from error
        if "config" in answer:
            raise ConfigError(answer["config"])
        if "error" in answer:
            raise _Raised(answer["error"])
        return answer["value"]

    def _line(self, until: float, most_s: float) -> bytes:
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                raise _Lost(f"it gave no answer within {most_s:g} s")
            new = self._socket.recv(1 << 16)
            if not new:
                raise _Lost(f"its process ended with status {self._process.wait()}")
            self._buffer += new
            if len(self._buffer) > _MOST_BYTES:
                raise _Lost(f"its answer has more than {_MOST_BYTES >> 20} MiB")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _read(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [Message.model_validate(message) for message in messages]
