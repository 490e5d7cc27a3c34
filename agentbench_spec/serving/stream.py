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
    asked_tokens: int | None = None
    """Most tokens that were asked for."""
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


def add_completion(answer: Answer, event: dict[str, Any], at: float) -> None:
    """Take in one event of the completions route: new text or ids, and usage at the end."""
    for choice in event.get("choices") or ():
        answer.text += choice.get("text") or ""
        _add_choice(answer, choice, at, new=bool(choice.get("text")))
    _add_usage(answer, event)


def add_chat(answer: Answer, event: dict[str, Any], at: float) -> None:
    """Take in one event of the chat route: new text, or a late block with usage."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        said = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
        answer.text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            _add_call(answer.calls, call)
        _add_choice(answer, choice, at, new=bool(said or delta.get("tool_calls")))
    _add_usage(answer, event)


def _add_choice(answer: Answer, choice: dict[str, Any], at: float, *, new: bool) -> None:
    """A chunk is one that holds ids; where the server sends none, one that holds text. `new`: it holds text."""
    ids = choice.get("token_ids")
    if ids:
        answer.output_ids = [*(answer.output_ids or ()), *ids]
        answer.chunk_tokens = [*(answer.chunk_tokens or ()), len(ids)]
    if ids or (new and ids is None):
        answer.chunk_at.append(at)
    if finish := choice.get("finish_reason"):
        answer.finish = _CHAT_FINISH.get(finish, finish)


def _add_usage(answer: Answer, event: dict[str, Any]) -> None:
    if usage := event.get("usage"):
        answer.prompt_tokens, answer.completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        answer.cached_tokens = answer.cached_tokens if cached is None else int(cached)


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
