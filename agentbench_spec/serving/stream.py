"""Server-sent events to one answer: what arrived when, and what the server said about it in the end.

A chunk is not a token and not a round: under speculation one chunk carries several tokens, and a busy server merges
chunks. Tokens are counted by the server's own running total, never by chunks and never by re-tokenising text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentbench_spec.errors import AgentBenchError


class RequestFailed(AgentBenchError):
    """One request did not get a usable answer; the server may still be well."""


class NoStream(Exception):
    """What was to be an event stream holds no event; `said` is how it begins."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


@dataclass(slots=True)
class Answer:
    """One streamed answer. Instants are seconds of the client's monotonic clock."""

    sent_at: float
    """When the request left."""
    text: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    """Tool calls that the server itself took out of the text: name, and arguments as JSON text."""
    output_ids: list[int] | None = None
    chunk_at: list[float] = field(default_factory=list)
    """When each chunk with something new arrived."""
    chunk_tokens: list[int] | None = None
    """New tokens of each chunk; None where the route does not tell."""
    last_at: float | None = None
    """When the last byte arrived."""
    finish: str | None = None
    """stop, length or abort."""
    finish_message: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Everything else the server told, nulls left out."""


_MOST_OTHERS = 4000
"""Characters kept of what is no event."""


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream, up to its end mark.

    Raises RequestFailed if the stream ends without the mark, carries an error, or carries what is not JSON; NoStream
    if it is none.
    """
    others, streams = "", False
    for line in lines:
        if not line.startswith("data:"):
            others = others if streams or len(others) > _MOST_OTHERS else f"{others}{line}\n"
            continue
        streams = True
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = _object(data)
        if error := event.get("error"):
            raise RequestFailed(f"the server answered with an error: {_message(error)}")
        yield event
    if not streams:
        raise NoStream(others)
    raise RequestFailed("the stream ended before its end mark: the connection was dropped or the server died")


def _object(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise RequestFailed(f"not JSON in the event stream: {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise RequestFailed(f"expected a JSON object in the event stream, got {data[:80]!r}")
    return event


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def add_generate(answer: Answer, event: dict[str, Any], at: float) -> None:
    """Take in one event of the native route: text so far, ids so far or new ones, and running totals."""
    told = {name: value for name, value in (event.get("meta_info") or {}).items() if value is not None}
    answer.details |= told
    before, now = answer.completion_tokens or 0, int(told.get("completion_tokens", answer.completion_tokens or 0))
    answer.text = event.get("text") or answer.text
    answer.output_ids = _joined(answer.output_ids, event.get("output_ids"), now)
    if now > before:
        answer.chunk_at.append(at)
        answer.chunk_tokens = [*(answer.chunk_tokens or ()), now - before]
    answer.completion_tokens = now
    answer.prompt_tokens = told.get("prompt_tokens", answer.prompt_tokens)
    answer.cached_tokens = told.get("cached_tokens", answer.cached_tokens)
    if finish := told.get("finish_reason"):
        answer.finish, answer.finish_message = _finish(finish)


def _joined(known: list[int] | None, given: list[int] | None, total: int) -> list[int] | None:
    """All ids so far; servers send either all of them or the new ones, and the running total tells which."""
    if given is None or len(given) >= total:
        return known if given is None else list(given)
    return [*(known or ()), *given]


def _finish(finish: Any) -> tuple[str, str | None]:
    if isinstance(finish, dict):
        return str(finish.get("type")), finish.get("message")
    return str(finish), None


def add_chat(answer: Answer, event: dict[str, Any], at: float) -> None:
    """Take in one event of the chat route: new text, or a late block with usage or acceptance details."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        said = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
        answer.text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            _add_call(answer.calls, call)
        if said or delta.get("tool_calls"):
            answer.chunk_at.append(at)
        if choice.get("finish_reason"):
            answer.finish = _CHAT_FINISH.get(choice["finish_reason"], choice["finish_reason"])
    if usage := event.get("usage"):
        answer.prompt_tokens, answer.completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        answer.cached_tokens = _cached(usage.get("prompt_tokens_details"), "cached_tokens", answer.cached_tokens)
    for extra in _as_list(event.get("sglext")):
        answer.details |= {k: v for k, v in (extra.get("spec_tokens_details") or {}).items() if v is not None}
        where = extra.get("cached_tokens_details")
        if where and answer.cached_tokens is None:
            answer.cached_tokens = sum(n for n in where.values() if isinstance(n, int))


def _add_call(calls: list[dict[str, str]], delta: dict[str, Any]) -> None:
    """A part of a call: of the one its index names, or of the last one."""
    told, index = delta.get("function") or {}, delta.get("index")
    if index is None:
        index = len(calls) - (not told.get("name"))
    if not 0 <= index <= len(calls):
        index = len(calls)
    if index == len(calls):
        calls.append({"name": "", "arguments": ""})
    calls[index]["name"] += told.get("name") or ""
    calls[index]["arguments"] += told.get("arguments") or ""


_CHAT_FINISH = {"tool_calls": "stop", "content_filter": "abort", "function_call": "stop"}


def _cached(details: dict[str, Any] | None, name: str, known: int | None) -> int | None:
    value = (details or {}).get(name)
    return known if value is None else int(value)


def _as_list(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
