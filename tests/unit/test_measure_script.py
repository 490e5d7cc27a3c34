"""`scripts/gpu/measure.sh` where there is no GPU: what it refuses, and that its parts run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentbench_spec.results.folder import read_manifest
from agentbench_spec.runs.geometry.geometry_rows import read_geometry

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu" / "measure.sh"


def measure(*arguments: object, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter; path: where programs are looked for."""
    env = {**os.environ, "PYTHON": sys.executable, **({} if path is None else {"PATH": path})}
    return subprocess.run(
        [str(SCRIPT), *map(str, arguments)], env=env, capture_output=True, text=True, timeout=400, check=False
    )


def programs(folder: Path, nvidia_smi: str) -> str:
    """A PATH on which `nvidia-smi` is this script."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{nvidia_smi}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_without_a_gpu_it_says_so_and_how_to_try_it(tmp_path: Path) -> None:
    """Fails if the script starts anything long on a machine whose driver finds no GPU, or leaves a folder behind."""
    done = measure("--out", tmp_path / "out", path=programs(tmp_path, "exit 9"))
    assert done.returncode == 2 and "--cpu" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("argument", ["5", "--gpu", "all"])
def test_what_is_no_part_is_refused(argument: str) -> None:
    """Fails if a word that means nothing to the script is passed over."""
    done = measure(argument)
    assert done.returncode == 2 and argument in done.stderr


def test_a_part_that_fails_is_not_done(tmp_path: Path) -> None:
    """Fails if a command that fails in the middle of a part lets the part go on and count as done."""
    (tmp_path / "qwen3-4b-launched").mkdir()
    (tmp_path / "qwen3-4b-launched" / "manifest.json").write_text(
        '{"schema": 1, "settings_digest": "of something else"}'
    )
    done = measure("--cpu", "--out", tmp_path, "1")
    assert done.returncode == 2 and not (tmp_path / "part1.done").exists()
    assert "holds another measurement" in done.stderr and not (tmp_path / "qwen3-4b-graphs").exists()


@pytest.mark.slow
def test_all_parts_run_on_a_cpu_and_none_is_run_again(tmp_path: Path) -> None:
    """Fails if a part cannot run, leaves no manifest and rows, or is due again once it is done; about two minutes."""
    (tmp_path / "part3.done").touch()
    done = measure("--cpu", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to do: 3 part(s)" in done.stdout and len(list(tmp_path.glob("part*.done"))) == 4
    folders = [path.parent for path in tmp_path.glob("*/geometry.jsonl")]
    assert sorted(folder.name for folder in folders) == [
        "qwen3-4b-graphs", "qwen3-4b-launched", "qwen3-4b-one-row", "qwen3-8b",
    ]  # fmt: skip
    for folder in folders:
        rows = read_geometry(folder)
        assert {row.status for row in rows} == {"ok"} and all(row.thin for row in rows)
        assert read_manifest(folder)["settings"]["tau_scripted"] == 3.0
    again = measure("--cpu", "--out", tmp_path)
    assert again.returncode == 0 and "to do: 0 part(s)" in again.stdout
