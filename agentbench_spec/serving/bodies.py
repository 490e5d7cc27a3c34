"""What a server is asked: the bodies of the two OpenAI routes that give an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.engine.sampling import GREEDY, Sampling
from agentbench_spec.rollout import Message
from agentbench_spec.rollouts.render import messages_for_template


@dataclass(frozen=True, slots=True)
class Ask:
    """How every answer of a run is asked for."""

    max_new_tokens: int
    sampling: Sampling = GREEDY
    stop_ids: tuple[int, ...] = ()
    thinking: bool | None = None


def completion_body(input_ids: Sequence[int], ask: Ask, model: str) -> dict[str, Any]:
    """A request of the completions route, the prompt as token ids: no template stands between."""
    return {"model": model, "prompt": list(input_ids), **_common(ask)}


def chat_body(messages: Sequence[Message], tools: Sequence[dict[str, Any]], ask: Ask, model: str) -> dict[str, Any]:
    """A request of the OpenAI route."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_openai(message) for message in messages_for_template(messages)],
        **_common(ask),
    }
    if tools:
        body["tools"] = list(tools)
    if ask.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": ask.thinking}
    return body


def _common(ask: Ask) -> dict[str, Any]:
    """What both OpenAI routes take alike. Servers send usage, and what comes with it, only if it is asked for."""
    body: dict[str, Any] = {
        "max_tokens": ask.max_new_tokens,
        "temperature": 0.0 if ask.sampling.greedy else ask.sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if not ask.sampling.greedy:
        body |= {"top_p": ask.sampling.top_p, "top_k": ask.sampling.top_k or -1}
    if ask.stop_ids:
        body["stop_token_ids"] = list(ask.stop_ids)
    return body


def _openai(message: dict[str, Any]) -> dict[str, Any]:
    """Tool-call arguments are JSON text on this route."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    spelt = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in calls
    ]
    return {**message, "tool_calls": spelt}
