"""What the hub says in place of a model: a small HTTP server in its place, a fresh process that asks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

READERS = {
    "target": "from agentbench_spec.engine.loading import load_model as read",
    "drafter": "from agentbench_spec_drafters.nets.checkpoint import open_checkpoint as read",
}
CASES: dict[str, tuple[int | None, str, tuple[str, ...]]] = {
    "gated": (403, "GatedRepo", ("gated", "hf auth login")),
    "gated-to-strangers": (401, "GatedRepo", ("gated", "hf auth login")),
    "hidden": (401, "", ("status 401", "hf auth login")),
    "closed": (403, "", ("status 403", "another token")),
    "unknown": (404, "RepoNotFound", ("status 404", "no model of that name")),
    "no-revision": (404, "RevisionNotFound", ("revision", "status 404")),
    "out-of-order": (500, "", ("out of order", "status 500")),
    "too-many": (429, "", ("status 429", "try again later")),
    "silent": (None, "", ("did not answer in time",)),
}
RETRIED = ("out-of-order", "too-many", "silent")
"""Asked once here: the library asks again for half a minute."""
ASK = """
import json
from huggingface_hub import constants, get_session
from huggingface_hub.utils import hf_raise_for_status
from agentbench_spec.errors import ConfigError, hub_said
def said(name):
    try:
        if name not in RETRIED:
            read("acme/" + name)
        url = f"{constants.ENDPOINT}/acme/{name}/resolve/main/config.json"
        hf_raise_for_status(get_session().get(url, timeout=0.5))
    except ConfigError as error:
        return str(error)
    except Exception as error:
        return hub_said(error)
print(json.dumps({name: said(name) for name in NAMES}))
"""


@contextmanager
def hub() -> Iterator[str]:
    """The address of a hub that answers for each repository as its case says; None: not before the client leaves."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, code, _ = CASES[next(name for name in CASES if f"/acme/{name}/" in f"{self.path}/")]
            if status is None:
                time.sleep(1)
                return
            self.send_response(status)
            for name, value in {"X-Error-Code": code, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("reader", READERS)
def test_what_the_hub_says_is_told_apart_with_the_way_out(tmp_path: Path, reader: str) -> None:
    """Fails if a user who must log in, correct a name, or wait is told anything else, for a target or a checkpoint."""
    code = f"{READERS[reader]}\nNAMES, RETRIED = {[*CASES]}, {RETRIED}\n{ASK}"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    env |= {"HF_HOME": str(tmp_path), "HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1", "NO_PROXY": "*"}
    with hub() as url:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env | {"HF_ENDPOINT": url}, capture_output=True, text=True, timeout=120)
    said = json.loads(done.stdout or "{}")
    assert said.keys() == CASES.keys(), done.stderr[-2000:]
    wrong = {name: text for name, text in said.items() if not all(word in text for word in CASES[name][2])}
    assert not wrong and not any("Without network" in text for text in said.values())
