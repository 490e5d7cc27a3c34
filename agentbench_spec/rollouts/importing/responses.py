"""Items of OpenAI's Responses API as chat messages: the items of one reply become one assistant message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentbench_spec.rollouts.importing.notes import Notes

__all__ = ["is_response_item", "joined_items"]

_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "computer_call": "action",
    "mcp_call": "arguments",
}
"""Type of an item that is a call -> where its arguments stand."""
_RESULTS = frozenset(f"{kind}_output" for kind in _CALLS)
_SERVER_SIDE = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call")
_BOOKKEEPING = ("item_reference", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction")
_OTHER = (*_SERVER_SIDE, *_BOOKKEEPING, "ghost_snapshot")
_TYPES = frozenset((*_CALLS, *_RESULTS, *_OTHER, "reasoning"))
_MARKS = (
    "call_id",
    "summary",
    "encrypted_content",
    "output",
    "status",
    "arguments",
    "input",
    "action",
    "id",
    "content",
)


def is_response_item(value: Any) -> bool:
    """True for a call, an output, a thought or a message of the Responses API, in a list or on a line of its own."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "message":
        return isinstance(value.get("role"), str) and "content" in value
    return isinstance(kind, str) and kind in _TYPES and "role" not in value and any(mark in value for mark in _MARKS)


def joined_items(items: Sequence[Any], notes: Notes, at: int) -> list[tuple[int, Any]]:
    """(position, chat message) of `items`, where those of the Responses API are put together.

    A thought, a text and calls that follow one another, without a result between, are one reply. A list without
    such items comes back as it is. at: index of the first message, for the notes.
    """
    if not any(is_response_item(item) and item.get("type") != "message" for item in items):
        return list(enumerate(items))
    out: list[tuple[int, Any]] = []
    reply: dict[str, Any] | None = None
    for i, item in enumerate(items):
        kind = item.get("type") if is_response_item(item) else None
        if kind in _RESULTS:
            reply = None
            out.append((i, _result(item)))
        elif kind in _OTHER:
            notes.add(f"items of type {kind!r}, which no prompt shows as text, were left out")
            notes.left_out_part(item)
        elif kind is None or (kind == "message" and item["role"] != "assistant"):
            reply = None
            out.append((i, item))
        else:
            if reply is None:
                reply = {"role": "assistant", "content": []}
                out.append((i, reply))
            else:
                notes.add("items of one reply were joined into one message", at + len(out) - 1)
            _join(reply, item, notes)
    return [(i, item) for i, item in out if not _says_nothing(item)]


def _join(reply: dict[str, Any], item: Mapping[str, Any], notes: Notes) -> None:
    kind = str(item["type"])
    if kind == "message":
        content = item["content"]
        reply["content"] = [*reply["content"], *(content if isinstance(content, list) else [content])]
        notes.left_out_part({key: value for key, value in item.items() if key != "content"})
    elif kind == "reasoning":
        found = [item[key] for key in ("content", "summary", "text") if item.get(key)]
        reply["content"].append({"type": "reasoning", "summary": found})
        if item.get("encrypted_content") and not found:
            notes.add("encrypted reasoning, which nobody can read, was left out")
    else:
        name = item.get("name") or kind.removesuffix("_call")
        call = {"name": name, "arguments": item.get(_CALLS[kind]), "id": item.get("call_id") or item.get("id")}
        reply.setdefault("tool_calls", []).append(call)
        if kind == "mcp_call" and item.get("output"):
            notes.add("the result of a call that the server itself ran was left out")
            notes.left_out_part(item["output"])


def _result(item: Mapping[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    if isinstance(output, Mapping) and not isinstance(output.get("type"), str):
        output = json.dumps(output, ensure_ascii=False)
    return {"role": "tool", "content": output, "tool_call_id": item.get("call_id") or item.get("id")}


def _says_nothing(item: Any) -> bool:
    """True for a reply of ours that holds neither text nor calls: a thought that is encrypted."""
    if not isinstance(item, Mapping) or item.keys() - {"role", "content"} or item.get("role") != "assistant":
        return False
    content = item.get("content")
    parts = content if isinstance(content, list) else [content]
    return bool(parts) and all(
        isinstance(p, Mapping) and p.get("type") == "reasoning" and not p["summary"] for p in parts if p != ""
    )
