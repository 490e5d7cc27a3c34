"""Messages that other libraries wrap: LangChain's classes and dictionaries, records around a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_wrapped_message", "unwrapped"]

_LANGCHAIN = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "HumanMessageChunk": "user",
    "AIMessageChunk": "assistant",
    "ToolMessageChunk": "tool",
    "SystemMessageChunk": "system",
}
"""LangChain's type or class -> role; a `chat` message names its own."""
_EXTRA_CALLS = ("tool_calls", "function_call", "reasoning_content")


def is_wrapped_message(value: Any) -> bool:
    """True for a message that names its role otherwise than by a member `role`."""
    return isinstance(value, Mapping) and not isinstance(value.get("role"), str) and _inner(value) is not value


def unwrapped(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """`raw` with role and content at the top; itself where they are, or where nothing is known of it."""
    return raw if isinstance(raw.get("role"), str) else _inner(raw)


def _inner(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    held, name = raw.get("kwargs"), raw.get("id")
    if raw.get("lc") is not None and isinstance(held, Mapping) and isinstance(name, list) and name:
        return _langchain(held, str(name[-1]), raw)
    kind, data = raw.get("type"), raw.get("data")
    if isinstance(kind, str) and isinstance(data, Mapping) and (kind in _LANGCHAIN or kind == "chat"):
        return _langchain(data, kind, raw)
    if isinstance(kind, str) and "content" in raw and kind in _LANGCHAIN:
        return _langchain(raw, kind, raw)
    author, message = raw.get("author"), raw.get("message")
    if isinstance(author, Mapping) and isinstance(author.get("role"), str):
        return {**raw, "role": author["role"]}
    if isinstance(message, Mapping) and isinstance(message.get("role"), str):
        return {**{key: value for key, value in raw.items() if key not in ("message", "type")}, **message}
    return raw


def _langchain(held: Mapping[str, Any], kind: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    role = _LANGCHAIN.get(kind) or held.get("role")
    if role is None:
        return raw
    message = {key: value for key, value in held.items() if key != "type"}
    extra = held.get("additional_kwargs")
    if isinstance(extra, Mapping):
        message |= {key: extra[key] for key in _EXTRA_CALLS if extra.get(key) and not message.get(key)}
    if message.get("tool_calls"):
        message.pop("function_call", None)
    return {"role": role, **message}
