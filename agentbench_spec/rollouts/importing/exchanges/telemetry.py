"""OpenTelemetry spans of model calls (`gen_ai.*`, OpenLLMetry, OpenInference) as rows of one request each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentbench_spec.rollouts.importing.exchanges.model_call import parsed
from agentbench_spec.rollouts.importing.lost_words import is_left_out_kind, word_keys
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["holds_spans", "request_rows"]

_PREFIXES = ("gen_ai.", "llm.", "openinference.", "traceloop.")
_INPUTS = ("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "gen_ai.request.messages", "input.value")
_OUTPUTS = (
    "gen_ai.output.messages",
    "gen_ai.completion",
    "llm.output_messages",
    "gen_ai.response.messages",
    "output.value",
)
_SYSTEM = ("gen_ai.system_instructions", "gen_ai.system.instructions")
_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions", "llm.tools")
_SESSIONS = ("gen_ai.conversation.id", "session.id", "langfuse.session.id")
_NOT_CALLS = ("invoke_agent", "create_agent", "execute_tool", "embeddings", "invoke_workflow")
_NUMBERED = re.compile(r"\.(\d+)\.")


def holds_spans(value: Any) -> bool:
    """True for a span of a model call, a trace, or an OTLP document."""
    return isinstance(value, Mapping) and any(_is_call_span(span) for span in _spans(value))


def request_rows(row: Row) -> Iterator[Row]:
    """One row a model call in the spans of `row`, in the order they began."""
    spans = list(_spans(row.value))
    calls = [span for span in spans if _is_call_span(span)]
    chats = [span for span in calls if _attributes(span).get("gen_ai.operation.name") not in _NOT_CALLS]
    calls = sorted(chats or calls, key=_start)
    notes = list(row.repairs)
    if others := len(spans) - len(calls):
        names = dict.fromkeys(str(span.get("name") or "?") for span in spans if span not in calls)
        notes.append(f"{others} spans that are no model call were left out: {', '.join(names)}")
    trace = row.value.get("trace_id") or row.value.get("traceId")
    for number, span in enumerate(calls, row.number):
        value, unread = _request(span, trace)
        found = [f"attributes of spans were left out: {', '.join(unread)}"] if unread else []
        yield Row(row.path, number, value, repairs=[*notes, *found])


def _spans(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The spans in a document, a trace or a row."""
    nested = [value[key] for key in _NESTING if isinstance(value.get(key), list)]
    if not nested:
        yield value
    for items in nested:
        for item in items:
            if isinstance(item, Mapping):
                yield from _spans(item)


_NESTING = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "data", "traces")


def _is_call_span(span: Mapping[str, Any]) -> bool:
    found = _attributes(span)
    return any(key.startswith(_PREFIXES) for key in found) and _messages(span, found, _INPUTS) is not None


def _start(span: Mapping[str, Any]) -> tuple[int, str]:
    """Sorts by the start, given as a number or as a text of one form."""
    for key in ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime"):
        if span.get(key) is not None:
            text = str(span[key])
            return len(text.partition(".")[0]) if text[:1].isdigit() and "-" not in text else 0, text
    return 0, ""


def _request(span: Mapping[str, Any], trace: Any) -> tuple[dict[str, Any], list[str]]:
    """(the call as {"input", "output", ...}, attributes with words that are not read)."""
    found = _attributes(span)
    session = next((found[key] for key in _SESSIONS if found.get(key)), None)
    session = session or span.get("trace_id") or span.get("traceId") or span.get("traceID") or trace
    value = {
        "session_id": None if session is None else str(session),
        "model": found.get("gen_ai.request.model") or found.get("llm.model_name"),
        "input": _messages(span, found, _INPUTS),
        "output": _messages(span, found, _OUTPUTS),
        "system": next((parsed(found[key]) for key in _SYSTEM if found.get(key)), None),
        "tools": next((tools for key in _TOOLS if (tools := _listed(found, key))), None),
    }
    read = (*_INPUTS, *_OUTPUTS, *_SYSTEM, *_TOOLS)
    rest = [key for key in word_keys(found) if not key.startswith(read) and not is_left_out_kind(key.split(".")[-1])]
    rest = [key for key in rest if not isinstance(found[key], str) or " " in found[key].strip()]
    return {key: item for key, item in value.items() if item is not None}, rest


