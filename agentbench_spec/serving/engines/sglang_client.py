"""SGLang's own routes: token ids in and out, acceptance details, a flush that is seen to happen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import httpx

from agentbench_spec.config.backends import Backend
from agentbench_spec.errors import ConfigError
from agentbench_spec.serving import stream
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.client import MOST_OF_A_PAGE, Client
from agentbench_spec.serving.foreign import NotTheServer, object_of, refuse_redirect
from agentbench_spec.serving.stream import Answer

_RANK = re.compile(r"@\d+$")
"""Ends the address of one data-parallel rank of a worker."""


def sampling_params(ask: Ask) -> dict[str, Any]:
    """The native route's sampling parameters."""
    sampling = ask.sampling
    params: dict[str, Any] = {"max_new_tokens": ask.max_new_tokens, "temperature": 0.0}
    if not sampling.greedy:
        params |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or -1}
    if ask.stop_ids:
        params["stop_token_ids"] = list(ask.stop_ids)
    return params


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
    """As any chat route's event; acceptance details come in a late block of their own."""
    stream.add_chat(answer, event, at)
    for extra in _as_list(event.get("sglext")):
        answer.details |= {k: v for k, v in (extra.get("spec_tokens_details") or {}).items() if v is not None}
        where = extra.get("cached_tokens_details")
        if where and answer.cached_tokens is None:
            answer.cached_tokens = sum(n for n in where.values() if isinstance(n, int))


def _as_list(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def worker_urls(router: str, listed: Mapping[str, Any]) -> list[str]:
    """Addresses of a router's workers, as `GET /workers` lists them; one that has several ranks counts once.

    Raises ConfigError if there is none, one is not healthy, or one is no server that can be asked by itself.
    """
    workers = listed["workers"]
    if not workers:
        raise ConfigError(f"{router} is a router without workers; register them, or name the servers as --base-url")
    for worker in workers:
        name, kind = worker.get("url"), worker.get("worker_type") or "regular"
        if not str(name).startswith("http"):
            raise ConfigError(f"{router}: its worker {name} does not speak HTTP, by which each is asked what it is")
        if kind != "regular":
            raise ConfigError(
                f"{router}: its worker {name} does only the {kind}; of servers that share a turn nothing is known here"
            )
        if worker.get("is_healthy") is False:
            raise ConfigError(f"{router}: its worker {name} is not healthy; wait until it is, or remove it")
    return list(dict.fromkeys(_RANK.sub("", worker["url"]).rstrip("/") for worker in workers))


class SGLangClient(Client):
    """One SGLang server, or a router before several: it answers requests, and its workers the rest, one by one."""

    backend: ClassVar[Backend] = "sglang"
    chat_extras: ClassVar[Mapping[str, Any]] = {
        "return_spec_tokens_details": True,
        "return_cached_tokens_details": True,
    }
    add_chat = staticmethod(add_chat)

    def generate(self, input_ids: Sequence[int], ask: Ask, model: str = "") -> Answer:
        """The native route, which needs no name of a model. Raises RequestFailed."""
        body = {"input_ids": list(input_ids), "sampling_params": sampling_params(ask), "stream": True}
        return self._stream("/generate", body, add_generate, ask)

    @cached_property
    def workers(self) -> list[SGLangClient]:
        """The servers behind a router; empty for a server. Raises as `worker_urls` does."""
        with self._asking("/workers"):
            response = self._http.get("/workers")
        self._refuse_unauthorised("/workers", response)
        if response.status_code != httpx.codes.OK:
            return []
        try:
            listed = object_of(response, self._said(response, MOST_OF_A_PAGE), "workers")
        except NotTheServer:  # no router; what it is, `server_info` says
            return []
        urls = worker_urls(self.base_url, listed)
        return [SGLangClient(url, timeout_s=self._timeout_s, api_key=self._key) for url in urls]

    def close(self) -> None:
        """Close all connections, those to workers too."""
        for worker in self.__dict__.get("workers", ()):
            worker.close()
        super().close()

    def metrics(self) -> str | None:
        """As the base's; of a router, its workers' one after the other."""
        if not self.workers:
            return super().metrics()
        texts = [worker.metrics() for worker in self.workers]
        return None if None in texts else "\n".join(filter(None, texts))

    def server_info(self) -> dict[str, Any] | None:
        """The server's resolved arguments and internal states; None if it has no such route."""
        for path in ("/server_info", "/get_server_info"):
            with self._asking(path):
                response = self._http.get(path)
                self._refuse_unauthorised(path, response)
                refuse_redirect(response)
                if response.status_code == httpx.codes.OK:
                    return object_of(response, self._said(response, MOST_OF_A_PAGE), "model_path", "internal_states")
                if response.status_code != httpx.codes.NOT_FOUND:
                    raise ConfigError(f"{self.base_url}{path} answers {response.status_code}: {self._said(response)}")
        return None

    def flush(self, *, tries: int = 5, pause_s: float = 1.0) -> bool:
        """Empty prefix cache, draft state and acceptance counters, and see that it happened.

        False if the server has no such route. Raises MeasurementError if it refuses: it does so while it is busy. Of a
        router, every worker is asked, since one that did not is not told of by its router's answer.
        """
        if self.workers:
            flushed = [worker.flush(tries=tries, pause_s=pause_s) for worker in self.workers]
            return all(flushed)
        return self._emptied("/flush_cache", "flush its cache", params={"timeout": 30}, tries=tries, pause_s=pause_s)

    def margin(self, input_ids: Sequence[int], one: int, other: int, *, depth: int = 20) -> float | None:
        """As the base's, by the `depth` likeliest tokens."""
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "top_logprobs_num": depth,
        }

        def listed(answer: Any) -> dict[int, float]:
            return {int(entry[1]): float(entry[0]) for entry in answer["meta_info"]["output_top_logprobs"][0]}

        return self._gap("/generate", body, listed, one, other)

    def _which_key(self, path: str) -> str:
        flushes = path.startswith("/flush_cache")
        return " (a server with --admin-api-key takes only that one here)" if flushes else ""
