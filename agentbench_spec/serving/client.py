"""An HTTP client of one server: two ways to ask for an answer, and the few routes that say what the server is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import httpx

from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.rollout import Message
from agentbench_spec.serving.bodies import Ask, chat_body, sampling_params
from agentbench_spec.serving.foreign import kind_of, object_of, refuse_page, refuse_redirect, unlike
from agentbench_spec.serving.stream import Answer, NoStream, RequestFailed, add_chat, add_generate, events


class Unauthorised(ConfigError):
    """A server wants an API key, or another one."""


class Client:
    """One server at `base_url`. Safe to use from several threads.

    timeout_s: longest silence in an answer; api_key: sent as bearer with every request and shown nowhere. Every method
    that asks a server raises Unauthorised if it refuses the key.
    """

    def __init__(
        self, base_url: str, *, timeout_s: float = 600.0, connections: int = 64, api_key: str | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._key = api_key
        limits = httpx.Limits(max_connections=connections + 4, max_keepalive_connections=connections + 4)
        bearer = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # trust_env: a proxy of the environment would put itself between the clock and the server
        self._http = httpx.Client(
            base_url=self.base_url, timeout=timeout_s, limits=limits, headers=bearer, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def generate(self, input_ids: Sequence[int], ask: Ask) -> Answer:
        """The native route, with token ids: no template and no tokeniser stands between. Raises RequestFailed."""
        body = {"input_ids": list(input_ids), "sampling_params": sampling_params(ask), "stream": True}
        return self._stream("/generate", body, add_generate)

    def chat(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], ask: Ask, model: str) -> Answer:
        """The OpenAI route, for servers that offer only that; tokens per chunk are not told. Raises RequestFailed."""
        return self._stream("/v1/chat/completions", chat_body(messages, tools, ask, model), add_chat)

    def _stream(self, path: str, body: dict[str, Any], add: Callable[[Answer, dict[str, Any], float], None]) -> Answer:
        content = json.dumps(body).encode()
        answer = Answer(sent_at=time.perf_counter())
        try:
            with self._http.stream("POST", path, content=content, headers=_JSON) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    self._refuse_unauthorised(path, response)
                    refuse_redirect(response)
                    raise RequestFailed(f"{path} answered {response.status_code}: {self._said(response, 300)}")
                for event in events(response.iter_lines()):
                    _take(answer, event, add)
                answer.last_at = time.perf_counter()
        except NoStream as error:
            said = error.said.replace(self._key, "***") if self._key else error.said
            raise RequestFailed(f"{self.base_url}{path} answered with {kind_of(said)}, not with a stream") from None
        except httpx.HTTPError as error:
            raise RequestFailed(f"{path}: {type(error).__name__}: {error or 'no answer'}") from error
        if answer.finish is None:
            raise RequestFailed(f"{path}: the answer ended without a finish reason")
        return answer

    def healthy(self) -> bool:
        """True if the server answers that it can serve."""
        return self._health() == httpx.codes.OK

    def _health(self) -> int | str:
        """Status of the health route, or of the model list where there is none; in words, why nobody answered."""
        try:
            response = self._http.get("/health", timeout=10.0)
            if response.status_code == httpx.codes.NOT_FOUND:
                response = self._http.get("/v1/models", timeout=10.0)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return f"{_UNREACHED} ({error})"
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        self._refuse_unauthorised(response.url.path, response)
        refuse_page(response, self._said(response))
        return response.status_code

    def wait_ready(
        self,
        timeout_s: float,
        *,
        grace_s: float = 10.0,
        alive: Callable[[], bool] | None = None,
        pause_s: float = 0.5,
    ) -> None:
        """Wait until the server is healthy: one that is warming up answers 503.

        grace_s: how long nobody may listen there; alive: for a server started here, which listens only when its weights
        are loaded, False once waiting is pointless; grace_s then does not count. Raises ConfigError if the server ended
        or the time is up.
        """
        start = reached = time.monotonic()
        while (state := self._health()) != httpx.codes.OK:
            now = time.monotonic()
            if alive is not None and not alive():
                raise ConfigError(f"the server for {self.base_url} ended while it was starting")
            if not (isinstance(state, str) and state.startswith(_UNREACHED)):
                reached = now
            elif alive is None and now - reached >= grace_s:
                raise ConfigError(_nobody(self.base_url, state, grace_s))
            if now - start > timeout_s:
                said = f"status {state}" if isinstance(state, int) else state
                raise ConfigError(
                    f"{self.base_url}/health answers {said} after {timeout_s:g} s; check that the server runs there, "
                    "or raise sglang.start_timeout_s"
                )
            time.sleep(pause_s)

    def _refuse_unauthorised(self, path: str, response: httpx.Response) -> None:
        if response.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return
        told = "does not accept the API key it was given" if self._key else "wants an API key"
        admin = " (a server with --admin-api-key takes only that one here)" if path.startswith("/flush_cache") else ""
        raise Unauthorised(
            f"{self.base_url}{path} {told} (status {response.status_code}); give the key the server was started with, "
            f"as --api-key KEY or in the environment as OPENAI_API_KEY{admin}"
        )

    def _said(self, response: httpx.Response, most: int = 200) -> str:
        """The start of a server's text; some repeat the key they refuse."""
        text = response.text.strip()
        return (text.replace(self._key, "***") if self._key else text)[:most]

    def server_info(self) -> dict[str, Any] | None:
        """The server's resolved arguments and internal states; None if it has no such route."""
        for path in ("/server_info", "/get_server_info"):
            with self._asking(path):
                response = self._http.get(path)
                self._refuse_unauthorised(path, response)
                refuse_redirect(response)
                if response.status_code == httpx.codes.OK:
                    return object_of(response, self._said(response, _PAGE), "model_path", "internal_states")
                if response.status_code != httpx.codes.NOT_FOUND:
                    raise ConfigError(f"{self.base_url}{path} answers {response.status_code}: {self._said(response)}")
        return None

    def model(self) -> dict[str, Any]:
        """The served model's entry on the OpenAI route, with `id` and often `max_model_len`; empty if there is none."""
        with self._asking("/v1/models"):
            response = self._http.get("/v1/models")
        self._refuse_unauthorised("/v1/models", response)
        refuse_redirect(response)
        if response.status_code != httpx.codes.OK:
            return {}
        said = self._said(response, _PAGE)
        listed = object_of(response, said, "data")["data"] or [{}]
        if not isinstance(listed, list) or not isinstance(listed[0], dict):
            raise unlike(response, said)
        return listed[0]

    def flush(self, *, tries: int = 5, pause_s: float = 1.0) -> bool:
        """Empty prefix cache, draft state and acceptance counters, and see that it happened.

        False if the server has no such route. Raises MeasurementError if it refuses: it does so while it is busy.
        """
        for attempt in range(tries):
            with self._asking("/flush_cache"):
                response = self._http.post("/flush_cache", params={"timeout": 30})
            self._refuse_unauthorised("/flush_cache", response)
            if response.status_code != httpx.codes.NOT_FOUND:
                refuse_page(response, self._said(response))
            if response.status_code == httpx.codes.OK:
                return True
            if response.status_code == httpx.codes.NOT_FOUND:
                return False
            if attempt + 1 < tries:
                time.sleep(pause_s)
        raise MeasurementError(
            f"{self.base_url} does not flush its cache ({self._said(response)}); another client may be "
            "using it: measure on a server of your own"
        )

    def metrics(self) -> str | None:
        """Prometheus text; None if the server was started without --enable-metrics, is gone, or shows it to others."""
        try:
            response = self._http.get("/metrics", follow_redirects=True)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == httpx.codes.OK else None

    def margin(self, input_ids: Sequence[int], one: int, other: int, *, depth: int = 20) -> float | None:
        """Log-probability gap after `input_ids` between the likeliest token and the worse of two; None if not told.

        A token below the `depth` likeliest counts as the last of them: the gap is then a lower bound.
        """
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "top_logprobs_num": depth,
        }
        try:
            response = self._http.post("/generate", content=json.dumps(body).encode(), headers=_JSON)
            self._refuse_unauthorised("/generate", response)
            listed = response.json()["meta_info"]["output_top_logprobs"][0]
            known = {int(entry[1]): float(entry[0]) for entry in listed}
            least = min(known.values())
            return max(known.values()) - min(known.get(one, least), known.get(other, least))
        except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError):
            return None

    @contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise MeasurementError(f"{self.base_url}{path}: {type(error).__name__}: {error}") from error


def _take(answer: Answer, event: dict[str, Any], add: Callable[[Answer, dict[str, Any], float], None]) -> None:
    """Raises RequestFailed for an event that is JSON, but of another service."""
    try:
        add(answer, event, time.perf_counter())
    except (AttributeError, TypeError, ValueError) as error:
        raise RequestFailed(f"an event of another form in the stream: {json.dumps(event)[:80]}") from error


_PAGE = 100_000
"""Most characters of a body that are looked at to say what it is."""
_JSON = {"content-type": "application/json"}
_UNREACHED = "no connection"


def _nobody(base_url: str, why: str, grace_s: float) -> str:
    return (
        f"{base_url}: {why} for {grace_s:g} s; start a server there, correct --base-url, or let --launch start one. "
        "SGLang listens only when its weights are loaded: try again then, or raise sglang.refused_grace_s"
    )
