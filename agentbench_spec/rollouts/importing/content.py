"""Message contents: text, null, absent, or a list of parts of any library, with a note for every repair."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentbench_spec.messages import ToolCall
from agentbench_spec.rollouts.importing.calls import call_id_of, call_of, named_call
from agentbench_spec.rollouts.importing.jsontext import jsonable
from agentbench_spec.rollouts.importing.lost_words import holds_words, word_keys
from agentbench_spec.rollouts.importing.notes import Notes, RowFault, short

__all__ = ["Parts", "Result", "content_parts", "note_control_tokens"]

_CONTROL_ANYWHERE = r"<\|[A-Za-z_]{1,40}\|>|<(?:start|end)_of_turn>|\[/?INST\]"
_CONTROL_SPOKEN = re.compile(_CONTROL_ANYWHERE)
_CONTROL_READ = re.compile(_CONTROL_ANYWHERE + r"|</?(?:tool_call|tool_response|think)>|</s>")


@dataclass(frozen=True, slots=True)
class Result:
    """A tool result that stands among the parts of a content."""

    call_id: str | None
    text: str
    name: str | None


@dataclass(slots=True)
class Parts:
    """What one content holds."""

    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def reasoning(self) -> str | None:
        return "\n".join(self.thoughts) or None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a part stands, and who hears of its repairs."""

    field: str
    notes: Notes
    at: int
    called: Container[str] = ()

    def say(self, text: str) -> None:
        self.notes.add(text, self.at)

    def inside(self, name: str) -> _Place:
        return replace(self, field=f"{self.field}{name}")


def content_parts(content: Any, field: str, notes: Notes, at: int, called: Container[str] = ()) -> Parts:
    """Text, calls, reasoning and results of a content that is text, a part, or a list of parts.

    field: its path in the row; at: the index of its message; called: ids of the calls made before, which tell what a
    result answers whose id has another name. Raises RowFault naming the part that cannot be read.
    """
    parts = Parts()
    _read(content, parts, _Place(field, notes, at, called))
    return parts


def _read(content: Any, parts: Parts, place: _Place) -> None:
    if isinstance(content, str):
        parts.texts.append(content)
        return
    if content is None:
        return
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        raise RowFault(place.field, f"expected text or a list of parts, found {short(content)}")
    place.say("content is a list of parts: their texts were joined by line ends")
    for i, part in enumerate(content):
        kind = _kind(part)
        _HANDLERS.get(kind, _other)(kind, part, parts, place.inside(f"[{i}]"))


def _kind(part: Any) -> str:
    """What a part is: its type, or else the member that tells it (Gemini, Bedrock)."""
    if isinstance(part, str):
        return "string"
    if not isinstance(part, Mapping):
        return "?"
    kind = part.get("type")
    if isinstance(kind, str):
        return kind.replace("-", "_")
    if part.get("thought") is True:
        return "thinking"
    return next((key for key in _TAGS if part.get(key) is not None), "?")


