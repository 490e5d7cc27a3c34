"""Do the arguments of a call fit what the tool declares? A fault is a sentence for the model.

Read of a JSON schema are type, enum, required, properties, items, anyOf, oneOf and additionalProperties; any other
word of it forbids nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentbench_spec.rollout import ToolCall
from agentbench_spec.rollouts.toolcalls.spoken import Tools

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def declared(tools: Tools, name: str) -> dict[str, Any] | None:
    """The schema of the arguments of the tool called `name`; None if there is no such tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, dict) else {}
    return None


def call_faults(call: ToolCall, tools: Tools) -> list[str]:
    """Why the call does not fit the tool it names, in words; empty if it does, or if there is no such tool."""
    schema = declared(tools, call.name)
    return [] if schema is None else [f"{call.name}: {fault}" for fault in _faults(call.arguments, schema, "arguments")]


def _faults(value: Any, schema: Any, where: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if kinds and all(kind in _TYPES for kind in kinds) and not any(_is(value, kind) for kind in kinds):
        yield f"{where} must be of type {' or '.join(kinds)}, found {_shown(value)}"
        return
    if isinstance(options := schema.get("enum"), list) and not any(same_value(value, one) for one in options):
        yield f"{where} must be one of {', '.join(map(_shown, options))}, found {_shown(value)}"
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if isinstance(choices, list) and choices and all(any(_faults(value, one, where)) for one in choices):
            yield f"{where} fits none of the {len(choices)} forms it may have"
    if isinstance(value, dict):
        yield from _object_faults(value, schema, where)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _faults(item, schema.get("items"), f"{where}[{i}]")


def _object_faults(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in value:
            yield f"{where} lack {name!r}"
    for name, own in value.items():
        if name in properties:
            yield from _faults(own, properties[name], f"{where}.{name}")
        elif schema.get("additionalProperties") is False or (properties and "additionalProperties" not in schema):
            yield f"{where} have no {name[:40]!r}; known: {', '.join(properties) or 'none'}"


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def same_value(one: Any, other: Any) -> bool:
    """True if two JSON values are the same: 1 is 1.0, and true is no 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return bool(one == other)
