"""Raw messages to `Message`: roles, contents, calls and results, with a note for every repair."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from agentbench_spec.messages import Message
from agentbench_spec.rollouts.importing.calls import calls_of
from agentbench_spec.rollouts.importing.content import Parts, note_control_tokens, parts_of
from agentbench_spec.rollouts.importing.jsontext import jsonable
from agentbench_spec.rollouts.importing.notes import Notes, RowFault, short

__all__ = ["ROLES", "Role", "messages_of", "role_of"]

Role = Literal["system", "user", "assistant", "tool"]

ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "developer": "system",
    "human": "user",
    "environment": "user",
    "ai": "assistant",
    "agent": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function": "tool",
    "ipython": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
"""Recorded role name -> chat role; any other name but `exit` is a fault."""
_CALLS = ("tool_calls", "function_call", "tool_call_id", "tool_call_ids")
_USED = frozenset(("role", "content", "name", "reasoning", "reasoning_content", "thinking_blocks", *_CALLS))


def role_of(raw: Any, field: str, notes: Notes, at: int) -> Role:
    """The chat role behind a recorded role name. Raises RowFault for one that is unknown."""
    role = ROLES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if role is None:
        raise RowFault(f"{field}.role", f"unknown role {short(raw)}; known: {', '.join(ROLES)}")
    if role != raw:
        notes.add(f"role {raw!r} read as {role!r}", at)
    return role


def messages_of(raw: Any, field: str, notes: Notes, at: int) -> list[Message]:
    """The message or messages in `raw`, in OpenAI's form or a relative of it.

    Usually one; tool results that stand among a user's parts become messages of their own, before it. field: path of
    the message in the row; at: its index, for the notes. Raises RowFault naming the field.
    """
    if not isinstance(raw, Mapping):
        raise RowFault(field, f"expected a message object, found {short(raw)}")
    role = role_of(raw.get("role"), field, notes, at)
    parts = parts_of(raw, field, notes, at)
    note_control_tokens(parts.text, role, notes, at)
    notes.left_out(str(key) for key in raw if key not in _USED and raw[key] not in (None, "", [], {}))
    results = [Message(role="tool", content=text, tool_call_id=name or None) for name, text in parts.results]
    if results and not parts.texts and role != "assistant":
        return results
    return [*results, _message(raw, role, parts, field, notes, at)]


def _message(raw: Mapping[str, Any], role: Role, parts: Parts, field: str, notes: Notes, at: int) -> Message:
    calls = (*calls_of(raw, field, notes, at), *parts.calls)
    if calls and role != "assistant":
        raise RowFault(f"{field}.tool_calls", f"a message of role {role!r} cannot call tools")
    name = raw.get("name")
    return Message(
        role=role,
        content=parts.text,
        tool_calls=calls,
        tool_call_id=_result_id(raw, notes, at) if role == "tool" else None,
        name=name if isinstance(name, str) and name else None,
        reasoning=_reasoning(raw, notes, at) or parts.reasoning,
    )


def _result_id(raw: Mapping[str, Any], notes: Notes, at: int) -> str | None:
    ids = raw.get("tool_call_ids")
    if isinstance(ids, list) and ids:
        if len(ids) > 1:
            notes.add("one result answers several calls: kept as the first one's", at)
        return str(ids[0])
    one = raw.get("tool_call_id")
    return None if one is None or one == "" else str(one)


def _reasoning(raw: Mapping[str, Any], notes: Notes, at: int) -> str | None:
    for key in ("reasoning_content", "reasoning"):
        value = raw.get(key)
        if isinstance(value, str) and value:
            return value
        if value:
            notes.add(f"{key} is not text: kept as JSON", at)
            return json.dumps(jsonable(value, lambda text: notes.add(text, at)), ensure_ascii=False)
    return _thoughts(raw.get("thinking_blocks"))


def _thoughts(blocks: Any) -> str | None:
    """The texts of thinking blocks that stand beside the content."""
    listed = [block for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []
    texts = [block["thinking"] for block in listed if isinstance(block.get("thinking"), str)]
    return "\n".join(texts) or None