def _string(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    parts.texts.append(part)


def _text(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    text = next((part[key] for key in ("text", "content", kind) if part.get(key) is not None), None)
    if isinstance(text, Mapping | list):
        _read(text, parts, place.inside(".text"))
        return
    if text is None:
        if odd := word_keys(part, ("text", "content", kind)):
            raise RowFault(place.field, f"no text; words stand in {odd[0]!r}")
        place.say("a text part without text: read as empty")
    elif not isinstance(text, str):
        raise RowFault(f"{place.field}.text", f"expected text, found {short(text)}")
    if kind == "refusal":
        place.say("a refusal: read as the text of the message")
    parts.texts.append(text or "")


def _thinking(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    keys = ("thinking", "reasoning", "reasoningText", "text", "content", "summary", "reasoningContent")
    text = "" if part.get("redacted") else "\n".join(_texts_of([part[key] for key in keys if part.get(key)]))
    if text:
        parts.thoughts.append(text)
    else:
        place.say("a thinking part without text was left out")


def _texts_of(value: Any) -> list[str]:
    """Texts in `value`, a text, a part, or a list of them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts_of(item)]
    return _texts_of(value.get("text") or value.get("reasoningText") or "") if isinstance(value, Mapping) else []


def _redacted(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    place.say(f"a part of type {kind!r}, which nobody can read, was left out")


def _call(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    inner = part.get(kind)
    tagged = isinstance(inner, Mapping)
    raw = inner if tagged else {key: value for key, value in part.items() if key != "type"}
    parts.calls.append(call_of(raw, place.field + (f".{kind}" if tagged else ""), place.notes, place.at))


def _result(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    inner = part.get(kind)
    raw = inner if isinstance(inner, Mapping) else part
    key = next((key for key in _RESULT_KEYS if raw.get(key) is not None), "")
    if not key and (odd := word_keys(raw, _RESULT_KNOWN)):
        raise RowFault(place.field, f"a result without content; words stand in {odd[0]!r}")
    name = next((raw[k] for k in ("name", "tool_name", "toolName") if isinstance(raw.get(k), str) and raw[k]), None)
    if parts.texts:
        place.say("text stood before tool results: put behind them")
    text = _result_text(raw.get(key), place.inside(f".{key}"))
    answered = call_id_of(raw)
    if answered is None and (named := named_call(raw, place.called)):
        place.say(f"the id of a result's call stands in {named[0]!r}")
        answered = named[1]
    parts.results.append(Result(answered, text, name))


_RESULT_KEYS = ("content", "output", "response", "result", "text", "error")
_RESULT_KNOWN = frozenset((*_RESULT_KEYS, "name", "tool_name", "toolName", "isError", "is_error"))
_SOLE = ("output", "result", "content", "error", "value")


def _result_text(value: Any, place: _Place) -> str:
    """A result's text: as it is, that of its parts, or JSON; {"output": text} alone is its text."""
    if isinstance(value, Mapping):
        sole = [item for key, item in value.items() if key != "type"]
        if len(sole) == 1 and isinstance(sole[0], str) and any(key in value for key in _SOLE):
            return str(sole[0])
        if _kind(value) in _HANDLERS and _kind(value) != "?":
            value = [value]
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(item, str) or _kind(item) != "?" for item in value):
        inner = Parts()
        _read(value, inner, place)
        return inner.text
    place.say("a result that is an object: kept as JSON")
    return json.dumps(jsonable(value, place.say), ensure_ascii=False)


def _json(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    parts.texts.append(json.dumps(jsonable(part[kind], place.say), ensure_ascii=False))


def _nested(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    _read(part[kind], parts, place.inside(f".{kind}"))


def _server_side(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    place.say(f"a part of type {kind!r}, which the server itself ran, was left out")
    place.notes.left_out_part(part)


def _document(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    source = part.get("source") or part.get("file") or part.get("resource") or {}
    words = _texts_of([source.get(key) for key in ("data", "text", "content")]) if isinstance(source, Mapping) else []
    if words and (source.get("type") != "base64") and not source.get("blob"):
        parts.texts += words
    else:
        _placeholder(kind, part, parts, place)


def _placeholder(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    place.say(f"a part of type {kind!r} was replaced by the text [{kind}]")
    place.notes.left_out_part(part)
    parts.texts.append(f"[{kind}]")


def _other(kind: str, part: Any, parts: Parts, place: _Place) -> None:
    if kind == "?":
        odd = f"; words stand in {word_keys(part)[0]!r}" if isinstance(part, Mapping) and word_keys(part) else ""
        raise RowFault(place.field, f"expected a part of a content, found {short(part)}{odd}")
    if kind.endswith("_tool_result") or kind in _SERVER:
        _server_side(kind, part, parts, place)
    elif kind.startswith(_MEDIA) or not holds_words({k: v for k, v in part.items() if k != "type"}):
        _placeholder(kind, part, parts, place)
    elif isinstance(part.get("text"), str) or isinstance(part.get(kind), str):
        place.say(f"a part of unknown type {kind!r}: its text was read")
        _text(kind, part, parts, place)
    else:
        raise RowFault(place.field, f"a part of unknown type {kind!r} holds words in {word_keys(part)[0]!r}")


_MEDIA = ("image", "audio", "video", "input_image", "input_audio", "input_file", "file", "media", "blob", "uri")
_SERVER = ("server_tool_use", "mcp_tool_use", "container_upload", "tool_search_call", "tool_search_output")
_Handler = Callable[[str, Any, Parts, _Place], None]
_HANDLERS: dict[str, _Handler] = {
    "string": _string,
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "refusal"), _text),
    **dict.fromkeys(("thinking", "reasoning", "reasoning_text", "reasoningContent"), _thinking),
    "redacted_thinking": _redacted,
    **dict.fromkeys(("tool_use", "tool_call", "function", "function_call", "functionCall", "toolUse"), _call),
    **dict.fromkeys(("tool_result", "tool_call_response", "function_call_output", "tool_response"), _result),
    **dict.fromkeys(("functionResponse", "function_response", "toolResult"), _result),
    **dict.fromkeys(("document", "resource"), _document),
    **dict.fromkeys(("inlineData", "inline_data", "fileData", "file_data", "image", "video"), _placeholder),
    **dict.fromkeys(("executableCode", "codeExecutionResult"), _server_side),
    **dict.fromkeys(("parts", "content"), _nested),
    "json": _json,
}
_TAGS = tuple(kind for kind in _HANDLERS if kind not in ("string", "content", "reasoning", "redacted_thinking"))
_TAGS = (*_TAGS, "content", "refusal")


def note_control_tokens(content: str, role: str, notes: Notes, at: int) -> None:
    """Say which control tokens of chat formats stand in a text; what an assistant says of its own form is no news."""
    if "<" not in content and "[" not in content:
        return
    pattern = _CONTROL_SPOKEN if role == "assistant" else _CONTROL_READ
    for token in sorted(set(pattern.findall(content))):
        notes.add(f"the text holds {token!r}, a control token of some models: kept as text", at)
