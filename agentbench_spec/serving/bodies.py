"""What a server is asked: the bodies of the two routes that give an answer."""

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


def sampling_params(ask: Ask) -> dict[str, Any]:
    """The native route's sampling parameters."""
    sampling = ask.sampling
    params: dict[str, Any] = {"max_new_tokens": ask.max_new_tokens, "temperature": sampling.temperature}
    if not sampling.greedy:
        params |= {"top_p": sampling.top_p, "top_k": sampling.top_k or -1}
    if ask.stop_ids:
        params["stop_token_ids"] = list(ask.stop_ids)
    return params


def chat_body(messages: Sequence[Message], tools: Sequence[dict[str, Any]], ask: Ask, model: str) -> dict[str, Any]:
    """A request of the OpenAI route."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_openai(message) for message in messages_for_template(messages)],
        "max_tokens": ask.max_new_tokens,
        "temperature": ask.sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_spec_tokens_details": True,
        "return_cached_tokens_details": True,
    }
    if not ask.sampling.greedy:
        body |= {"top_p": ask.sampling.top_p, "top_k": ask.sampling.top_k or -1}
    if tools:
        body["tools"] = list(tools)
    if ask.stop_ids:
        body["stop_token_ids"] = list(ask.stop_ids)
    if ask.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": ask.thinking}
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