def _messages(span: Mapping[str, Any], found: Mapping[str, Any], keys: tuple[str, ...]) -> list[Any] | None:
    """The messages under the first of `keys` that has any: JSON, numbered attributes, or events of the span."""
    for key in keys:
        listed = _listed(found, key)
        if isinstance(listed, Mapping):
            listed = listed.get("messages") or listed.get("choices")
        if isinstance(listed, list) and listed:
            return [_message(item) for item in listed]
    return _of_events(span, prompts=keys is _INPUTS)


def _message(item: Any) -> Any:
    if isinstance(item, Mapping) and isinstance(item.get("message"), Mapping):
        item = item["message"]
    if isinstance(item, Mapping) and isinstance(item.get("tool_calls"), list):
        calls = [call.get("tool_call", call) if isinstance(call, Mapping) else call for call in item["tool_calls"]]
        return {**item, "tool_calls": calls}
    return item


def _listed(found: Mapping[str, Any], key: str) -> Any:
    """What stands under `key`, or is spread over `key.0.role`, `key.0.content`, ..."""
    if found.get(key) is not None:
        return parsed(found[key])
    numbered = {name[len(key) :]: value for name, value in found.items() if name.startswith(f"{key}.")}
    if not any(_NUMBERED.match(name) for name in numbered):
        return None
    tree: dict[str, Any] = {}
    for name, value in numbered.items():
        holder, *parts = tree, *name.strip(".").split(".")
        for part in parts[:-1]:
            holder = holder.setdefault(part, {}) if isinstance(holder, dict) else {}
        if isinstance(holder, dict):
            holder[parts[-1]] = value
    return _as_lists(tree)


def _as_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if tree and all(key.isdigit() for key in tree):
        return [_as_lists(tree[key]) for key in sorted(tree, key=int)]
    return {key: _as_lists(value) for key, value in tree.items()}


def _of_events(span: Mapping[str, Any], *, prompts: bool) -> list[Any] | None:
    """Messages that the older conventions put into events of the span."""
    out: list[Any] = []
    for event in span.get("events") or ():
        name = str(event.get("name", "")) if isinstance(event, Mapping) else ""
        held = _attributes(event) if name.startswith("gen_ai.") else {}
        whole = parsed(held.get("gen_ai.prompt" if prompts else "gen_ai.completion"))
        if isinstance(whole, list):
            out += whole
        elif prompts and name.endswith(".message"):
            out.append({"role": name.split(".")[1], **{k: parsed(v) for k, v in held.items() if "." not in k}})
        elif not prompts and name == "gen_ai.choice":
            held = {key: parsed(value) for key, value in held.items() if "." not in key}
            inner = held.get("message")
            out.append({"role": "assistant", **(inner if isinstance(inner, Mapping) else held)})
    return out or None


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span by their dotted names, whatever form they have."""
    found: dict[str, Any] = {key: value for key, value in span.items() if str(key).startswith(_PREFIXES)}
    for key in ("attributes", "tags", "span_attributes", "body"):
        held = parsed(span.get(key))
        if isinstance(held, list):
            pairs = [pair for pair in held if isinstance(pair, Mapping) and isinstance(pair.get("key"), str)]
            found |= {pair["key"]: _plain(pair.get("value")) for pair in pairs}
        elif isinstance(held, Mapping):
            found |= dict(_flat(held, ""))
    return found


def _flat(held: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in held.items():
        name = f"{before}{key}"
        whole = name in (*_INPUTS, *_OUTPUTS, *_SYSTEM, *_TOOLS)
        if isinstance(value, Mapping) and not whole and (not before or before.startswith(_PREFIXES)):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _plain(value: Any) -> Any:
    """The value in OTLP's {"stringValue": ...} and its relatives."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    (kind, inner), *_ = value.items()
    if kind in ("arrayValue", "array_value") and isinstance(inner, Mapping):
        return [_plain(item) for item in inner.get("values") or ()]
    if kind in ("kvlistValue", "kvlist_value") and isinstance(inner, Mapping):
        return {pair["key"]: _plain(pair.get("value")) for pair in inner.get("values") or () if "key" in pair}
    return inner if re.fullmatch(r"(string|int|double|bool|bytes)_?[vV]alue", str(kind)) else value
