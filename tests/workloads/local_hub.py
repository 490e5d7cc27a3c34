"""A stand-in for the Hugging Face hub on this machine: the routes that are asked for data sets, over real HTTP.

It answers as the hub does where tests need it (revisions, listings, files in ranges, error codes) and fails on demand.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_INFO = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/?]+))?")
_TREE = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/?]+)")
_FILE = re.compile(r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>[^?]+)")

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body, headers."""


@dataclass
class LocalHub:
    """Data sets with a history: repository -> commits in their order, each a commit id and its files."""

    history: dict[str, list[tuple[str, dict[str, bytes]]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""
    gated: set[str] = field(default_factory=set)
    """Repositories whose files are for `members` only; anyone may list them, as on the hub."""
    private: set[str] = field(default_factory=set)
    """Repositories that only `members` see."""
    members: set[str] = field(default_factory=set)
    """Tokens of those who accepted the terms."""
    down: int | None = None
    """Status of every answer, while the hub is out of order."""
    cut: dict[str, list[int]] = field(default_factory=dict)
    """File -> for each of its next downloads, after how many bytes the connection is lost."""

    def reset(self) -> None:
        """An empty hub at the same address."""
        vars(self).update(vars(LocalHub(url=self.url)))

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

    def answer(self, path: str, token: str | None, start: int) -> Answer:
        """What is said to a request for `path`, of a file from byte `start` on."""
        if self.down is not None:
            return self.down, b"", {}
        path = path.partition("?")[0]
        for pattern, make in ((_INFO, self._info), (_TREE, self._tree), (_FILE, self._file)):
            if found := pattern.fullmatch(path):
                groups = found.groupdict()
                return self._refusal(groups["repo"], groups["revision"], token) or make(groups, token, start)
        return 404, b"", {}

    def _refusal(self, repo: str, revision: str | None, token: str | None) -> Answer | None:
        hidden = repo not in self.history or (repo in self.private and token not in self.members)
        if hidden and token is None:
            return 401, b"{}", {"X-Error-Message": "Invalid username or password."}
        if hidden or self.at(repo, revision) is None:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound" if hidden else "RevisionNotFound"}
        return None

    def _info(self, asked: dict[str, str], token: str | None, start: int) -> Answer:
        commit, files = self._state(asked)
        siblings = [{"rfilename": name} for name in files]
        info = {"id": asked["repo"], "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
        return 200, json.dumps(info).encode(), {"Content-Type": "application/json"}

    def _tree(self, asked: dict[str, str], token: str | None, start: int) -> Answer:
        files = self._state(asked)[1]
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in files.items()
        ]
        return 200, json.dumps(entries).encode(), {"Content-Type": "application/json"}

    def _file(self, asked: dict[str, str], token: str | None, start: int) -> Answer:
        commit, files = self._state(asked)
        if asked["repo"] in self.gated and token not in self.members:
            return 403 if token else 401, b"", {"X-Error-Code": "GatedRepo"}
        if asked["file"] not in files:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        data = files[asked["file"]]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not start:
            return 200, data, headers
        return 206, data[start:], {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}

    def _state(self, asked: dict[str, str]) -> tuple[str, dict[str, bytes]]:
        state = self.at(asked["repo"], asked["revision"])
        assert state is not None, "refused before"
        return state


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
            token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
            start = int(re.sub(r"\D", " ", self.headers.get("Range", "0")).split()[0])
            status, data, headers = hub.answer(self.path, token, start)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            cuts = hub.cut.get(self.path.partition("/resolve/")[2].partition("/")[2])
            if body:
                self.wfile.write(data[: cuts.pop(0)] if cuts else data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
