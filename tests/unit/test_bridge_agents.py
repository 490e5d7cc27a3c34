"""A real agent through the endpoint: mini-swe-agent finishes a toy task, and the rows say what each request took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bridgekit import ROOM, outputs, saying, serving, settings
from runkit import call, replay, rows_of

AGENT = """
import json, sys
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

url, folder = sys.argv[1:]
model = LitellmModel(
    model_name="openai/tiny", model_kwargs={"api_base": url, "api_key": "none"}, cost_tracking="ignore_errors"
)
agent = DefaultAgent(
    model,
    LocalEnvironment(cwd=folder),
    system_template="You work with a shell.",
    instance_template="{{task}}",
    step_limit=5,
    output_path=folder + "/toy__toy-1.traj.json",
)
print(json.dumps(agent.run("Put hello into a.txt.")))
"""
"""What a user of its Python interface writes."""


def bash(command: str) -> str:
    """What the target says to run a command."""
    call_of_bash = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<tool_call>\n{call_of_bash}\n</tool_call>"


@pytest.mark.slow
def test_mini_swe_agent_finishes_a_toy_task(tiny: Path, tmp_path: Path) -> None:
    """Fails if what the agent sends is refused, its calls do not come, or a request of it is not a row."""
    pytest.importorskip("minisweagent", reason="the agent is needed: pip install mini-swe-agent")
    work = tmp_path / "work"
    work.mkdir()
    diff = "diff --git a/a.txt b/a.txt\n--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+hello\n"
    (work / "patch").write_text(diff)
    script = saying(
        tiny,
        bash("echo hello > a.txt"),
        bash("cat a.txt"),
        bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch"),
    )
    config = settings(tiny, **{"decode.max_new_tokens": 300, "decode.k": 7})
    environ = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path / "config"),
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    }
    with serving(config, tmp_path / "run", script=script) as running:
        done = subprocess.run(
            [sys.executable, "-c", AGENT, running.url, str(work)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    assert (ended["exit_status"], ended["submission"]) == ("Submitted", diff)
    assert (work / "a.txt").read_text() == "hello\n"
    rows = running.rows
    assert outputs(rows) == [("session-1", turn, "ok") for turn in range(3)]
    assert all(row.drafter == "ngram" and row.call_valid and row.call_args_valid and row.decode_s for row in rows)
    assert all(row.reused_tokens and row.context_tokens and row.tau for row in rows[1:])
    forced = replay(
        tiny, running.folder / "live.jsonl", tmp_path / "forced", "--mode", "forced", *ROOM, "--max-new-tokens", "300"
    )
    assert forced.code == 0, forced.err
    again = [row for row in rows_of(tmp_path / "forced") if row.drafter == "ngram"]
    assert [(row.output_ids, row.tau) for row in again] == [(row.output_ids, row.tau) for row in rows]
    taken = tmp_path / "taken.jsonl"
    assert call("rollouts", "import", work / "toy__toy-1.traj.json", "-o", taken).code == 0
    graded = call("swebench-predictions", taken, "--model", "tiny")
    assert graded.code == 0 and json.loads((tmp_path / "predictions.jsonl").read_text())["model_patch"] == diff
