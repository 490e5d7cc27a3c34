"""Servers that are started, die, are killed and come back; clients that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from localmodel import save_rollouts, session
from servedkit import EAGLE3, FAKE, Behaviour, FakeServer, ended, free_port, launching, served, settings, timeless

from agentbench_spec.config import load_config
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.serving.engines import engine_of


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return save_rollouts(tmp_path / "rollouts.jsonl", *(session(name, 3) for name in "abcd"))


def test_dead_server_loses_one_rollout_and_resume_finishes(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """It dies in the third rollout: two are kept, the rest is decoded after its return, and nothing is there twice."""
    folder = tmp_path / "run"
    with FakeServer(Behaviour(dict(EAGLE3), faults={7: "die"})) as spec:
        config = settings(model, rollouts, spec.base_url)
        with pytest.raises(MeasurementError, match=r"2 rollouts were not replayed.*--resume"):
            served(config, folder)
        spec.revive()
        done = served(config, folder, resume=True)
        requests = len(spec.requests)
    assert requests == 8 + 6
    assert sorted((row.rollout, row.turn) for row in done.rows) == [(name, i) for name in "abcd" for i in range(3)]
    with FakeServer(Behaviour(dict(EAGLE3))) as spec:
        unbroken = served(settings(model, rollouts, spec.base_url), tmp_path / "other")
    assert [timeless(row) for row in done.rows] == [timeless(row) for row in unbroken.rows]


@contextmanager
def process(port: int, log: Path, *flags: str) -> Iterator[int]:
    """The fake server as a process of its own; yields its id. Each request leaves a line in `log`."""
    command = [sys.executable, str(FAKE), "--port", str(port), "--fake-log", str(log), *flags]
    child = subprocess.Popen(command)
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def kill_when(ready: Callable[[], bool], pid: Callable[[], int]) -> threading.Thread:
    """Kill a process without warning as soon as `ready`."""

    def wait_and_kill() -> None:
        deadline = time.monotonic() + 60
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(pid(), signal.SIGKILL)

    thread = threading.Thread(target=wait_and_kill, daemon=True)
    thread.start()
    return thread


def asked(log: Path) -> set[tuple[int, ...]]:
    """Prompts that a server process was sent."""
    return {tuple(json.loads(line)) for line in log.read_text().splitlines()} if log.exists() else set()


def begun(prompts: set[tuple[int, ...]]) -> int:
    """Rollouts among prompts: those that continue no other one. A rollout's prompts are each the next one's start."""
    return sum(not any(p != q and p[: len(q)] == q for q in prompts) for p in prompts)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_killed_server_loses_what_was_in_flight_and_resume_finishes(
    model: Path, rollouts: Path, tmp_path: Path, concurrency: int
) -> None:
    """kill -9 of a server process in the middle of a later rollout: at most one a slot is decoded again."""
    port, folder, logs = free_port(), tmp_path / "run", (tmp_path / "first", tmp_path / "second")
    url = f"http://127.0.0.1:{port}"
    config = settings(model, rollouts, url, sglang__concurrency=concurrency)
    with process(port, logs[0], "--fake-step-s", "0.03") as pid:
        killer = kill_when(lambda: len(asked(logs[0])) > 4 * concurrency, lambda: pid)
        with pytest.raises(MeasurementError, match=r"rollouts were not replayed, no server is left.*--resume"):
            served(config, folder)
        killer.join()
    kept = (folder / "parts" / "none" / "rollouts.jsonl").read_text().splitlines()
    with process(port, logs[1]):
        done = served(config, folder, resume=True)
    again = begun(asked(logs[0]) & asked(logs[1]))
    assert 1 <= again <= concurrency and len(kept) == begun(asked(logs[0])) - again
    assert sorted((row.rollout, row.turn) for row in done.rows) == [(name, i) for name in "abcd" for i in range(3)]
    assert all(row.status == "ok" for row in done.rows)


def test_launched_server_that_dies_shows_its_log_and_resume_starts_another(
    model: Path, rollouts: Path, tmp_path: Path
) -> None:
    """kill -9 of a launched server in mid-run: its last words are in the error, and the run goes on with a new one."""
    pids, log, folder = tmp_path / "pids", tmp_path / "log", tmp_path / "run"
    slow = launching(model, rollouts, pids, "--fake-step-s", "0.02", "--fake-log", str(log), drafters=["none"])
    killer = kill_when(lambda: len(asked(log)) > 3, lambda: int(pids.read_text().split()[-1]))
    with pytest.raises(MeasurementError, match=r"The server ended; the end of .*server-none\.log(.|\n)*fake-log"):
        served(slow, folder)
    killer.join()
    done = served(slow, folder, resume=True)
    assert len(done.rows) == 12 and len(pids.read_text().split()) == 2 and ended(pids)


def test_refused_connections_end_soon_and_only_for_servers_of_others(
    model: Path, rollouts: Path, tmp_path: Path
) -> None:
    """A mistyped port must not cost half an hour; our own server, that loads before it listens, must be waited for."""
    port = free_port()
    url, start = f"http://127.0.0.1:{port}", time.monotonic()
    with pytest.raises(ConfigError, match=r"refused\) for 0\.3 s; start a server there.*refused_grace_s"):
        served(settings(model, rollouts, url, sglang__refused_grace_s=0.3), tmp_path / "one")
    assert time.monotonic() - start < 10 and not (tmp_path / "one" / "parts").exists()
    with process(port, tmp_path / "log", "--fake-load-s", "1"):
        patient = settings(model, rollouts, url, sglang__refused_grace_s=20.0, workload__limit=1)
        assert len(served(patient, tmp_path / "two").rows) == 3
    pids = tmp_path / "pids"
    own = launching(model, rollouts, pids, "--fake-load-s", "1", sglang__refused_grace_s=0.1, workload__limit=1)
    assert len(served(own, tmp_path / "three").rows) == 3


def test_a_taken_port_is_not_launched_on(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """What listens there would answer the health check and be measured in our server's place."""
    with FakeServer() as other:
        port = int(other.base_url.rpartition(":")[2])
        config = launching(model, rollouts, tmp_path / "pids", sglang__port=port)
        with pytest.raises(ConfigError, match=f"sglang.port={port}: Address already in use"):
            served(config, tmp_path / "run")
        assert other.requests == []


