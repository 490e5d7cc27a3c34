"""Small predicates on JSON values that readers and the detector share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_event", "is_pair", "is_part_of_one_rollout", "is_role_message", "is_said_message"]


def is_role_message(value: Any) -> bool:
    """{"role": ..., "content": ...}: a chat message."""
    return isinstance(value, Mapping) and isinstance(value.get("role"), str)


def is_said_message(value: Any) -> bool:
    """{"from": ..., "value": ...}: a chat message in ShareGPT's form."""
    return isinstance(value, Mapping) and isinstance(value.get("from"), str) and "value" in value


def is_event(value: Any) -> bool:
    """{"action" or "observation": ..., ...}: an OpenHands event."""
    if not isinstance(value, Mapping):
        return False
    kind = value.get("action", value.get("observation"))
    marks = ("source", "args", "extras", "content", "id", "message")
    return isinstance(kind, str) and "response" not in value and any(mark in value for mark in marks)


def is_pair(value: Any) -> bool:
    """[action, observation]: two OpenHands events."""
    return isinstance(value, list) and len(value) == 2 and is_event(value[0])


def is_part_of_one_rollout(value: Any) -> bool:
    """True for a message, an event or a pair of events: a list of them is one rollout."""
    return is_role_message(value) or is_said_message(value) or is_event(value) or is_pair(value)
