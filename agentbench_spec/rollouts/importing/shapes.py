"""Small predicates on JSON values that readers and the detector share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbench_spec.rollouts.importing.responses import is_response_item
from agentbench_spec.rollouts.importing.wrapped import is_wrapped_message

__all__ = [
    "is_claude_line",
    "is_codex_line",
    "is_event",
    "is_message_list",
    "is_pair",
    "is_part_of_one_rollout",
    "is_role_message",
    "is_said_message",
]

_CLAUDE_KINDS = frozenset(("user", "assistant", "system", "result", "stream_event"))
_CLAUDE_MARKS = ("sessionId", "leafUuid", "isSidechain", "parentUuid", "isSnapshotUpdate")
_CODEX_KINDS = frozenset(("session_meta", "turn_context", "response_item", "event_msg", "compacted"))


def is_role_message(value: Any) -> bool:
    """{"role": ..., "content": ...}: a chat message, or a library's wrapping of one."""
    return isinstance(value, Mapping) and (isinstance(value.get("role"), str) or is_wrapped_message(value))


def is_message_list(value: Any) -> bool:
    """True for a list of chat messages or of items of the Responses API."""
    return isinstance(value, list) and bool(value) and all(is_role_message(i) or is_response_item(i) for i in value)


def is_said_message(value: Any) -> bool:
    """{"from": ..., "value": ...}: a chat message in ShareGPT's form."""
    return isinstance(value, Mapping) and isinstance(value.get("from"), str) and "value" in value


def is_event(value: Any) -> bool:
    """{"action" or "observation": ..., ...}: an OpenHands event; what has a role is a message, whatever else it has."""
    if not isinstance(value, Mapping) or isinstance(value.get("role"), str):
        return False
    kind = value.get("action", value.get("observation"))
    marks = ("source", "args", "extras", "content", "id", "message")
    return isinstance(kind, str) and "response" not in value and any(mark in value for mark in marks)


def is_pair(value: Any) -> bool:
    """[action, observation]: two OpenHands events."""
    return isinstance(value, list) and len(value) == 2 and is_event(value[0])


def is_claude_line(value: Any) -> bool:
    """True for a line of a Claude Code session."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str) or {"role", "messages"} & value.keys():
        return False
    if value["type"] in ("user", "assistant") and not isinstance(value.get("message"), Mapping):
        return False
    if "session_id" in value and value["type"] in _CLAUDE_KINDS and ("message" in value or "subtype" in value):
        return True
    return any(mark in value for mark in _CLAUDE_MARKS)


def is_codex_line(value: Any) -> bool:
    """True for a line of a Codex session."""
    if not isinstance(value, Mapping) or not isinstance(value.get("payload"), Mapping):
        return False
    return isinstance(value.get("type"), str) and value["type"] in _CODEX_KINDS


def is_part_of_one_rollout(value: Any) -> bool:
    """True for a message, an event, a pair of events or a line of a session: a list of them is one rollout."""
    return any(is_part(value) for is_part in _PARTS)


_PARTS = (is_role_message, is_said_message, is_event, is_pair, is_claude_line, is_codex_line, is_response_item)
