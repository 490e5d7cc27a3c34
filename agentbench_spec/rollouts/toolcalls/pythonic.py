"""Calls written as Python, `[f(a=1), g(b="x")]`: parsed as a tree of which only literals are taken, never evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from agentbench_spec.rollouts.toolcalls.schema_faults import declared
from agentbench_spec.rollouts.toolcalls.spoken import Piece, Tools, Unreadable, call, without_fence

_MARKS = (
    "<|python_start|>",
    "<|python_end|>",
    "<|python_tag|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|eom_id|>",
)
_MOST = 100_000
_NAMES = {"true": True, "false": False, "null": None}


def pythonic(text: str, tools: Tools) -> Iterator[Piece]:
    """A list of calls of literals, the whole text or between marks (Llama 3.2 and 4, LFM2)."""
    marked = any(mark in text for mark in _MARKS)
    inner = text
    for mark in _MARKS:
        inner = inner.replace(mark, "")
    inner = without_fence(inner).strip()
    if not marked and not inner.startswith("["):
        yield text
        return
    pieces = list(_calls(inner, tools))
    names = [f"{tool['function']['name']}(" for tool in tools]
    meant = marked or any(not isinstance(piece, Unreadable) for piece in pieces) or any(n in inner for n in names)
    yield from pieces if meant else [text]


def _calls(text: str, tools: Tools) -> Iterator[Piece]:
    if len(text) > _MOST:
        yield Unreadable(f"a list of calls may have {_MOST:,} characters, this one has {len(text):,}")
        return
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield Unreadable(f"not a list of calls: {getattr(error, 'msg', None) or type(error).__name__}")
        return
    for node in tree.elts if isinstance(tree, ast.List) else [tree]:
        yield _call(node, tools)


def _call(node: ast.expr, tools: Tools) -> Piece:
    try:
        if not isinstance(node, ast.Call):
            raise ValueError("each element of the list must be a call, such as f(a=1)")
        name = ast.unparse(node.func)
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name[:40]!r} is no name of a function")
        names = list((declared(tools, name) or {}).get("properties") or {})
        if len(node.args) > len(names):
            raise ValueError(f"arguments of {name} are given by name")
        given = {key: _literal(value) for key, value in zip(names, node.args, strict=False)}
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in given:
                raise ValueError(f"arguments of {name} are given once each, by name")
            given[keyword.arg] = _literal(keyword.value)
    except (ValueError, RecursionError, MemoryError) as error:
        return Unreadable(str(error) or type(error).__name__)
    return call(name, given)


def _literal(node: ast.expr) -> Any:
    """The literal, tuples as lists. Raises ValueError for anything else."""
    match node:
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Constant(value=str() | bool() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values) if all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys
        ):
            return {_literal(key): _literal(value) for key, value in zip(keys, values, strict=True) if key is not None}
    raise ValueError(f"{ast.unparse(node)[:40]!r} is no literal")
