"""A stand-in for the SGLang router on a loopback socket: lists its workers, and sends each request to the next one."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import urlsplit

_PASSED_ON = ("content-type", "authorization")


class FakeRouter:
    """Serves on a free loopback port within its `with` block, before the servers at `urls`."""

    def __init__(self, *urls: str, **odd: Any) -> None:
        """odd: fields of the first worker that are otherwise than those of a healthy one."""
        self.workers = [
            {"id": str(number), "url": url, "worker_type": "regular", "is_healthy": True, "connection_mode": "Http"}
            for number, url in enumerate(urls)
        ]
        if self.workers:
            self.workers[0].update(odd)
        self._turn = count()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def next(self) -> str:
        """Who takes the next request: round robin."""
        return str(self.workers[next(self._turn) % len(self.workers)]["url"])

    def __enter__(self) -> FakeRouter:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(router: FakeRouter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(200, b"OK")
            elif self.path == "/workers":
                listed = {"workers": router.workers, "total": len(router.workers), "stats": {}}
                self._send(200, json.dumps(listed).encode())
            elif self.path == "/v1/models":
                self._pass_on("GET", b"")
            else:
                self._send(404, b"not found")  # /metrics, too: a router has its own port for them

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path in ("/generate", "/v1/chat/completions"):
                self._pass_on("POST", body)
            else:
                self._send(404, b"not found")

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _pass_on(self, method: str, body: bytes) -> None:
            address = urlsplit(router.next())
            worker = http.client.HTTPConnection(str(address.hostname), address.port)
            headers = {name: self.headers[name] for name in _PASSED_ON if self.headers.get(name)}
            worker.request(method, self.path, body, headers)
            answer = worker.getresponse()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            while data := answer.read1():
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            worker.close()

    return Handler
