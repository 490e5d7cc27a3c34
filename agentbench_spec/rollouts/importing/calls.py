"""Recorded tool calls and tool declarations to the rollout's form, with a note for every repair."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from agentbench_spec.messages import ToolCall
from agentbench_spec.rollouts.importing.jsontext import embedded_json, jsonable, loads
from agentbench_spec.rollouts.importing.lost_words import is_left_out_kind, word_keys
from agentbench_spec.rollouts.importing.notes import Notes, RowFault, short

__all__ = ["CALL_KEYS", "RAW_ARGUMENTS", "call_id_of", "call_of", "calls_of", "named_call", "tools_of"]

RAW_ARGUMENTS = "_raw"
"""Name under which arguments stand that are no JSON object."""
CALL_KEYS = ("tool_calls", "toolCalls", "function_call", "functionCall", "invalid_tool_calls")
"""Members of a message that hold its calls."""
_NAMES = ("name", "function_name", "functionName", "tool_name", "toolName", "tool")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "kwargs", "params", "tool_input", "toolInput", "partial_json")
_IDS = ("call_id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "callId", "id")
_WORDS = ("content", "text", "output", "name", "role", "type")
_KNOWN = frozenset((*_NAMES, *_ARGUMENTS, *_IDS, "function", "error", "index", "requestor"))


def calls_of(raw: Mapping[str, Any], field: str, notes: Notes, at: int) -> tuple[ToolCall, ...]:
    """The calls of an assistant message: `tool_calls`, or `function_call` of the older form.

    field: path of the message; at: its index. Raises RowFault naming the call that cannot be read.
    """
    made: list[ToolCall] = []
    for key in CALL_KEYS:
        listed = raw.get(key)
        if not listed or (made and key.startswith("function")):
            continue
        if isinstance(listed, str):
            notes.add(f"{key} given as text: parsed", at)
            listed = embedded_json(listed, f"{field}.{key}", lambda text: notes.add(text, at))
        if key == "function_call" and isinstance(listed, Mapping):
            notes.add("function_call of the older form: read as a tool call", at)
        listed = [listed] if isinstance(listed, Mapping) else listed
        if not isinstance(listed, Sequence):
            raise RowFault(f"{field}.{key}", f"expected a list, found {short(listed)}")
        made += (call_of(call, f"{field}.{key}[{i}]", notes, at) for i, call in enumerate(listed))
    return tuple(made)


def call_of(raw: Any, field: str, notes: Notes, at: int) -> ToolCall:
    """A `ToolCall` from OpenAI's {"id", "function": {"name", "arguments"}} or the flat {"name", "arguments"}.

    The arguments may stand under any name that libraries give them. Raises RowFault for a call without a name, and
    for one whose arguments stand under a name that nobody knows.
    """
    function = raw.get("function", raw) if isinstance(raw, Mapping) else raw
    if isinstance(function, str) and function:
        function = {"name": function}
    if not isinstance(raw, Mapping) or not isinstance(function, Mapping):
        raise RowFault(field, f"expected a call object, found {short(raw)}")
    name = next((function[key] for key in _NAMES if isinstance(function.get(key), str) and function[key]), None)
    if name is None:
        raise RowFault(
            f"{field}.function.name", f"expected the name of a function, found {short(function.get('name'))}"
        )
    arguments, recorded = _arguments(_recorded_arguments(raw, function, field), notes, at)
    return ToolCall(name=name, arguments=arguments, id=call_id_of(raw) or "", raw_arguments=recorded)


def call_id_of(raw: Mapping[str, Any], *, own: bool = True) -> str | None:
    """The id that a call has, or that a result answers; own: the plain `id` counts as well."""
    names = _IDS if own else _IDS[:-1]
    return next((str(raw[key]) for key in names if raw.get(key) not in (None, "") and _is_id(raw[key])), None)


def named_call(raw: Mapping[str, Any], called: Container[str]) -> tuple[str, str] | None:
    """(member, id) where one member of a result, or of an object in it, is the id of a call made before.

    called: those ids. None if no member or several calls are named.
    """
    found: dict[str, str] = {}
    for key, value in raw.items():
        for item in value.values() if isinstance(value, Mapping) else (value,):
            if key not in _WORDS and isinstance(item, str) and item in called:
                found[item] = str(key)
    return next(((key, name) for name, key in found.items()), None) if len(found) == 1 else None


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _recorded_arguments(raw: Mapping[str, Any], function: Mapping[str, Any], field: str) -> Any:
    holders = (function, raw)
    found = [holder[key] for holder in holders for key in _ARGUMENTS if holder.get(key) not in (None, "")]
    if found:
        return found[0]
    for holder in holders:
        odd = [str(k) for k, v in holder.items() if k not in _KNOWN and isinstance(v, Mapping) and v]
        odd = [key for key in odd if not is_left_out_kind(key)] or word_keys(holder, _KNOWN)
        if odd:
            raise RowFault(field, f"no `arguments`, but {odd[0]!r} holds {short(holder[odd[0]])}; rename it")
    return next((holder[key] for holder in holders for key in _ARGUMENTS if holder.get(key) == ""), None)


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
    return tuple(found for i, tool in enumerate(raw) for found in _tools(tool, f"{field}[{i}]", notes))


def _tools(raw: Any, field: str, notes: Notes) -> list[dict[str, Any]]:
    """The declarations in one item: Gemini's holds several."""
    for key in ("functionDeclarations", "function_declarations"):
        if isinstance(raw, Mapping) and isinstance(raw.get(key), list):
            return [_tool(tool, f"{field}.{key}[{i}]", notes) for i, tool in enumerate(raw[key])]
    return [_tool(raw, field, notes)]


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
    renamed = {"input_schema": "parameters", "inputSchema": "parameters", "parametersJsonSchema": "parameters"}
    flat = {renamed.get(key, key): value for key, value in function.items() if key != "type"}
    return {"type": "function", "function": jsonable(flat, notes.add)}
