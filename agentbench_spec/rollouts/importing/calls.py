"""Recorded tool calls and tool declarations to the rollout's form, with a note for every repair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentbench_spec.messages import ToolCall
from agentbench_spec.rollouts.importing.jsontext import embedded_json, jsonable, loads
from agentbench_spec.rollouts.importing.notes import Notes, RowFault, short

__all__ = ["RAW_ARGUMENTS", "call_of", "calls_of", "tools_of"]

RAW_ARGUMENTS = "_raw"
"""Name under which arguments stand that are no JSON object."""


def calls_of(raw: Mapping[str, Any], field: str, notes: Notes, at: int) -> tuple[ToolCall, ...]:
    """The calls of an assistant message: `tool_calls`, or `function_call` of the older form.

    field: path of the message; at: its index. Raises RowFault naming the call that cannot be read.
    """
    listed = raw.get("tool_calls")
    if isinstance(listed, str):
        notes.add("tool_calls given as text: parsed", at)
        listed = embedded_json(listed, f"{field}.tool_calls", lambda text: notes.add(text, at)) if listed else None
    if not listed and raw.get("function_call"):
        notes.add("function_call of the older form: read as a tool call", at)
        listed = [raw["function_call"]]
    if not listed:
        return ()
    if not isinstance(listed, Sequence):
        raise RowFault(f"{field}.tool_calls", f"expected a list, found {short(listed)}")
    return tuple(call_of(call, f"{field}.tool_calls[{i}]", notes, at) for i, call in enumerate(listed))


def call_of(raw: Any, field: str, notes: Notes, at: int) -> ToolCall:
    """A `ToolCall` from OpenAI's {"id", "function": {"name", "arguments"}} or the flat {"name", "arguments"}."""
    function = raw.get("function", raw) if isinstance(raw, Mapping) else raw
    if not isinstance(raw, Mapping) or not isinstance(function, Mapping):
        raise RowFault(field, f"expected a call object, found {short(raw)}")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RowFault(f"{field}.function.name", f"expected the name of a function, found {short(name)}")
    arguments, recorded = _arguments(function.get("arguments"), notes, at)
    call_id = raw.get("id")
    return ToolCall(name=name, arguments=arguments, id="" if call_id is None else str(call_id), raw_arguments=recorded)


def _arguments(raw: Any, notes: Notes, at: int) -> tuple[dict[str, Any], str | None]:
    """(arguments as an object, the recorded text if they were text)."""

    def say(text: str) -> None:
        notes.add(text, at)

    if isinstance(raw, Mapping):
        return jsonable(dict(raw), say), None
    if raw is None:
        say("call arguments are null or absent: read as none")
        return {}, None
    if not isinstance(raw, str):
        say(f"call arguments are no object: kept under {RAW_ARGUMENTS!r}")
        return {RAW_ARGUMENTS: jsonable(raw, say)}, None
    if not raw.strip():
        say("call arguments are an empty text: read as none")
        return {}, raw
    return _parsed_arguments(raw, notes, at), raw


def _parsed_arguments(raw: str, notes: Notes, at: int) -> dict[str, Any]:
    try:
        value = loads(raw, lambda text: notes.add(text, at))
    except RowFault:
        notes.add(f"call arguments are no JSON: kept as text under {RAW_ARGUMENTS!r}", at)
        return {RAW_ARGUMENTS: raw}
    if isinstance(value, dict):
        return dict(jsonable(value, lambda text: notes.add(text, at)))
    notes.add(f"call arguments are no object: kept as text under {RAW_ARGUMENTS!r}", at)
    return {RAW_ARGUMENTS: raw}


def tools_of(raw: Any, field: str, notes: Notes) -> tuple[dict[str, Any], ...]:
    """Tool declarations as {"type": "function", "function": {...}}, from a list, JSON text, or a list of JSON texts.

    Raises RowFault naming the tool that has no name.
    """
    if raw is None or raw == "":
        return ()
    if isinstance(raw, str):
        notes.add("tools given as text: parsed")
        raw = embedded_json(raw, field, notes.add)
    if isinstance(raw, Mapping):
        raw = [raw]
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise RowFault(field, f"expected a list of tool declarations, found {short(raw)}")
    return tuple(_tool(tool, f"{field}[{i}]", notes) for i, tool in enumerate(raw))


def _tool(raw: Any, field: str, notes: Notes) -> dict[str, Any]:
    if isinstance(raw, str):
        notes.add("a tool declaration given as text: parsed")
        raw = embedded_json(raw, field, notes.add)
    function = raw.get("function", raw) if isinstance(raw, Mapping) else None
    if not (isinstance(function, Mapping) and isinstance(function.get("name"), str) and function["name"]):
        raise RowFault(f"{field}.function.name", f"expected a declaration with a name, found {short(raw)}")
    if "function" in raw:
        return dict(jsonable({"type": "function", **raw}, notes.add))
    notes.add("a tool declaration in flat form: wrapped as a function")
    renamed = {"input_schema": "parameters"}
    flat = {renamed.get(key, key): value for key, value in function.items() if key != "type"}
    return {"type": "function", "function": jsonable(flat, notes.add)}
