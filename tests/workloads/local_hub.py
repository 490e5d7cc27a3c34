"""A stand-in for the Hugging Face hub on this machine: the routes that are asked for data sets, over real HTTP."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_INFO = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/?]+))?")
_FILE = re.compile(r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>[^?]+)")


class LocalHub:
    """Data sets with a history: repository -> commits in their order, each a commit id and its files."""

    def __init__(self) -> None:
        self.history: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.asked: list[str] = []
        self.url = ""

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        """Add a commit that `main` then points to; its id."""
        commits = self.history.setdefault(repo, [])
        made = hashlib.sha1(f"{repo} {len(commits)}".encode()).hexdigest()
        commits.append((made, files))
        return made

    def at(self, repo: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        """The commit a revision stands for, and its files."""
        commits = self.history.get(repo, [])
        if revision in (None, "main"):
            return commits[-1] if commits else None
        return next((found for found in commits if found[0] == revision), None)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A hub that serves until the block ends."""
    hub = LocalHub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            if found := _INFO.fullmatch(self.path.partition("?")[0]):
                self._info(found["repo"], found["revision"], body)
            elif found := _FILE.fullmatch(self.path):
                self._file(found["repo"], found["revision"], found["file"], body)
            else:
                self._send(404, b"", {}, body)

        def _info(self, repo: str, revision: str | None, body: bool) -> None:
            state = hub.at(repo, revision)
            if state is None:
                kind = "RevisionNotFound" if repo in hub.history else "RepoNotFound"
                return self._send(404, b"{}", {"X-Error-Code": kind}, body)
            siblings = [{"rfilename": name} for name in state[1]]
            info = {"id": repo, "sha": state[0], "siblings": siblings, "private": False, "tags": [], "downloads": 0}
            return self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, body)

        def _file(self, repo: str, revision: str, file: str, body: bool) -> None:
            state = hub.at(repo, revision)
            if state is None or file not in state[1]:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            data = state[1][file]
            etag = hashlib.sha256(data).hexdigest()
            return self._send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": state[0]}, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
