"""`swebench-predictions`: what was submitted is found in every format, and the file is what swebench reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reportkit import two_rollouts, write_run
from runkit import call

from agentbench_spec.errors import ConfigError, ContractError
from agentbench_spec.rollout import Message, Rollout, write_rollouts
from agentbench_spec.rollouts.importing import convert_row
from agentbench_spec.rollouts.predictions import Prediction, predictions_of, read_by_swebench, write_predictions

DIFF = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+2\n"
TALK = [{"role": "user", "content": "Fix it."}, {"role": "assistant", "content": "Done."}]
STEPS = {"trajectory": [], "history": TALK}


@pytest.mark.parametrize(
    "row",
    [
        {**STEPS, "info": {"submission": DIFF, "exit_status": "submitted"}},
        {"messages": TALK, "info": {"submission": DIFF, "exit_status": "Submitted"}},
        {"messages": [*TALK, {"role": "exit", "content": DIFF, "extra": {"submission": DIFF}}], "info": {}},
        {"messages": TALK, "test_result": {"git_patch": DIFF}},
        {"messages": TALK, "model_patch": DIFF},
        {"messages": TALK, "patch": DIFF, "traj_id": "t"},
        {"trajectory": [{"role": "user", "text": "Fix."}, {"role": "ai", "text": "Done."}], "generated_patch": DIFF},
    ],
    ids=["swe_agent", "mini_1", "mini_2", "openhands", "nebius_openhands", "swe_smith", "nebius"],
)
def test_a_recorded_submission_is_kept(row: dict[str, Any]) -> None:
    """Fails if the importer drops what a format of agents says was submitted."""
    assert convert_row({"instance_id": "a__b-1", **row}).source["submission"] == DIFF


@pytest.mark.parametrize(
    "row",
    [
        {"patch": DIFF, "problem_statement": "It is broken.", "base_commit": "c0ffee"},
        {"info": {"submission": None, "exit_status": "exit_cost"}},
        {"model_patch": " \n"},
    ],
    ids=["the solution of the data set", "null", "blank"],
)
def test_what_nobody_submitted_is_no_submission(row: dict[str, Any]) -> None:
    """Fails if an instance's own solution is graded as the model's, or nothing as something."""
    assert "submission" not in convert_row({"instance_id": "a__b-1", "messages": TALK, **row}).source


def session(name: str = "x", *, result: str = "", **fields: Any) -> Rollout:
    said = [Message(role="user", content="Fix it."), Message(role="assistant", content="Done.")]
    last = [Message(role="user", content=result)] if result else []
    return Rollout(id=name, workload="w", messages=(*said, *last), **fields)


def submitted(instance: str = "a__b-1", diff: str = DIFF, model: str = "m", name: str = "x") -> Rollout:
    return session(name, labels={"instance_id": instance, "model": model}, source={"submission": diff})


def test_instance_model_and_diff_are_found_where_they_stand() -> None:
    """Fails if a session that says all three in a way that sessions do is left out, or its diff is changed."""
    printed = f"<<SWE_AGENT_SUBMISSION>>\n{DIFF}<<SWE_AGENT_SUBMISSION>>"
    live = {"live": {"target": "own", "output_ids": {}}, "instance_id": "e__f-3", "submission": DIFF}
    made = predictions_of(
        [
            submitted(),
            session("runs/c__d.e-22/run", labels={"model_name": "n"}, result=printed),
            session("task", labels={"model": "not this"}, source=live),
        ]
    )
    assert made.left_out == []
    assert made.found == [
        Prediction("a__b-1", "m", DIFF),
        Prediction("c__d.e-22", "n", DIFF),
        Prediction("e__f-3", "own", DIFF),
    ]
    assert [one.model_name_or_path for one in predictions_of([submitted()], "given").found] == ["given"]


def test_what_cannot_be_graded_is_listed() -> None:
    """Fails if a session without a diff vanishes, or a later attempt takes the place of a failed first one."""
    made = predictions_of(
        [
            session("none"),
            session("a__b-1 or c__d-2"),
            session("first", labels={"instance_id": "a__b-1", "model": "m"}),
            submitted(name="second"),
            submitted("c__d-2", "I could not do it."),
        ]
    )
    assert made.found == []
    assert made.left_out == [
        ("none", "the session names no instance"),
        ("a__b-1 or c__d-2", "the session names no instance"),
        ("a__b-1", "the session submitted nothing"),
        ("a__b-1", "second is a further session; the first, first, counts"),
        ("c__d-2", "what was submitted is no diff: 'I could not do it.'"),
    ]
    with pytest.raises(ConfigError, match="'x' does not say which model it is of; give --model NAME"):
        predictions_of([session("x", source={"instance_id": "a__b-1", "submission": DIFF})])


@pytest.mark.parametrize("name", ["p.jsonl", "p.json"])
def test_the_verb_writes_the_file_and_the_command(tmp_path: Path, name: str) -> None:
    """Fails if the file lacks a field that swebench grades by, or the screen the command and what was left out."""
    write_rollouts(tmp_path / "mine.jsonl", [submitted(), session("none")])
    done = call("swebench-predictions", tmp_path / "mine.jsonl", "-o", tmp_path / name)
    assert done.code == 0, done.err
    text = (tmp_path / name).read_text()
    written = json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    assert written == [{"instance_id": "a__b-1", "model_name_or_path": "m", "model_patch": DIFF}]
    assert "left out: none: the session names no instance" in done.err
    assert (
        "grade with: python -m swebench.harness.run_evaluation --dataset_name SWE-bench/SWE-bench_Verified" in done.err
    )
    assert (done.last["predictions"], done.last["left_out"][0]["session"]) == (1, "none")


def test_a_run_gives_its_live_sessions_and_no_others(tmp_path: Path) -> None:
    """Fails if a replayed record is graded as the target's work, or a live run's own sessions are not found."""
    folder = write_run(tmp_path / "run", two_rollouts())
    assert "its target submitted nothing" in call("swebench-predictions", folder).error
    write_rollouts(folder / "live.jsonl", [submitted()])
    done = call("swebench-predictions", folder, "--model", "ours")
    assert done.code == 0 and done.last["file"] == str(folder / "predictions.jsonl")
    assert json.loads((folder / "predictions.jsonl").read_text())["model_name_or_path"] == "ours"


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """Fails if an empty file, or one that swebench does not read, or that takes its source's place is written."""
    path = tmp_path / "mine.jsonl"
    write_rollouts(path, [session("none")])
    assert "not one session submitted a diff" in call("swebench-predictions", path).error
    write_rollouts(path, [submitted()])
    assert "is the file that is read" in call("swebench-predictions", path, "-o", path).error
    assert "name it .jsonl or .json" in call("swebench-predictions", path, "-o", tmp_path / "p.csv").error
    assert "holds no run" in call("swebench-predictions", tmp_path).error


