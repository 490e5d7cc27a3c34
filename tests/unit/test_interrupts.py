"""Ctrl-C: a real SIGINT to a real process, at moments that a plugin marks; one line and exit code 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from localmodel import save_model, save_rollouts, session
from servedkit import FAKE, ended

from agentbench_spec.results.folder import read_run

HANGS = """
import pathlib, sys, time

def here():
    print("HERE", flush=True)
    while True:
        time.sleep(0.01)

def at_make():
    here()

def swallows_as_another():
    try:
        here()
    except KeyboardInterrupt:
        raise ImportError("initialization failed") from None

def drafter():
    from agentbench_spec.drafting import DrafterSpec, SequenceDrafter

    class Swallows(SequenceDrafter):
        spec = DrafterSpec(name="swallows")
        asked = 0

        def propose_one(self, row, text, k):
            self.asked += 1
            if self.asked > 8 and not pathlib.Path("calm").exists():
                try:
                    here()
                except KeyboardInterrupt:
                    raise RuntimeError("interrupted system call") from None
            return text[-1:]

    return Swallows()

class Finalised:
    def __del__(self):
        here()

def in_a_destructor():
    thing = Finalised()
    del thing
    while True:
        time.sleep(0.01)
"""


def interrupted(
    folder: Path, *words: object, program: str | None = None, begun: Callable[[], bool] | None = None
) -> tuple[int, str]:
    """Exit code and stderr of a command that is interrupted when it prints HERE, or when `begun` says so."""
    (folder / "hangs.py").write_text(HANGS)
    (folder / "hangs_on_import.py").write_text("import hangs\nhangs.here()\n")
    command = (
        [sys.executable, "-c", program] if program else [sys.executable, "-m", "agentbench_spec", *map(str, words)]
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if begun is None:
            for line in process.stdout:
                if line.strip() == "HERE":
                    break
        while begun is not None and not begun() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    return process.returncode, said


@pytest.mark.parametrize(
    "workload", ["hangs_on_import:x", "hangs:at_make", "hangs:swallows_as_another", "hangs:in_a_destructor"]
)
def test_an_interrupt_in_a_plugin_is_one_line(tmp_path: Path, workload: str) -> None:
    """Fails if an interrupt is a traceback, a plugin's fault, or lost where something else is made of it."""
    code, said = interrupted(tmp_path, "rollouts", "build", workload, "-o", "out.jsonl")
    assert (code, said.strip()) == (130, "interrupted")
    assert not (tmp_path / "out.jsonl").exists() and not list(tmp_path.glob(".*partial"))


def test_an_interrupt_of_the_imports_is_one_line(tmp_path: Path) -> None:
    """Fails if nobody takes the interrupt while the command line itself is being imported."""
    (tmp_path / "typer.py").write_text("import hangs\nhangs.here()\n")
    program = "from agentbench_spec.cli import start; start()"
    assert interrupted(tmp_path, program=program) == (130, "interrupted\n")


def last_line(said: str) -> str:
    """The last line that was said; there is no traceback."""
    assert "Traceback" not in said, said
    return said.splitlines()[-1]


def test_an_interrupt_that_a_drafter_makes_an_error_of_ends_the_run(tmp_path: Path) -> None:
    """Fails if a run goes on with an error row for a drafter that swallowed Ctrl-C, or cannot be resumed."""
    model, data = save_model(tmp_path / "model"), tmp_path / "data.jsonl"
    save_rollouts(data, session("a"), session("b"))
    small = ("--max-new-tokens", 6, "--set", "target.fast_linears=false", "--out", "run")
    words = ("run", "--target", model, "--workload", data, "--drafter", "hangs:drafter", *small)
    code, said = interrupted(tmp_path, *words)
    assert code == 130 and last_line(said).startswith("interrupted; ") and "--resume" in last_line(said)
    (tmp_path / "calm").touch()
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "agentbench_spec", "run", "--out", "run", "--resume"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = read_run(tmp_path / "run")[1]
    assert {row.status for row in rows} == {"ok"} and len(rows) == 2 * 2 * 3


def test_an_interrupt_ends_a_launched_server(tmp_path: Path) -> None:
    """Fails if Ctrl-C leaves a server that we launched, or says more than a line."""
    model, data, pids = save_model(tmp_path / "model"), tmp_path / "data.jsonl", tmp_path / "pids"
    save_rollouts(data, session("a"))
    server = [sys.executable, str(FAKE), "--fake-pid-file", str(pids)]
    words = ("run", "--backend", "sglang", "--launch", "--target", model, "--workload", data, "--out", "run")
    asked = f"sglang.command={json.dumps(server)}", 'sglang.server_args=["--fake-step-s", "0.2"]'
    begun = (tmp_path / "run" / "parts" / "none" / "manifest.json").exists
    sets = [word for one in asked for word in ("--set", one)]
    code, said = interrupted(tmp_path, *words, *sets, begun=begun)
    assert code == 130 and last_line(said).startswith("interrupted"), said
    assert ended(pids)
