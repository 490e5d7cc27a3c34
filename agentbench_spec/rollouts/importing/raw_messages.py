"""Raw messages to `Message`: roles, contents, calls and results, with a note for every repair."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any, Literal

from agentbench_spec.messages import Message
from agentbench_spec.rollouts.importing.calls import CALL_KEYS, call_id_of, calls_of, named_call
from agentbench_spec.rollouts.importing.content import Parts, content_parts, note_control_tokens
from agentbench_spec.rollouts.importing.jsontext import jsonable
from agentbench_spec.rollouts.importing.lost_words import word_keys
from agentbench_spec.rollouts.importing.notes import Notes, RowFault, short
from agentbench_spec.rollouts.importing.wrapped import unwrapped

__all__ = ["ROLES", "Role", "messages_of", "role_of", "text_of"]

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
_CONTENTS = ("content", "parts", "text", "message", "refusal", "contents", "value", "output", "response")
"""Where the words of a message may stand; the first that holds any counts, and the others are left out with a note."""
_CONTENTS_OF_A_CALLER = ("content", "parts", "text", "refusal")
"""The same for a message that calls tools, which may well say nothing."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoningContent")
_RESULT_IDS = ("tool_call_id", "tool_call_ids", "tool_use_id", "call_id", "toolCallId", "toolUseId", "callId")
_USED = frozenset(("role", "content", "name", "thinking_blocks", *CALL_KEYS, *_THOUGHTS, *_RESULT_IDS))


def role_of(raw: Any, field: str, notes: Notes, at: int) -> Role:
    """The chat role behind a recorded role name. Raises RowFault for one that is unknown."""
    role = ROLES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if role is None:
        raise RowFault(f"{field}.role", f"unknown role {short(raw)}; known: {', '.join(ROLES)}")
    if role != raw:
        notes.add(f"role {raw!r} read as {role!r}", at)
    return role


def messages_of(raw: Any, field: str, notes: Notes, at: int, called: Container[str] = ()) -> list[Message]:
    """The message or messages in `raw`, in OpenAI's form or a relative of it.

    Usually one; tool results that stand among a user's parts become messages of their own, before it. field: path of
    the message in the row; at: its index, for the notes; called: ids of the calls made before, which tell whether a
    result's plain `id` names its call. Raises RowFault naming the field, and the key where words stand that are not
    read.
    """
    if not isinstance(raw, Mapping):
        raise RowFault(field, f"expected a message object, found {short(raw)}")
    raw = unwrapped(raw)
    role = role_of(raw.get("role"), field, notes, at)
    own_calls, result_asked_by_user = _of_the_user(raw, role, notes)
    if result_asked_by_user:
        notes.add("a result of the user's own call was left out", at)
        notes.left_out_part(raw)
        return []
    if own_calls:
        notes.add("calls that the user made were left out", at)
        notes.left_out_part(raw["tool_calls"])
        notes.users_calls.update(filter(None, map(call_id_of, raw["tool_calls"])))
        raw = {key: value for key, value in raw.items() if key != "tool_calls"}
        if raw.get("content") in (None, "", []):
            return []
    key = _content_key(raw)
    parts = content_parts(raw.get(key), f"{field}.{key}", notes, at, called)
    message = _message(raw, role, parts, field, notes, at, called)
    _mind_the_words(raw, key, message, parts, field, notes, at)
    results = [
        Message(role="tool", content=result.text, tool_call_id=result.call_id, name=result.name)
        for result in parts.results
    ]
    if results and not parts.texts and role != "assistant":
        return results
    return [*results, message]


def text_of(content: Any, field: str, notes: Notes) -> str:
    """The text of a prompt that is text, an object or a list of parts, or {"content" or "parts" or "text": ...}."""
    if isinstance(content, Mapping) and "type" not in content:
        key = _content_key(content)
        if content.get(key) is None and (odd := word_keys(content)):
            raise RowFault(field, f"no content; words stand in {odd[0]!r}")
        field, content = f"{field}.{key}", content.get(key)
    return content_parts(content, field, notes, 0).text


def _content_key(raw: Mapping[str, Any]) -> str:
    """Where the words of a message stand: `content`, unless it is empty and another known member is not."""
    keys = _CONTENTS_OF_A_CALLER if any(raw.get(key) for key in CALL_KEYS) else _CONTENTS
    return next((key for key in keys if raw.get(key) not in (None, "", [], {})), "content")


def _of_the_user(raw: Mapping[str, Any], role: Role, notes: Notes) -> tuple[bool, bool]:
    """(the message holds calls that a simulated user made, it is the result of one)."""
    calls = raw.get("tool_calls") if role == "user" else None
    own = isinstance(calls, list) and bool(calls) and all(isinstance(call, Mapping) for call in calls)
    answers = role == "tool" and call_id_of(raw) in notes.users_calls
    return own, answers or (role == "tool" and raw.get("requestor") == "user")


def _mind_the_words(
    raw: Mapping[str, Any], key: str, message: Message, parts: Parts, field: str, notes: Notes, at: int
) -> None:
    """Say what was left out and from where the words came. Raises RowFault if the message would be empty for them."""
    if key != "content":
        notes.add(f"no content: the words stand in {key!r}", at)
    elif raw.get("content") is None:
        notes.add("content is null: read as empty text" if "content" in raw else "no content: read as empty text", at)
    note_control_tokens(parts.text, message.role, notes, at)
    rest = {name: raw[name] for name in raw if name not in _USED and name != key}
    empty = not (message.content or message.tool_calls or message.reasoning or parts.results)
    if empty and (odd := word_keys(rest)):
        raise RowFault(field, f"no content; text stands in {odd[0]!r}")
    notes.left_out({str(name): value for name, value in rest.items() if value not in (None, "", [], {})})


def _message(
    raw: Mapping[str, Any], role: Role, parts: Parts, field: str, notes: Notes, at: int, called: Container[str]
) -> Message:
    calls = (*calls_of(raw, field, notes, at), *parts.calls)
    if calls and role != "assistant":
        raise RowFault(f"{field}.tool_calls", f"a message of role {role!r} cannot call tools")
    name = raw.get("name")
    return Message(
        role=role,
        content=parts.text,
        tool_calls=calls,
        tool_call_id=_result_id(raw, notes, at, called) if role == "tool" else None,
        name=name if isinstance(name, str) and name else None,
        reasoning=_reasoning(raw, notes, at) or parts.reasoning,
    )


def _result_id(raw: Mapping[str, Any], notes: Notes, at: int, called: Container[str]) -> str | None:
    ids = raw.get("tool_call_ids")
    if isinstance(ids, list) and ids:
        if len(ids) > 1:
            notes.add("one result answers several calls: kept as the first one's", at)
        return str(ids[0])
    found = call_id_of(raw, own=False)
    own = raw.get("id")
    if found is None and own is not None and str(own) in called:
        return str(own)
    if found is None and (named := named_call(raw, called)):
        notes.add(f"the id of a result's call stands in {named[0]!r}", at)
        return named[1]
    return found


def _reasoning(raw: Mapping[str, Any], notes: Notes, at: int) -> str | None:
    for key in _THOUGHTS:
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