def _stub(*lines: Any) -> Callable[[str, str, str], list[dict[str, Any]]]:
    return lambda path, dataset, split: list(lines)


def test_a_file_that_is_read_as_something_else_is_found(tmp_path: Path) -> None:
    """Fails if the check with swebench's loader passes whatever the loader says."""
    path, made = tmp_path / "p.jsonl", [Prediction("a__b-1", "m", DIFF)]
    write_predictions(path, made)
    same = {"instance_id": "a__b-1", "model_name_or_path": "m", "model_patch": DIFF}
    assert read_by_swebench(path, made, _stub(same)) is None
    with pytest.raises(ContractError, match="reads something else"):
        read_by_swebench(path, made, _stub({**same, "model_patch": ""}))

    def refusing(path: str, dataset: str, split: str) -> list[dict[str, Any]]:
        raise ValueError("no instance_id")

    with pytest.raises(ContractError, match="refuses the file: no instance_id"):
        read_by_swebench(path, made, refusing)


@pytest.mark.parametrize("name", ["p.jsonl", "p.json"])
def test_swebench_itself_reads_the_file(tmp_path: Path, name: str) -> None:
    """Fails if the release that is installed reads another form than we write."""
    pytest.importorskip(
        "swebench.harness.utils",
        exc_type=ImportError,
        reason="the whole package is needed: pip install swebench==5.0.2",
    )
    made = [Prediction("a__b-1", "m", DIFF), Prediction("c__d-2", "m", DIFF + "é\u2028\n")]
    write_predictions(tmp_path / name, made)
    assert read_by_swebench(tmp_path / name, made) is None
