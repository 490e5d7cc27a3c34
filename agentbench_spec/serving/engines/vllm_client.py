"""vLLM's own fields and routes: token ids in answers, reports of acceptance and timing, a reset of the prefix cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import httpx

from agentbench_spec.config.backends import Backend
from agentbench_spec.serving import stream
from agentbench_spec.serving.client import MOST_OF_A_PAGE, Client
from agentbench_spec.serving.foreign import object_of, refuse_redirect
from agentbench_spec.serving.stream import Answer


def add_completion(answer: Answer, event: dict[str, Any], at: float) -> None:
    """As any completions event; the last one, without choices, holds the reports."""
    stream.add_completion(answer, event, at)
    _add_metrics(answer, event)


def add_chat(answer: Answer, event: dict[str, Any], at: float) -> None:
    """As any chat event; the last one, without choices, holds the reports."""
    stream.add_chat(answer, event, at)
    _add_metrics(answer, event)


def _add_metrics(answer: Answer, event: dict[str, Any]) -> None:
    told = event.get("metrics") or {}
    if (report := told.get("speculative_decoding")) is not None:
        answer.details["speculative_decoding"] = report
    named = {
        "first_token_latency": "time_to_first_token_ms",
        "queue_time": "queue_time_ms",
        "decode_time": "generation_time_ms",
    }
    for name, own in named.items():
        if told.get(own) is not None:
            answer.details[name] = float(told[own]) / 1000


class VLLMClient(Client):
    """One vLLM server."""

    backend: ClassVar[Backend] = "vllm"
    completion_extras: ClassVar[Mapping[str, Any]] = {"return_token_ids": True}
    chat_extras: ClassVar[Mapping[str, Any]] = {"return_token_ids": True}
    add_completion = staticmethod(add_completion)
    add_chat = staticmethod(add_chat)

    def version(self) -> str | None:
        """The server's version; None if it has no such route."""
        return self._told("/version", "version")

    def configuration(self) -> str | None:
        """The server's configuration as one line of text; None where it is not in development mode."""
        return self._told("/server_info", "vllm_config")

    def scheduler(self) -> dict[str, Any]:
        """The scheduler's settings; empty where it is not in development mode, or too old to show them."""
        try:
            shown = json.loads(self._told("/server_info?config_format=json", "vllm_config") or "{}")
        except ValueError:  # an older version knows its line of text only
            return {}
        found = shown.get("scheduler_config") if isinstance(shown, dict) else None
        return found if isinstance(found, dict) else {}

    def _told(self, path: str, key: str) -> str | None:
        with self._asking(path):
            response = self._http.get(path)
        self._refuse_unauthorised(path, response)
        refuse_redirect(response)
        if response.status_code != httpx.codes.OK:
            return None
        value = object_of(response, self._said(response, MOST_OF_A_PAGE), key)[key]
        return value if isinstance(value, str) else json.dumps(value)

    def flush(self, *, tries: int = 5, pause_s: float = 1.0) -> bool:
        """Empty the prefix cache; False if the server is not in development mode, where alone it has the route.

        Raises MeasurementError if it refuses: it does so while blocks are held.
        """
        return self._emptied("/reset_prefix_cache", "reset its prefix cache", tries=tries, pause_s=pause_s)

    def margin(self, input_ids: Sequence[int], one: int, other: int, *, depth: int = 20) -> float | None:
        """As the base's, by the `depth` likeliest tokens."""
        body = {
            "model": self.model().get("id"),
            "prompt": list(input_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": depth,
            "return_tokens_as_token_ids": True,
        }

        def listed(answer: Any) -> dict[int, float]:
            told = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            return {int(str(name).removeprefix("token_id:")): float(value) for name, value in told.items()}

        return self._gap("/v1/completions", body, listed, one, other)
