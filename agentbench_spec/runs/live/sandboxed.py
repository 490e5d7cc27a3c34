"""The process in which environments live: reads commands from a socket, answers each, and may touch nothing else.

Started by `Sandbox` as `python -m agentbench_spec.runs.live.sandboxed FD`. Once the tasks are listed it takes no more
than its memory, writes no file, starts no process and opens no connection; what tries to raises.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
from collections.abc import Mapping
from typing import IO, Any

from agentbench_spec.errors import ConfigError, cause_of, raise_interrupt
from agentbench_spec.rollout import Message
from agentbench_spec.rollouts.environments import Environment
from agentbench_spec.runs.live.live_tasks import each_task, open_live
from agentbench_spec.runs.source import left_out

_REFUSED = (
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.kill",
    "shutil.rmtree",
    "ctypes.dlopen",
)


class Hall:
    """The tasks of one live workload, one of them at work."""

    def __init__(self) -> None:
        self._tasks: dict[str, Environment] = {}
        self._at_work: Environment | None = None

    def do(self, command: Mapping[str, Any]) -> Any:
        """The answer to one command, as JSON values."""
        match command:
            case {"do": "list", "path": path, "name": name, "options": options, "limit": limit, "seed": seed}:
                sys.path += [entry for entry in path if entry not in sys.path]  # last: no file shadows a library
                workload = open_live(name, options)
                self._tasks = {task.id: task for task in each_task(workload, limit=limit, seed=seed)}
                return {
                    "name": workload.name,
                    "left_out": left_out(workload),
                    "tasks": [
                        {"id": task.id, "labels": dict(task.labels), "source": dict(task.source)}
                        for task in self._tasks.values()
                    ],
                }
            case {"do": "guard", "memory_bytes": memory_bytes}:
                return guard(memory_bytes)
            case {"do": "start", "id": id}:
                self._at_work = task = self._tasks[id]
                messages = _dumped(task.start())
                return {"tools": list(task.tools()), "messages": messages}
            case {"do": "step", "message": message} if self._at_work is not None:
                found = self._at_work.step(Message.model_validate(message))
                return None if found is None else _dumped(found)
            case {"do": "score"} if self._at_work is not None:
                return dict(self._at_work.score())
        raise ValueError(f"no such command here: {command.get('do')!r}")


def _dumped(messages: Any) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_defaults=True) for message in messages]


def guard(memory_bytes: int) -> None:
    """Bound this process and refuse whatever reaches out of it; there is no way back."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and isinstance(arguments[1], str) and any(mark in arguments[1] for mark in "wax+")
    elsewhere = event == "sqlite3.connect" and arguments[0] != ":memory:"
    if writes or elsewhere or event in _REFUSED:
        raise PermissionError(f"an environment may not do this in a live run: {event}")


def serve(stream: IO[str]) -> None:
    """Answer commands, a line of JSON each, until the other side hangs up."""
    hall = Hall()
    for line in stream:
        try:
            answer: dict[str, Any] = {"value": hall.do(json.loads(line))}
            text = json.dumps(answer, allow_nan=False)
        except ConfigError as error:
            text = json.dumps({"config": str(error)})
        except (Exception, SystemExit) as error:
            raise_interrupt(error)
            text = json.dumps({"error": cause_of(error)})
        stream.write(text + "\n")
        stream.flush()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rw", encoding="utf-8") as stream:
        serve(stream)
