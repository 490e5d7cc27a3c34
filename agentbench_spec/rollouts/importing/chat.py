"""Lists of chat messages: OpenAI's form and its relatives, ShareGPT's, prompts in turns, mini-swe-agent, tau-bench,
SWE-smith, SWE-Gym, and both nebius sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentbench_spec.messages import Message
from agentbench_spec.rollouts.importing.calls import call_of
from agentbench_spec.rollouts.importing.draft import Draft, items_of
from agentbench_spec.rollouts.importing.jsontext import embedded_json
from agentbench_spec.rollouts.importing.lost_words import is_system_key
from agentbench_spec.rollouts.importing.notes import RowFault, short
from agentbench_spec.rollouts.importing.shapes import is_message_list

__all__ = ["inspect_ai", "mini_swe_agent", "nebius", "openai_chat", "sharegpt", "turns"]

_BODIES = ("messages", "trajectory", "traj", "history", "conversations", "conversation", "contents", "turns")


def _body(value: Any, draft: Draft) -> tuple[list[Any], str, Mapping[str, Any]]:
    """(list of messages, its path, the row around it)."""
    if isinstance(value, list):
        return value, "", {}
    if not isinstance(value, Mapping):
        raise RowFault(None, f"expected an object or a list of messages, found {type(value).__name__}")
    key = next((key for key in _BODIES if value.get(key) is not None), "")
    if not key and (key := next((str(k) for k in value if is_message_list(value[k])), "")):
        draft.notes.add(f"the messages stand in {key!r}")
    items = items_of(value, key or "messages", draft.notes)
    if key == "turns":
        items = [
            embedded_json(m, f"turns[{i}]", draft.notes.add) if isinstance(m, str) else m for i, m in enumerate(items)
        ]
    return items, key, value


def openai_chat(value: Any, draft: Draft) -> None:
    """{"messages": [...], "tools": [...]} or a bare list of messages."""
    items, where, row = _body(value, draft)
    draft.add_all(items, where)
    _reference(row, draft)
    _surroundings(row, draft)


def inspect_ai(value: Any, draft: Draft) -> None:
    """A sample of an inspect_ai log, whose long texts stand in `attachments`. Raises RowFault if one is missing."""
    if not isinstance(value, Mapping):
        raise RowFault(None, f"expected a sample object, found {type(value).__name__}")
    attached = value.get("attachments")
    found = _with_attachments(dict(value), attached if isinstance(attached, Mapping) else {}, "")
    openai_chat(found, draft)
    draft.notes.left_out_part([f"{_ATTACHMENT}{name}" for name in attached or ()])


def _with_attachments(value: Any, attached: Mapping[str, Any], where: str) -> Any:
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        text = attached.get(value.removeprefix(_ATTACHMENT))
        if not isinstance(text, str):
            raise RowFault(where, f"{short(value)} is not among the attachments of the sample")
        return text
    if isinstance(value, list):
        return [_with_attachments(item, attached, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        wanted = value.items() if where else ((key, value[key]) for key in value if key in _OF_A_SAMPLE)
        more = {key: _with_attachments(item, attached, f"{where}.{key}".lstrip(".")) for key, item in wanted}
        return {**value, **more}
    return value


_ATTACHMENT = "attachment://"
_OF_A_SAMPLE = ("messages", "tools", "input")


def _reference(row: Mapping[str, Any], draft: Draft) -> None:
    """The recorded last reply, where it stands beside the messages."""
    text = row.get("reference_response")
    if isinstance(text, str) and text and draft.messages and draft.messages[-1].role != "assistant":
        draft.notes.add("the last reply stood beside the messages: appended", len(draft.messages))
        draft.add({"role": "assistant", "content": text}, "reference_response")


def _surroundings(row: Mapping[str, Any], draft: Draft) -> None:
    """The system prompt and the tools that stand beside the messages."""
    for key in (key for key in row if is_system_key(key)):
        draft.add_system(row[key], key)
    for key in ("tools", "functions", "tool_definitions", "toolConfig"):
        draft.declare(row.get(key), key)


def mini_swe_agent(value: Any, draft: Draft) -> None:
    """mini-swe-agent: chat messages; a closing user message without text is bookkeeping."""
    openai_chat(value, draft)
    info = value.get("info") if isinstance(value, Mapping) else None
    if isinstance(info, Mapping) and isinstance(info.get("exit_status"), str):
        draft.labels["exit_status"] = info["exit_status"]
    while draft.messages and draft.messages[-1].role == "user" and not draft.messages[-1].content:
        draft.messages.pop()
        draft.notes.add("a closing user message without text is no chat turn: left out", len(draft.messages))


def nebius(value: Any, draft: Draft) -> None:
    """nebius SWE-agent trajectories: {role: system|user|ai, text, system_prompt, mask, cutoff_date}."""
    items = items_of(value, "trajectory", draft.notes)
    for i, item in enumerate(items):
        where = f"trajectory[{i}]"
        if not isinstance(item, Mapping):
            raise RowFault(where, f"expected a message object, found {short(item)}")
        text = item.get("text")
        if text is None and item.get("system_prompt") is not None:
            text = item["system_prompt"]
        draft.add({"role": item.get("role"), "content": text}, where)


def turns(value: Any, draft: Draft) -> None:
    """{"turns": [...]}: user texts alone; each gets an empty reply of ours, so that there is a point to decode."""
    for i, text in enumerate(items_of(value, "turns", draft.notes)):
        if not isinstance(text, str):
            raise RowFault(f"turns[{i}]", f"expected text, found {short(text)}")
        draft.messages += [Message(role="user", content=text), Message(role="assistant", synthetic=True)]
    draft.notes.add("the record holds prompts only: replies are empty placeholders")


def sharegpt(value: Any, draft: Draft) -> None:
    """{"conversations": [{"from": ..., "value": ...}]}, with the roles function_call and observation for tools."""
    items, where, row = _body(value, draft)
    for i, item in enumerate(items):
        at = f"{where}[{i}]"
        if not isinstance(item, Mapping) or "from" not in item:
            draft.add(item, at)
            continue
        raw = {"role": item["from"], "content": item.get("value"), **_rest(item)}
        if item["from"] in ("function_call", "tool_call"):
            _say_calls(draft, item.get("value"), f"{at}.value")
        else:
            draft.add(raw, at)
    _surroundings(row, draft)


def _rest(item: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in item.items() if key not in ("from", "value", "role", "content")}


def _say_calls(draft: Draft, value: Any, where: str) -> None:
    """A turn that is nothing but calls, as JSON."""
    at = len(draft.messages)
    found = embedded_json(value, where, draft.notes.add) if isinstance(value, str) else value
    calls: Sequence[Any] = found if isinstance(found, list) else [found]
    made = tuple(call_of(call, f"{where}[{i}]", draft.notes, at) for i, call in enumerate(calls))
    draft.notes.add("a turn of role 'function_call' read as an assistant message with tool calls", at)
    draft.messages.append(Message(role="assistant", tool_calls=made))
