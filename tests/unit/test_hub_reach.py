"""A hub that is not there: noticed in seconds, told, and never taken for one that merely answers oddly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agentbench_spec.engine.hub_reach import go_offline_if_unreachable, is_hub_id, unreachable


@contextmanager
def server(status: int) -> Iterator[str]:
    """A server that answers every question with one status; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def closed() -> str:
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("status", [200, 401, 404, 503])
def test_a_hub_that_answers_is_reachable(status: int) -> None:
    """Fails if a mirror without a front page, or one that wants a token, is taken for no network: real users would be
    cut off."""
    with server(status) as endpoint:
        assert unreachable(endpoint) is None
        environ = {"HF_ENDPOINT": endpoint}
        assert go_offline_if_unreachable(["acme/model"], environ) is None and "HF_HUB_OFFLINE" not in environ


def test_a_server_that_is_silent_is_given_up_in_time() -> None:
    """Fails if a network that swallows packets holds the user up for as long as it likes."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        assert unreachable(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3) is not None
        assert time.monotonic() - start < 5


def test_a_hub_that_is_not_there_is_told_with_the_way_on() -> None:
    """Fails if the libraries are left to their retries, or the user is not told how to make them try all the same."""
    endpoint = closed()
    environ = {"HF_ENDPOINT": endpoint}
    told = go_offline_if_unreachable([None, "smollm2-135m", "acme/model"], environ)
    assert told is not None and environ["HF_HUB_OFFLINE"] == "1"
    assert endpoint in told and "refused" in told and "HF_HUB_OFFLINE=0" in told


@pytest.mark.parametrize(
    ("sources", "more"),
    [
        (["smollm2-135m", None, ""], {}),
        (["acme/model"], {"HF_HUB_OFFLINE": "0"}),
        (["acme/model"], {"HF_HUB_OFFLINE": "1"}),
        (["acme/model"], {"TRANSFORMERS_OFFLINE": "1"}),
    ],
)
def test_nothing_is_asked_where_no_answer_is_needed(sources: list[str | None], more: dict[str, str]) -> None:
    """Fails if offline users wait for a hub they do not use, or a variable the user has set is overruled."""
    environ = {"HF_ENDPOINT": closed(), **more}
    assert go_offline_if_unreachable(sources, environ) is None
    assert environ.get("HF_HUB_OFFLINE") == more.get("HF_HUB_OFFLINE")


def test_a_proxy_stands_for_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if users behind a proxy, whose machines cannot look up the hub's name, are cut off from it."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    environ = {"HF_ENDPOINT": "https://hub.invalid"}
    assert go_offline_if_unreachable(["acme/model"], environ) is None and "HF_HUB_OFFLINE" not in environ


@pytest.mark.parametrize(
    ("source", "is_one"),
    [("acme/model", True), ("gpt2", True), ("smollm2-135m", False), ("./model", False), ("a/b/c", False), ("", False)],
)
def test_hub_ids_are_told_from_paths(
    source: str, is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a folder of the user's is taken for a hub id, or an id for a folder."""
    monkeypatch.chdir(tmp_path)
    assert is_hub_id(source) is is_one
    (tmp_path / "acme" / "model").mkdir(parents=True)
    assert is_hub_id("acme/model") is False


def test_the_command_line_fails_fast_without_a_hub(tmp_path: Path) -> None:
    """Fails if a hub id is tried again and again without network: `run` took 53 s to give up, `check` 33."""
    online = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    env = {**online, "HF_ENDPOINT": closed(), "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "agentbench_spec", "rollouts", "stats", "synthetic_agent"]
    options = ["--limit", "1", "--target", "acme/model"]
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "Retrying" not in done.stderr and "gives no answer" in done.stderr
    assert "model 'acme/model'" in done.stderr and "give the folder" in done.stderr


def test_the_library_fails_fast_without_a_hub(tmp_path: Path) -> None:
    """Fails if `ab.run` retries for minutes where the command line answers, or only as long as no hub is imported."""
    online = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    env = {**online, "HF_ENDPOINT": closed(), "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    program = (
        "import huggingface_hub, agentbench_spec as ab\n"
        "try:\n"
        "    ab.run(target='acme/model', workload='synthetic_agent', limit=1, tell=print)\n"
        "except ab.ConfigError as error:\n"
        "    print('refused:', error)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "Retrying" not in done.stderr, done.stderr
    assert "gives no answer" in done.stdout and "refused: model 'acme/model'" in done.stdout
