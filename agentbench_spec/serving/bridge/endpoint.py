"""The routes of the endpoint: the key, sizes and time are checked here, and a client that leaves is noticed."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentbench_spec.config.bridge_limits import OWN_NAMES, BridgeConfig
from agentbench_spec.serving.bridge.chat_answer import DONE, Answer, Head, events, settled
from agentbench_spec.serving.bridge.chat_request import ChatRequest, Offer, Refused, read_request
from agentbench_spec.serving.bridge.engine_room import GONE, Begun, EngineRoom, Job, News, Said

_LOOK_S = 0.1
"""Seconds between two looks at whether the client is still there."""
_ROUTES = "POST /v1/chat/completions, GET /v1/models, GET /health"


def make_app(room: EngineRoom, offer: Offer, limits: BridgeConfig, key: str | None) -> Starlette:
    """The application; key: what a client must send as its bearer token, None: nothing."""
    own = Endpoint(room, offer, limits, key)
    routes = [
        Route("/v1/chat/completions", own.chat, methods=["POST"]),
        Route("/v1/models", own.models, methods=["GET"]),
        Route("/health", own.health, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={Refused: _refused, HTTPException: _no_route})


def _refused(_: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)
    return JSONResponse(_error(refused), status_code=refused.status)


def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    found = Refused(f"{request.method} {request.url.path} is not served; there are {_ROUTES}", status=status)
    return JSONResponse(_error(found), status_code=status)


def _error(refused: Refused) -> dict[str, Any]:
    kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
    kind = kinds.get(refused.status, "invalid_request_error")
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


class Endpoint:
    """What each route does."""

    def __init__(self, room: EngineRoom, offer: Offer, limits: BridgeConfig, key: str | None) -> None:
        self._room, self._offer, self._limits, self._key = room, offer, limits, key

    async def health(self, request: Request) -> Response:
        """Whether the server is up; needs no key."""
        return JSONResponse({"status": "ok", "in_flight": self._room.in_flight})

    async def models(self, request: Request) -> Response:
        """The one model that is served."""
        self._check_key(request)
        model = {"id": self._offer.names[0], "object": "model", "created": 0, "owned_by": "agentbench-spec"}
        return JSONResponse({"object": "list", "data": [model]})

    async def chat(self, request: Request) -> Response:
        """A chat completion, whole or as a stream. Raises Refused."""
        self._check_key(request)
        asked = read_request(await self._body(request), self._offer)
        news = self._ask(request, asked)
        last = await anext(news, None)
        if asked.stream and isinstance(last, Begun):
            return StreamingResponse(self._stream(news, last.head, asked), media_type="text/event-stream")
        async with aclosing(news):
            async for each in news:
                last = each
        if isinstance(last, Refused):
            raise last
        return JSONResponse(last.whole()) if isinstance(last, Answer) else Response(status_code=GONE)

    def _check_key(self, request: Request) -> None:
        if self._key is None:
            if request.url.hostname not in OWN_NAMES:  # a page in a browser may have made its own name ours
                raise Refused("without a key only this machine's own name is answered", status=403)
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key.encode()):
            raise Refused("the key is missing or wrong", status=401, code="invalid_api_key")

    async def _body(self, request: Request) -> bytes:
        """The body, as far as it may go. Raises Refused for another type, too many bytes, or too long a wait."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(f"the body must be application/json, found {kind or 'no type'!r:.80}", status=415)
        most = self._limits.body_bytes
        raw = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.stream():
                    raw += part
                    if len(raw) > most:
                        raise Refused(f"the body has more than {most:,} bytes", status=413)
        except TimeoutError:
            raise Refused(f"the body was not there within {self._limits.body_s:g} s", status=408) from None
        except ClientDisconnect:
            raise Refused("the client left before its request was whole", status=GONE) from None
        return bytes(raw)

    async def _ask(self, request: Request, asked: ChatRequest) -> AsyncGenerator[News, None]:
        """What is told of a request, to its end or to that of the client. Raises Refused if too many are in flight."""
        queue: asyncio.Queue[News] = asyncio.Queue()
        job = Job(asked, _teller(queue))
        self._room.take(job, self._limits.in_flight)
        loop = asyncio.get_running_loop()
        looked = loop.time()
        try:
            while True:
                news: News | None = None
                with suppress(TimeoutError):
                    news = await asyncio.wait_for(queue.get(), _LOOK_S)
                if loop.time() - looked >= _LOOK_S:
                    looked = loop.time()
                    if await request.is_disconnected():
                        return
                if news is not None:
                    yield news
                if isinstance(news, Answer | Refused):
                    return
        finally:
            job.gone.set()

    async def _stream(
        self, news: AsyncGenerator[News, None], head: Head, asked: ChatRequest
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events. Where there are tools, words may become a call, and are told once the output is whole."""
        told = ""
        async with aclosing(news):
            yield events([head.chunk({"role": "assistant", "content": ""})])
            async for each in news:
                if isinstance(each, Refused):
                    yield events([_error(each)])
                elif isinstance(each, Answer):
                    yield events(each.last_chunks(told, include_usage=asked.include_usage)) + DONE
                elif isinstance(each, Said) and not asked.tools:
                    text = settled(self._room.text(each.ids))
                    if len(text) > len(told):
                        yield events([head.chunk({"content": text[len(told) :]})])
                        told = text


def _teller(queue: asyncio.Queue[News]) -> Callable[[News], None]:
    loop = asyncio.get_running_loop()

    def tell(news: News) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server stops
            loop.call_soon_threadsafe(queue.put_nowait, news)

    return tell
