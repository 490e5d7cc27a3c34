"""An answer in the form of OpenAI's chat completions, whole or as the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import ToolCall
from agentbench_spec.rollouts.toolcalls.families import Family
from agentbench_spec.rollouts.toolcalls.spoken import Tools

_UNFINISHED = "\ufffd"
"""How a text ends whose last character is not complete yet."""


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of an answer begin with."""

    id: str
    """Names the session and the turn: those of the row."""
    model: str
    created: int

    def part(self, kind: str, **more: Any) -> dict[str, Any]:
        """One object of the API."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, **more}

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """One chunk of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self.part("chat.completion.chunk", choices=[choice])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got."""

    head: Head
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, Any]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is no stream."""
        choice = {"index": 0, "message": self.message, "logprobs": None, "finish_reason": self.finish_reason}
        return self.head.part("chat.completion", choices=[choice], usage=self.usage)

    def last_chunks(self, told: str, *, include_usage: bool) -> Iterator[dict[str, Any]]:
        """What is left to be told after the text `told`, how it ended, and the counts where they were asked for."""
        if thought := self.message.get("reasoning_content"):
            yield self.head.chunk({"reasoning_content": thought})
        if rest := (self.message["content"] or "")[len(told) :]:
            yield self.head.chunk({"content": rest})
        for i, call in enumerate(self.message.get("tool_calls", ())):
            yield self.head.chunk({"tool_calls": [{"index": i, **call}]})
        yield self.head.chunk({}, self.finish_reason)
        if include_usage:
            yield self.head.part("chat.completion.chunk", choices=[], usage=self.usage)


def message_of(family: Family, text: str, tools: Tools, prefix: str) -> dict[str, Any]:
    """The assistant message of an output; prefix: of the ids of its calls.

    Without tools, and where a call cannot be read, the text stands as it was said: the client judges it.
    """
    spoken = family.spoken(text, tools) if tools else None
    if spoken is None or spoken.faults:
        return {"role": "assistant", "content": text}
    message: dict[str, Any] = {"role": "assistant", "content": spoken.content}
    if spoken.reasoning:
        message["reasoning_content"] = spoken.reasoning
    if spoken.calls:
        message["content"] = spoken.content or None
        message["tool_calls"] = [_call(call, f"{prefix}-{i}") for i, call in enumerate(spoken.calls)]
    return message


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def usage_of(row: TurnRow) -> dict[str, Any]:
    """Counts of a request: tokens, those that were kept from before, and drafts that were accepted or not."""
    prompt, output = row.context_tokens or 0, row.output_tokens or 0
    accepted = row.matched or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": row.reused_tokens or 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": (row.proposed or 0) - accepted,
        },
    }


def settled(text: str) -> str:
    """The part of a growing text that what follows cannot change."""
    return text.rstrip(_UNFINISHED)


def events(chunks: Iterable[dict[str, Any]]) -> bytes:
    """Chunks as server-sent events."""
    return b"".join(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks)


DONE = b"data: [DONE]\n\n"
