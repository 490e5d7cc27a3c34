"""`scripts/forced_replay.py`: sessions of a live run give the same output and tau again, or it says where not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runkit import replay

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "results" / "recorded" / "live-bfcl-v3-smollm2-135m"


def forced(run: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "forced_replay.py", run]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "tests" / "unit")


def test_a_live_run_replays_to_the_same_tau_and_another_is_told(tiny: Path, tmp_path: Path) -> None:
    """Fails if the script takes a run for its own replay that is not, or finds a difference that is not there."""
    run = tmp_path / "live"
    done = replay(tiny, "adding_world:Sums", run, "--live", "--limit", "1")
    assert done.code == 0, done.err
    again = forced(run)
    assert again.returncode == 0 and "3 rows of 1 turns replayed: 0 differences" in again.stdout, again.stdout
    lines = [json.loads(line) for line in (run / "turns.jsonl").read_text().splitlines()]
    lines[-1]["output_ids"][0] += 1
    (run / "turns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = forced(run)
    assert found.returncode == 1 and "output_ids" in found.stdout, found.stdout


@pytest.mark.slow
def test_the_recorded_live_run_replays_to_the_same_tau() -> None:
    """Fails if the code on this machine decodes the recorded sessions otherwise than they were recorded."""
    again = forced(RECORDED)
    assert again.returncode == 0 and "119 rows of 17 turns replayed: 0 differences" in again.stdout, again.stdout
