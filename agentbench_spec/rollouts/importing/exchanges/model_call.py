"""One model call: the messages it was asked with, the reply, and whose session it is, however it was logged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentbench_spec.rollouts.importing.lost_words import is_system_key
from agentbench_spec.rollouts.importing.shapes import is_message_list

__all__ = ["SESSION_KEYS", "Exchange", "exchange_of", "is_exchange", "parsed", "reply_items", "system_of"]

SESSION_KEYS = ("session_id", "conversation_id", "trajectory_id", "trace_id", "thread_id", "chat_id", "sessionId")
"""Members that say which session a request belongs to."""
_CONTEXTS = ("messages", "input", "contents", "prompt")
_REPLIES = ("output", "response", "completion", "reply", "generation", "outputs")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call."""

    context: list[Any]
    """The messages the model saw, as recorded."""
    reply: Any
    """What it said, as recorded; None if that is not."""
    session: str
    """Whose session it is part of, "" if that is not said."""
    rest: Mapping[str, Any]
    """Everything else of the row: tools, the system prompt, what it is grouped by."""


def is_exchange(value: Mapping[str, Any]) -> bool:
    """True for a row that is told to be one model call by its form alone: {"input": [...]}, {"request": {...}}."""
    request = _request(value)
    if request is not value:
        return _context_key(request) != ""
    return "messages" not in value and is_message_list(parsed(value.get("input")))


def exchange_of(value: Any) -> Exchange | None:
    """The model call in a row; None for a row that is none, or that cannot be told from a whole conversation."""
    if not isinstance(value, Mapping):
        return None
    request = _request(value)
    key = _context_key(request)
    if not key:
        return None
    session = next((str(value[name]) for name in SESSION_KEYS if isinstance(value.get(name), str | int)), "")
    answer = next((name for name in _REPLIES if name != key and value.get(name) not in (None, "", [], {})), "")
    asked = request is not value or key == "input" or isinstance(value.get("response"), Mapping)
    if not (asked or session):
        return None
    rest = {k: v for k, v in value.items() if k not in (key, answer, "request")}
    if request is not value:
        rest |= {k: v for k, v in request.items() if k != key}
    return Exchange(parsed(request[key]), value[answer] if answer else None, session, rest)


def _request(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a row that was sent, which is the row itself where it has no `request`."""
    for name in ("request", "body", "request_body", "kwargs"):
        inner = value.get(name)
        inner = inner.get("body", inner) if isinstance(inner, Mapping) else parsed(inner)
        if isinstance(inner, Mapping) and _context_key(inner) and not _context_key(value):
            return inner
    return value


def _context_key(value: Mapping[str, Any]) -> str:
    return next((key for key in _CONTEXTS if is_message_list(parsed(value.get(key)))), "")


def parsed(value: Any) -> Any:
    """`value`, or the object or list that it holds as JSON text."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def reply_items(raw: Any) -> list[Any]:
    """The messages or items of a recorded reply: a text, a message, a list of them, or a whole response object."""
    raw = parsed(raw)
    if isinstance(raw, str):
        return [{"role": "assistant", "content": raw}]
    if isinstance(raw, list):
        return [item if isinstance(item, Mapping) else {"role": "assistant", "content": item} for item in raw]
    if not isinstance(raw, Mapping):
        return []
    if isinstance(raw.get("body"), Mapping):
        return reply_items(raw["body"])
    for key in ("choices", "candidates", "generations"):
        first = raw[key][0] if isinstance(raw.get(key), list) and raw[key] else None
        if isinstance(first, Mapping):
            inner = first.get("message") or first.get("content") or first.get("text")
            return [{**inner, "role": "assistant"}] if isinstance(inner, Mapping) else reply_items(inner)
    if isinstance(raw.get("output"), list):
        return list(raw["output"])
    if isinstance(raw.get("message"), Mapping):
        return [{**raw["message"], "role": "assistant"}]
    return [{**{k: v for k, v in raw.items() if k in _OF_A_MESSAGE}, "role": "assistant"}]


_OF_A_MESSAGE = ("content", "parts", "text", "tool_calls", "reasoning_content", "reasoning", "refusal", "function_call")


def system_of(rest: Mapping[str, Any]) -> tuple[str, Any]:
    """(member, system prompt) of what stands beside the messages of a call."""
    return next(((key, rest[key]) for key in rest if is_system_key(key) and rest[key]), ("system", None))
