"""Ctrl-C: a real SIGINT to a real process, at moments that a plugin marks; one line and exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import sys, time

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

class Finalised:
    def __del__(self):
        here()

def in_a_destructor():
    thing = Finalised()
    del thing
    while True:
        time.sleep(0.01)
"""


def interrupted(folder: Path, *words: str, program: str | None = None) -> tuple[int, str]:
    """Exit code and stderr of a command that is interrupted when it prints HERE."""
    (folder / "hangs.py").write_text(HANGS)
    (folder / "hangs_on_import.py").write_text("import hangs\nhangs.here()\n")
    command = [sys.executable, "-c", program] if program else [sys.executable, "-m", "agentbench_spec", *words]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "HERE":
                break
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
