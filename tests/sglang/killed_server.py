"""A launched server that is killed without warning in mid-run, whatever its engine, and the run that resumes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import MeasurementError
from agentbench_spec.serving.served_run import run_served


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_pid(port: int, launcher: str) -> int:
    """The process of the server on `port`, not its supervisor."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if launcher in words and str(port) in words and not any("supervise" in word for word in words):
            return int(entry.parent.name)
    raise LookupError(f"no server on port {port}")


def kill_after_a_rollout(done: Path, port: int, launcher: str) -> None:
    """Kill the server without warning while it is in its second rollout."""
    deadline = time.monotonic() + 800
    while not (done.is_file() and done.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(server_pid(port, launcher), signal.SIGKILL)


def assert_survives_a_kill(config: RunConfig, folder: Path) -> None:
    """--launch of the baseline and n-gram; the first server is killed in mid-run. One rollout is lost, --resume
    finishes the run, the kept rollout is not decoded again, and no server is left."""
    port, launcher = config.servers.port, config.servers.command[-1]
    assert port is not None
    part = folder / "parts" / "none"
    killer = threading.Thread(target=kill_after_a_rollout, args=(part / "rollouts.jsonl", port, launcher), daemon=True)
    killer.start()
    with pytest.raises(MeasurementError, match=r"2 rollouts were not replayed(.|\n)*The server ended; the end of"):
        run_served(config, folder, environ={})
    killer.join()
    kept = (part / "turns.jsonl").read_text().splitlines()[:3]
    rows = run_served(config, folder, resume=True, environ={}).rows
    assert (part / "turns.jsonl").read_text().splitlines()[:3] == kept
    assert Counter((row.drafter, row.status) for row in rows) == {("none", "ok"): 9, ("ngram", "ok"): 9}
    assert all(row.identical for row in rows if row.drafter == "ngram")
    assert (folder / "server-none.log").read_text().count("$ ") >= 2
    with pytest.raises(LookupError):
        server_pid(port, launcher)
