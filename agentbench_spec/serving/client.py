"""An HTTP client of one server: two ways to ask for an answer, and the few routes that say what the server is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import httpx

from agentbench_spec.config.backends import Backend
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.rollout import Message
from agentbench_spec.serving.bodies import Ask, chat_body, completion_body
from agentbench_spec.serving.foreign import kind_of, object_of, refuse_page, refuse_redirect, unlike
from agentbench_spec.serving.stream import Answer, NoStream, RequestFailed, add_chat, add_completion, events


class Unauthorised(ConfigError):
    """A server wants an API key, or another one."""


class Client:
    """One server at `base_url`. Safe to use from several threads.

    timeout_s: longest silence in an answer; api_key: sent as bearer with every request and shown nowhere. Every method
    that asks a server raises Unauthorised if it refuses the key. As it stands it speaks OpenAI's protocol and nothing
    else; an engine's own client adds fields and routes.
    """

    backend: ClassVar[Backend] = "openai"
    completion_extras: ClassVar[Mapping[str, Any]] = {}
    chat_extras: ClassVar[Mapping[str, Any]] = {}
    """Fields of the engine's own in the bodies of the two routes."""
    add_completion = staticmethod(add_completion)
    add_chat = staticmethod(add_chat)
    """How an event of each route is taken into the answer."""

    def __init__(self, base_url: str, *, timeout_s: float = 600.0, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s, self._key = timeout_s, api_key
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)  # the threads that ask bound them
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

    def generate(self, input_ids: Sequence[int], ask: Ask, model: str = "") -> Answer:
        """An answer to token ids: no template and no tokeniser stands between. Raises RequestFailed.

        model: the name it is served under.
        """
        body = {**completion_body(input_ids, ask, model), **self.completion_extras}
        return self._stream("/v1/completions", body, self.add_completion, ask)

    def chat(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], ask: Ask, model: str) -> Answer:
        """An answer to messages, which the server's template renders. Raises RequestFailed."""
        body = {**chat_body(messages, tools, ask, model), **self.chat_extras}
        return self._stream("/v1/chat/completions", body, self.add_chat, ask)

    def _stream(
        self, path: str, body: dict[str, Any], add: Callable[[Answer, dict[str, Any], float], None], ask: Ask
    ) -> Answer:
        content = json.dumps(body).encode()
        answer = Answer(sent_at=time.perf_counter(), asked_tokens=ask.max_new_tokens)
        try:
            with self._http.stream("POST", path, content=content, headers=JSON) as response:
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
                raise ConfigError(self._nobody(state, grace_s))
            if now - start > timeout_s:
                said = f"status {state}" if isinstance(state, int) else state
                raise ConfigError(
                    f"{self.base_url}/health answers {said} after {timeout_s:g} s; check that the server runs there, "
                    f"or raise {self.backend}.start_timeout_s"
                )
            time.sleep(pause_s)

    def _nobody(self, why: str, grace_s: float) -> str:
        return (
            f"{self.base_url}: {why} for {grace_s:g} s; start a server there, correct --base-url, or let --launch "
            "start one. Some servers listen only when their weights are loaded: try again then, or raise "
            f"{self.backend}.refused_grace_s"
        )

    def _refuse_unauthorised(self, path: str, response: httpx.Response) -> None:
        if response.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return
        told = "does not accept the API key it was given" if self._key else "wants an API key"
        raise Unauthorised(
            f"{self.base_url}{path} {told} (status {response.status_code}); give the key the server was started with, "
            f"as --api-key KEY or in the environment as OPENAI_API_KEY{self._which_key(path)}"
        )

    def _which_key(self, path: str) -> str:
        """Where a route wants another key than the others, a hint at it."""
        return ""

    def _said(self, response: httpx.Response, most: int = 200) -> str:
        """The start of a server's text; some repeat the key they refuse."""
        text = response.text.strip()
        return (text.replace(self._key, "***") if self._key else text)[:most]

    def server_info(self) -> dict[str, Any] | None:
        """What the server says about itself; None if it has no such route."""
        return None

    def model(self) -> dict[str, Any]:
        """The served model's entry on the OpenAI route, with `id` and often `max_model_len`; empty if there is none."""
        with self._asking("/v1/models"):
            response = self._http.get("/v1/models")
        self._refuse_unauthorised("/v1/models", response)
        refuse_redirect(response)
        if response.status_code != httpx.codes.OK:
            return {}
        said = self._said(response, MOST_OF_A_PAGE)
        listed = object_of(response, said, "data")["data"] or [{}]
        if not isinstance(listed, list) or not isinstance(listed[0], dict):
            raise unlike(response, said)
        return listed[0]

    def flush(self) -> bool:
        """Empty the prefix cache and what else outlives a request; False if the server has no such route.

        Raises MeasurementError if it refuses.
        """
        return False

    def metrics(self) -> str | None:
        """Prometheus text; None if the server offers none, is gone, or shows it to others."""
        try:
            response = self._http.get("/metrics", follow_redirects=True)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == httpx.codes.OK else None

    def margin(self, input_ids: Sequence[int], one: int, other: int) -> float | None:
        """Log-probability gap after `input_ids` between the likeliest token and the worse of two; None if not told."""
        return None

    def _emptied(
        self, path: str, what: str, *, params: Mapping[str, Any] | None = None, tries: int, pause_s: float
    ) -> bool:
        """Ask a route until it has done `what`, which it refuses while it is busy; False if there is no such route.

        Raises MeasurementError if it refuses to the last.
        """
        said = ""
        for attempt in range(tries):
            with self._asking(path):
                response = self._http.post(path, params=params)
            self._refuse_unauthorised(path, response)
            if response.status_code == httpx.codes.NOT_FOUND:
                return False
            said = self._said(response)
            refuse_page(response, said)
            if response.status_code == httpx.codes.OK and '"success":false' not in said.replace(" ", ""):
                return True
            if attempt + 1 < tries:
                time.sleep(pause_s)
        raise MeasurementError(
            f"{self.base_url} does not {what} ({said}); another client may be using it: measure on a server of your own"
        )

    def _gap(
        self, path: str, body: Mapping[str, Any], listed: Callable[[Any], Mapping[int, float]], one: int, other: int
    ) -> float | None:
        """As `margin`; listed: the answer to `body` -> log-probability of each of the likeliest tokens.

        A token below them counts as the last of them: the gap is then a lower bound.
        """
        try:
            response = self._http.post(path, content=json.dumps(body).encode(), headers=JSON)
            self._refuse_unauthorised(path, response)
            known = listed(response.json())
            least = min(known.values())
            return max(known.values()) - min(known.get(one, least), known.get(other, least))
        except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError, AttributeError):
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


MOST_OF_A_PAGE = 100_000
"""Most characters of a body that are looked at to say what it is."""
JSON = {"content-type": "application/json"}
_UNREACHED = "no connection"
