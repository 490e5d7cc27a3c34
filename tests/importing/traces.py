"""Shared by the importer's tests: where the fixture files are, and short ways to import and to describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentbench_spec.rollout import BadLine, Rollout
from agentbench_spec.rollouts.importing import TraceImport

DATA = Path(__file__).parent / "data"
"""Traces invented for these tests, in every format the importer knows."""


def imported(*paths: Path, format: str = "auto") -> tuple[list[Rollout], list[BadLine]]:
    """(good rollouts, bad rows) of files and folders."""
    bad: list[BadLine] = []
    return list(TraceImport(paths, format, on_bad=bad.append).rollouts()), bad


def one(path: Path, **options: Any) -> Rollout:
    """The rollout of a file that holds exactly one, and nothing bad."""
    rollouts, bad = imported(path, **options)
    assert [str(line) for line in bad] == []
    assert len(rollouts) == 1
    return rollouts[0]


def write(path: Path, *values: Any) -> Path:
    """Write values as JSON lines; bytes as they are."""
    path.write_bytes(b"".join(v if isinstance(v, bytes) else json.dumps(v).encode() + b"\n" for v in values))
    return path


def roles(rollout: Rollout) -> str:
    """One letter a message: s, u, a, t."""
    return "".join(message.role[0] for message in rollout.messages)


def calls(rollout: Rollout) -> list[tuple[str, str]]:
    """(id, name) of every call in order."""
    return [(call.id, call.name) for message in rollout.messages for call in message.tool_calls]


def noted(rollout: Rollout, text: str) -> bool:
    """True if a note holds `text`."""
    return any(text in note for note in rollout.notes)


def chat(*messages: Any, **row: Any) -> dict[str, Any]:
    """A row in OpenAI's form: a user message, then `messages`."""
    return {"id": "row", "messages": [{"role": "user", "content": "Hi."}, *messages], **row}


def said(content: Any = "Yes.", **more: Any) -> dict[str, Any]:
    """An assistant message."""
    return {"role": "assistant", "content": content, **more}


def call(name: str = "ls", arguments: Any = "{}", call_id: Any = "c1") -> dict[str, Any]:
    """A tool call in OpenAI's form; call_id ...: none at all."""
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is ... else {"id": call_id, **made}


def result(content: Any = "a.py", call_id: Any = "c1", **more: Any) -> dict[str, Any]:
    """A tool result; call_id ...: it names no call."""
    made = {"role": "tool", "content": content, **more}
    return made if call_id is ... else {**made, "tool_call_id": call_id}
