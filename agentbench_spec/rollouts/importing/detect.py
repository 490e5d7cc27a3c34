"""Which format a row is in, by its keys and the shape of its list; two possible answers are an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.importing.agents.atif import is_atif
from agentbench_spec.rollouts.importing.exchanges.folding import FOLDED
from agentbench_spec.rollouts.importing.exchanges.model_call import is_exchange
from agentbench_spec.rollouts.importing.exchanges.telemetry import holds_spans
from agentbench_spec.rollouts.importing.notes import RowFault
from agentbench_spec.rollouts.importing.packed.likeness import looks_like
from agentbench_spec.rollouts.importing.responses import is_response_item
from agentbench_spec.rollouts.importing.shapes import (
    is_claude_line,
    is_codex_line,
    is_event,
    is_message_list,
    is_pair,
    is_role_message,
    is_said_message,
)

__all__ = ["UnknownFormat", "detect"]


class UnknownFormat(RowFault):
    """A row that is in none of the known formats, or may be in several."""


_BODIES = (
    *("trajectory", "history", "messages", "traj", "turns", "conversations", "conversation", "llm_completions"),
    "contents",
)
_MINI_INFO = {"exit_status", "submission", "model_stats", "mini_version"}
_ROLLOUT_FIELDS = {"schema", *Rollout.model_fields}


def detect(value: Any) -> str:
    """Name of the format `value` is in. Raises RowFault with the keys seen if it is none, or may be several."""
    if isinstance(value, list):
        return _of_list(value)
    if not isinstance(value, Mapping):
        raise UnknownFormat(None, f"expected an object or a list of messages, found {type(value).__name__}")
    if found := next((name for name, is_it in _WHOLE if is_it(value)), ""):
        return found
    bodies = tuple(key for key in _BODIES if _is_body(value.get(key)))
    known = _BY_BODIES.get(bodies)
    found = (known(value) if known else None) or ("" if bodies else _of_odd_body(value))
    if not found:
        seen = ", ".join(sorted(map(str, value))) or "none"
        why = f"{' and '.join(bodies)} could each be the rollout; name one with --format" if bodies else _no_body(value)
        like = f"; it looks like {words}" if (words := looks_like(value)) else ""
        raise UnknownFormat(None, f"no known format: {why} (keys seen: {seen}){like}")
    return found


_WHOLE: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("requests", lambda value: FOLDED in value and isinstance(value.get("context"), list)),
    ("atif", is_atif),
    ("requests", is_exchange),
    ("requests", holds_spans),
)


def _of_odd_body(value: Mapping[str, Any]) -> str:
    """The format of a row whose messages stand in one member of an unknown name."""
    return "openai_chat" if sum(map(is_message_list, value.values())) == 1 else ""


def _no_body(value: Mapping[str, Any]) -> str:
    nothing = [key for key in _BODIES if key in value]
    return f"{' and '.join(nothing)} holds no list" if nothing else "no list of messages or events"


def _is_body(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith("["))


def _of_list(value: Sequence[Any]) -> str:
    if not value:
        raise UnknownFormat(None, "is an empty list: a rollout without a single message")
    for name, is_item in _LISTS:
        if all(map(is_item, value)):
            return name
    odd = sum(not any(is_item(item) for _, is_item in _LISTS) for item in value)
    if not odd:
        raise UnknownFormat(None, "no known format: a list that mixes messages and events")
    # a list with a few odd items is judged by the rest; the reader of that format names the odd ones
    return next((name for name, is_item in _LISTS if any(map(is_item, value))), "") or _unknown_list(value)


def _unknown_list(value: Sequence[Any]) -> str:
    first = value[0]
    seen = ", ".join(map(str, first)) if isinstance(first, Mapping) else type(first).__name__
    raise UnknownFormat(None, f"no known format: a list whose first item has the keys {seen}")


_LISTS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("claude_code", is_claude_line),
    ("codex", is_codex_line),
    ("openai_chat", lambda item: is_role_message(item) or is_response_item(item)),
    ("sharegpt", is_said_message),
    ("openhands", lambda item: is_event(item) or is_pair(item)),
)


def _history(row: Mapping[str, Any]) -> str:
    items = _list(row["history"])
    if any(is_event(item) or is_pair(item) for item in items) or ("instance_id" in row and not items):
        return "openhands"
    return "openai_chat" if {"task", "index"} <= row.keys() else "swe_agent"


def _messages(row: Mapping[str, Any]) -> str:
    if {"id", "workload"} <= row.keys() <= _ROLLOUT_FIELDS:
        return "rollout"
    info = row.get("info")
    if "trajectory_format" in row or (isinstance(info, Mapping) and _MINI_INFO & info.keys()):
        return "mini_swe_agent"
    if isinstance(row.get("attachments"), Mapping):
        return "inspect_ai"
    return "llm_completions" if isinstance(row.get("response"), Mapping) else "openai_chat"


def _trajectory(row: Mapping[str, Any]) -> str | None:
    items = _list(row["trajectory"])
    first = next((item for item in items if isinstance(item, Mapping)), {})
    if is_role_message(first):
        return "nebius" if ("text" in first or "system_prompt" in first) and "content" not in first else "openai_chat"
    if {"action", "observation"} & first.keys():
        return "swe_agent"
    return "openai_chat" if not items else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _holds_messages(turns: Any) -> bool:
    """True for turns that are whole messages, as they are or as JSON text, and not user texts alone."""
    items = _list(turns)
    return bool(items) and all(is_role_message(item) or _is_message_text(item) for item in items)


def _is_message_text(item: Any) -> bool:
    return isinstance(item, str) and item.lstrip()[:1] == "{" and '"role"' in item


def _conversations(row: Mapping[str, Any]) -> str:
    items = _list(row.get("conversations") or row.get("conversation"))
    return "openai_chat" if items and all(map(is_role_message, items)) else "sharegpt"


_BY_BODIES: dict[tuple[str, ...], Callable[[Mapping[str, Any]], str | None]] = {
    ("trajectory", "history"): lambda row: "swe_agent",
    ("history",): _history,
    ("messages",): _messages,
    ("traj",): lambda row: "tau_bench",
    ("turns",): lambda row: "openai_chat" if _holds_messages(row["turns"]) else "turns",
    ("messages", "turns"): lambda row: "openai_chat" if is_message_list(row["messages"]) else None,
    ("contents",): lambda row: "openai_chat",
    ("conversations",): _conversations,
    ("conversation",): _conversations,
    ("trajectory",): _trajectory,
    ("llm_completions",): lambda row: "llm_completions",
}
