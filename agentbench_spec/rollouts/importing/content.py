"""Message contents: text, null, absent, or a list of parts, with a note for every repair."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentbench_spec.messages import ToolCall
from agentbench_spec.rollouts.importing.calls import call_of
from agentbench_spec.rollouts.importing.notes import Notes, RowFault, short

__all__ = ["Parts", "note_control_tokens", "parts_of"]

_CONTROL_ANYWHERE = r"<\|[A-Za-z_]{1,40}\|>|<(?:start|end)_of_turn>|\[/?INST\]"
_CONTROL_SPOKEN = re.compile(_CONTROL_ANYWHERE)
_CONTROL_READ = re.compile(_CONTROL_ANYWHERE + r"|</?(?:tool_call|tool_response|think)>|</s>")


@dataclass(slots=True)
class Parts:
    """What one content holds."""

    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)
    """(call id, text) of each tool result that stands among the parts."""

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def reasoning(self) -> str | None:
        return "\n".join(self.thoughts) or None


def parts_of(raw: Mapping[str, Any], where: str, notes: Notes, at: int) -> Parts:
    """Text, calls, reasoning and results in the `content` of message `raw`.

    where: path of the message in the row; at: its index. Raises RowFault naming the part that cannot be read.
    """
    content = raw.get("content")
    if isinstance(content, str):
        return Parts(texts=[content])
    if content is None:
        notes.add("content is null: read as empty text" if "content" in raw else "no content: read as empty text", at)
        return Parts()
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        raise RowFault(f"{where}.content", f"expected text or a list of parts, found {short(content)}")
    notes.add("content is a list of parts: their texts were joined by line ends", at)
    parts = Parts()
    for i, part in enumerate(content):
        _HANDLERS.get(_kind(part), _other)(part, parts, f"{where}.content[{i}]", notes, at)
    return parts


def _kind(part: Any) -> str:
    if isinstance(part, str):
        return "string"
    if not isinstance(part, Mapping):
        return "?"
    kind = part.get("type")
    return kind if isinstance(kind, str) else "text" if isinstance(part.get("text"), str) else "?"


def _string(part: Any, parts: Parts, where: str, notes: Notes, at: int) -> None:
    parts.texts.append(part)


def _text(part: Any, parts: Parts, where: str, notes: Notes, at: int) -> None:
    text = part.get("text")
    if text is None:
        notes.add("a text part without text: read as empty", at)
    elif not isinstance(text, str):
        raise RowFault(f"{where}.text", f"expected text, found {short(text)}")
    parts.texts.append(text or "")


def _thinking(part: Any, parts: Parts, where: str, notes: Notes, at: int) -> None:
    text = part.get("thinking") or part.get("text")
    if isinstance(text, str):
        parts.thoughts.append(text)
    else:
        notes.add("a thinking part without text was left out", at)


def _call(part: Any, parts: Parts, where: str, notes: Notes, at: int) -> None:
    parts.calls.append(call_of({**part, "arguments": part.get("input")}, where, notes, at))


def _result(part: Any, parts: Parts, where: str, notes: Notes, at: int) -> None:
    inner = parts_of(part, where, notes, at)
    parts.results.append((str(part.get("tool_use_id") or ""), inner.text))


def _other(part: Any, parts: Parts, where: str, notes: Notes, at: int) -> None:
    kind = _kind(part)
    if kind == "?":
        raise RowFault(where, f"expected a part of a content, found {short(part)}")
    notes.add(f"a part of type {kind!r} was replaced by the text [{kind}]", at)
    parts.texts.append(f"[{kind}]")


_HANDLERS: dict[str, Callable[[Any, Parts, str, Notes, int], None]] = {
    "string": _string,
    "text": _text,
    "input_text": _text,
    "output_text": _text,
    "thinking": _thinking,
    "reasoning": _thinking,
    "tool_use": _call,
    "tool_result": _result,
}


def note_control_tokens(content: str, role: str, notes: Notes, at: int) -> None:
    """Say which control tokens of chat formats stand in a text; what an assistant says of its own form is no news."""
    if "<" not in content and "[" not in content:
        return
    pattern = _CONTROL_SPOKEN if role == "assistant" else _CONTROL_READ
    for token in sorted(set(pattern.findall(content))):
        notes.add(f"the text holds {token!r}, a control token of some models: kept as text", at)
