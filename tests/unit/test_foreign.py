"""Something else answers where an SGLang server is expected: named in one line with its address, on every route."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from runkit import replay
from servedkit import FakeServer

from agentbench_spec.errors import AgentBenchError
from agentbench_spec.messages import Message
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.engines.sglang_client import SGLangClient as Client

KEY = "hush-4f21"
BODIES = {
    "html": (
        200,
        "text/html",
        "<!doctype html><title>Log in to\nCorp</title><p>" + KEY,
        "a page of HTML ('Log in to Corp')",
    ),
    "html-as-json": (200, "application/json", "<html>hello", "a page of HTML ('<html>hello')"),
    "redirect": (302, "text/html", "", "a redirect to http://sso.example/login"),
    "text": (200, "text/plain", "It works! " + KEY, "plain text ('It works! ***')"),
    "empty": (200, "application/json", "", "an empty body"),
    "cut": (200, "application/json", '{"model_path": "a", "data": [{"id"', "JSON that is cut off or broken"),
    "list": (200, "application/json", "[1, 2]", "JSON that is no object ('[1, 2]')"),
    "other": (200, "application/json", '{"jsonrpc": "2.0"}', "a JSON object of another form (keys: jsonrpc)"),
}
"""Kind -> status, content type and body of all its answers, and what must be said of it."""


@contextmanager
def answering(kind: str) -> Iterator[str]:
    """A server whose every answer is of one kind; its address."""
    status, content_type, body, _ = BODIES[kind]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body.encode())))
            if status == 302:
                self.send_header("location", "http://sso.example/login?token=secret")
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("route", ["server_info", "model", "generate", "chat"])
def test_what_answers_is_named_on_every_route(kind: str, route: str) -> None:
    """Fails if a body of another service is a traceback, is taken for a dead server, or shows the key it repeats."""
    ask = {
        "generate": lambda client: client.generate([1, 2], Ask(4)),
        "chat": lambda client: client.chat([Message(role="user", content="hi")], [], Ask(4), "m"),
        "server_info": Client.server_info,
        "model": Client.model,
    }[route]
    with answering(kind) as url, Client(url, api_key=KEY) as client, pytest.raises(AgentBenchError) as raised:
        ask(client)
    said = str(raised.value)
    assert BODIES[kind][3] in said and url in said
    assert KEY not in said and "secret" not in said


@pytest.mark.parametrize("kind", BODIES)
def test_a_run_is_refused_at_once_in_one_line(kind: str, tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a page is waited for as if it were a server that warms up, or ends the command in a traceback."""
    with answering(kind) as url:
        done = replay(tiny, rollouts, tmp_path / "run", "--base-url", url)
    assert done.code == 2 and "Traceback" not in done.err
    assert BODIES[kind][3].replace("***", KEY) in done.err and url in done.err


def test_a_page_in_place_of_the_counters_is_none() -> None:
    """Fails if text that only looks like Prometheus stops a run that is over."""
    counters = engine_of("sglang").counters
    assert counters("<html>sglang") == counters("sglang:num_requests_total many") == {}
    with answering("html") as url, Client(url) as client:
        assert counters(client.metrics() or "") == {}


def test_a_server_of_ours_is_not_mistaken() -> None:
    """Fails if an SGLang server's own answers are refused as another service's."""
    with FakeServer() as server, Client(server.base_url) as client:
        assert client.healthy() and client.flush()
        assert (client.server_info() or {})["model_path"] == "fake" and client.model()["id"] == "fake-id"
