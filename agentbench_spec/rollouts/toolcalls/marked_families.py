"""Families whose arguments stand in tags, a tag each: GLM and Qwen3-Coder. Their types are those that the tool says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentbench_spec.rollouts.toolcalls.schema_faults import declared
from agentbench_spec.rollouts.toolcalls.spoken import Piece, Tools, Unreadable, blocks, call, read_json, up_to


def glm(text: str, tools: Tools) -> Iterator[Piece]:
    """`<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`."""

    def read(rest: str) -> tuple[list[Piece], str]:
        body, rest, _ = up_to(rest, "</tool_call>")
        name, _, pairs = body.partition("<arg_key>")
        return [_marked(name.strip(), _glm_pairs(pairs), tools)], rest

    return blocks(text, "<tool_call>", read)


def _glm_pairs(text: str) -> list[tuple[str, str]] | Unreadable:
    found = []
    for pair in text.split("<arg_key>") if text else ():
        key, closed, rest = pair.partition("</arg_key>")
        _, opened, value = rest.partition("<arg_value>")
        value, ended, _ = value.partition("</arg_value>")
        if not (closed and opened and ended):
            return Unreadable(f"argument {key.strip()[:40]!r} is not closed")
        found.append((key.strip(), value))
    return found


def qwen3_coder(text: str, tools: Tools) -> Iterator[Piece]:
    """`<tool_call><function=name><parameter=k>v</parameter></function></tool_call>`."""
    bare = re.sub(r"\s*</?tool_call>\s*", "", text)

    def read(rest: str) -> tuple[list[Piece], str]:
        body, rest, closed = up_to(rest, "</function>")
        name, found, inner = body.partition(">")
        if not found or not closed:
            return [Unreadable(f"the call of {name.strip()[:40]!r} is not closed by </function>")], rest
        return [_marked(name.strip(), _parameters(inner), tools)], rest

    return blocks(bare, "<function=", read)


def _parameters(text: str) -> list[tuple[str, str]] | Unreadable:
    found = []
    for part in text.split("<parameter=")[1:]:
        key, opened, value = part.partition(">")
        value, closed, _ = value.partition("</parameter>")
        if not (opened and closed):
            return Unreadable(f"parameter {key.strip()[:40]!r} is not closed")
        found.append((key.strip(), value.removeprefix("\n").removesuffix("\n")))
    return found


def _marked(name: str, pairs: list[tuple[str, str]] | Unreadable, tools: Tools) -> Piece:
    if isinstance(pairs, Unreadable):
        return pairs
    if not name or re.search(r"[\s<>{]", name):
        return Unreadable(f"{name[:40]!r} is no name of a function")
    known = (declared(tools, name) or {}).get("properties") or {}
    return call(name, {key: typed(value, known.get(key)) for key, value in pairs})


_WORDS = {"true": True, "false": False, "null": None, "none": None}


def typed(text: str, schema: Any) -> Any:
    """The value a tag holds, as its schema types it; text where that is asked for, or where it is nothing else."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    bare = text.strip()
    if "string" in kinds:
        return None if "null" in kinds and bare in ("null", "None") else text
    if bare.lower() in _WORDS:
        return _WORDS[bare.lower()]
    found = read_json(text)
    return text if isinstance(found, Unreadable) or found[1].strip() else found[0]