def test_launch_starts_measures_and_ends_a_server_per_drafter(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """The baseline is added, both get the same limit, both logs are kept, and no server is left behind."""
    pids = tmp_path / "pids"
    done = served(launching(model, rollouts, pids, drafters=["NGRAM"], workload__limit=2), tmp_path / "run")
    assert {row.drafter for row in done.rows} == {"none", "ngram"}
    assert len(pids.read_text().split()) == 2 and ended(pids)
    logs = [(tmp_path / "run" / f"server-{name}.log").read_text() for name in ("none", "ngram")]
    assert all("--max-running-requests 64" in log for log in logs) and "--speculative-algorithm NGRAM" in logs[1]
    ports = [int(port) for log in logs for port in re.findall(r"--port (\d+)", log)]
    assert len(ports) == 2 and max(ports) < 32_768  # none that the system gives to others while the server loads


def test_launch_that_fails_shows_the_log(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A server that dies while starting: its last words are in the error, and waiting stops at once."""
    config = launching(model, rollouts, tmp_path / "pids", "--fake-exit", "no such model")
    with pytest.raises(ConfigError, match=r"ended while it was starting(.|\n)*no such model"):
        served(config, tmp_path / "run")


@pytest.mark.parametrize(("number", "group"), [(signal.SIGKILL, False), (signal.SIGTERM, True)])
def test_killed_client_leaves_no_server(
    model: Path, rollouts: Path, tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    """The client is killed in mid-run, alone or with its whole process group: its server ends all the same.

    With the group, the supervisor used to die too, and the server went on for ever.
    """
    pids, folder = tmp_path / "pids", tmp_path / "run"
    config = launching(model, rollouts, pids, "--fake-step-s", "0.2")
    code = (
        "import sys, json; from pathlib import Path; from agentbench_spec.config import RunConfig\n"
        "from agentbench_spec.serving.served_run import run_served\n"
        "run_served(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), environ={})"
    )
    command = [sys.executable, "-c", code, config.model_dump_json(), str(folder)]
    child = subprocess.Popen(command, start_new_session=True)
    begun = folder / "parts" / "none" / "manifest.json"
    deadline = time.monotonic() + 60
    while not begun.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert begun.exists()
    (os.killpg if group else os.kill)(child.pid, number)
    child.wait()
    assert ended(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signalled_supervisor_ends_its_server_first(tmp_path: Path, number: signal.Signals) -> None:
    """`kill` of the process that holds the server: it must take the server with it, not leave it without a keeper."""
    pids = tmp_path / "pids"
    code = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(60)"
    command = ["-m", "agentbench_spec.serving.supervise", sys.executable, "-c", code, str(pids)]
    keeper = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not (pids.exists() and pids.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    keeper.send_signal(number)
    keeper.wait(timeout=30)
    assert ended(pids)


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        ("EAGLE3", {}, "needs a draft model"),
        ("dlite", {}, "needs a draft model: write dlite="),
        ("dflash2", {}, "needs a draft model"),
        ("draft_lm=d", {"num_steps": 3}, "go together"),
        ("EAGLE3=d", {"num_steps": 3}, "go together"),
        ("none=d", {}, "takes no draft"),
    ],
)
def test_drafters_that_cannot_be_launched(given: str, options: dict[str, Any], why: str) -> None:
    """Refused before a minute is spent on loading the target."""
    with pytest.raises(ConfigError, match=why):
        engine_of("sglang").launchable(given, options)


def test_options_become_flags() -> None:
    """A plugin's algorithm and any option go through by name; flags without a value stay without one."""
    config = load_config(
        flags={"backend": "sglang", "sglang.launch": True, "target.source": "m", "drafters": ["dlite=d"]}
    )
    own = engine_of("sglang").launchable("dlite=d", {"num_draft_tokens": 8, "use_rejection_sampling": True})
    words = engine_of("sglang").flags(own, config, 1)
    assert words[-7:] == [
        *("--speculative-algorithm", "DLITE", "--speculative-draft-model-path", "d"),
        *("--speculative-num-draft-tokens", "8", "--speculative-use-rejection-sampling"),
    ]
