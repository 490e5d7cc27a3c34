"""Families whose calls are JSON: in tags (Hermes, Qwen, SmolLM2), after a mark (Mistral, DeepSeek, Kimi), or bare."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentbench_spec.rollout import ToolCall
from agentbench_spec.rollouts.toolcalls.schema_faults import declared
from agentbench_spec.rollouts.toolcalls.spoken import (
    Piece,
    Tools,
    Unreadable,
    blocks,
    call,
    calls_of,
    read_json,
    up_to,
    without_fence,
)


def hermes(text: str, tools: Tools) -> Iterator[Piece]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, a block a call: Hermes, Qwen, SmolLM2."""
    return blocks(text, "<tool_call>", lambda rest: _json_block(rest, "</tool_call>"))


def granite(text: str, tools: Tools) -> Iterator[Piece]:
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]`, closed or not: Granite, Phi."""
    return blocks(text, "<|tool_call|>", lambda rest: _json_block(rest, "<|/tool_call|>"))


def _json_block(rest: str, closes: str) -> tuple[list[Piece], str]:
    """The values up to the closing tag; a value may hold the tag in its strings, and the last tag may be missing."""
    pieces, rest = _json_values(rest, closes)
    return pieces or [Unreadable("the call is empty")], rest


def _json_values(text: str, closes: str = "") -> tuple[list[Piece], str]:
    """(the calls up to `closes`, or to the end, what follows)."""
    pieces: list[Piece] = []
    while (text := text.lstrip(" \t\r\n,;")) and not (closes and text.startswith(closes)):
        found = read_json(text)
        if isinstance(found, Unreadable):
            return [*pieces, found], up_to(text, closes)[1] if closes else ""
        value, text = found
        pieces += calls_of(value)
    return pieces, text.removeprefix(closes)


def bare(text: str, tools: Tools) -> Iterator[Piece]:
    """The whole text is JSON, an object a call; a text that is not so is an answer."""
    inner = without_fence(text).strip()
    if not inner.startswith(("{", "[")):
        yield text
        return
    pieces, _ = _json_values(inner)
    called = any(isinstance(piece, ToolCall) and declared(tools, piece.name) is not None for piece in pieces)
    shaped = '"name"' in inner and re.search(r'"(?:arguments|parameters)"\s*:', inner)
    yield from pieces if called or shaped else [text]


def llama3(text: str, tools: Tools) -> Iterator[Piece]:
    """`{"name": ..., "parameters": {...}}`, several parted by ";", with `<|python_tag|>` before or without it."""
    before, tagged, rest = text.partition("<|python_tag|>")
    if not tagged:
        yield from bare(text, tools)
        return
    if before.strip():
        yield before
    pieces, _ = _json_values(rest.strip().removesuffix("<|eom_id|>"))
    yield from pieces or [Unreadable("the call is empty")]


def mistral(text: str, tools: Tools) -> Iterator[Piece]:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or `[TOOL_CALLS]name[ARGS]{...}`, a mark a call."""
    return blocks(text, "[TOOL_CALLS]", _after_mark)


def _after_mark(rest: str) -> tuple[list[Piece], str]:
    rest = rest.lstrip()
    if rest.startswith(("[", "{")) and not rest.startswith(("[ARGS]", "[CALL_ID]")):
        return _values(rest)
    head = re.match(r"([^\[{\s]+)\s*(?:\[CALL_ID\]([^\[]*))?(?:\[ARGS\])?", rest)
    if head is None:
        return [Unreadable("a name and its arguments must follow [TOOL_CALLS]")], ""
    found = read_json(rest[head.end() :])
    if isinstance(found, Unreadable):
        return [Unreadable(f"the arguments of {head[1]} cannot be read: {found.why}")], ""
    return [call(head[1], found[0], id=(head[2] or "").strip())], found[1]


def _values(rest: str) -> tuple[list[Piece], str]:
    found = read_json(rest)
    return ([found], "") if isinstance(found, Unreadable) else (list(calls_of(found[0])), found[1])


def deepseek(text: str, tools: Tools) -> Iterator[Piece]:
    """`<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`, or type, name and fenced JSON (V3, R1)."""
    for mark in ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"):
        text = text.replace(mark, "")
    return blocks(text, "<｜tool▁call▁begin｜>", _separated)


def _separated(rest: str) -> tuple[list[Piece], str]:
    head, found, tail = rest.partition("<｜tool▁sep｜>")
    if not found:
        return [Unreadable("<｜tool▁sep｜> must stand between name and arguments")], ""
    body, rest, _ = up_to(tail, "<｜tool▁call▁end｜>")
    name, arguments = head.strip(), body
    if name == "function" and not body.lstrip().startswith("{"):
        name, _, arguments = body.strip().partition("\n")
    return [call(name.strip(), without_fence(arguments).strip() or "{}")], rest


def kimi(text: str, tools: Tools) -> Iterator[Piece]:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`."""
    for mark in ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"):
        text = text.replace(mark, "")
    return blocks(text, "<|tool_call_begin|>", _numbered)


def _numbered(rest: str) -> tuple[list[Piece], str]:
    body, rest, _ = up_to(rest, "<|tool_call_end|>")
    head, found, arguments = body.partition("<|tool_call_argument_begin|>")
    if not found:
        return [Unreadable("<|tool_call_argument_begin|> must stand between name and arguments")], rest
    name = head.strip().removeprefix("functions.").rpartition(":")
    return [call(name[0] or name[2], arguments.strip() or "{}", id=head.strip())], rest


def harmony(text: str, tools: Tools) -> Iterator[Piece]:
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>` (gpt-oss)."""
    for part in text.split("<|channel|>"):
        head, found, body = part.partition("<|message|>")
        body = re.split(r"<\|(?:call|end|return)\|>", body)[0]
        if not found:
            yield part
        elif to := re.search(r"to=(?:functions\.)?([^\s<]+)", head):
            yield call(to[1], body.strip() or "{}")
        elif not head.startswith("analysis"):
            yield body
