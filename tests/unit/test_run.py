"""Whole runs on a tiny model: the folder they leave, kills and resumes, bad data, drafters that misbehave."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import odd_plugins
import pandas as pd
import pytest
from localmodel import session
from rowkit import make_row
from runkit import SMALL, Done, call, replay, rows_of, without_clocks

from agentbench_spec.config import load_config
from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.folder import read_manifest, read_rounds, read_run
from agentbench_spec.results.metrics import Losslessness
from agentbench_spec.results.summary import Summary, summarise
from agentbench_spec.results.verdict import lossless, reasons
from agentbench_spec.rollout import write_rollouts
from agentbench_spec.runs.execute import run

HERE = Path(__file__).parent
HOLD = ("--drafter", "odd_plugins:hold", "--drafter", "ngram")


@pytest.fixture(scope="module")
def finished(tiny: Path, rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """One unbroken run with rounds: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    return folder, replay(tiny, rollouts, folder, *HOLD, "--set", "measure.rounds=true")


# the folder a run leaves


def test_a_run_prints_a_table_and_one_json_line(finished: tuple[Path, Done]) -> None:
    """Fails if stdout cannot be piped into a JSON reader, or the table misses a drafter."""
    folder, done = finished
    assert done.code == 0 and len(done.out.splitlines()) == 1
    assert done.last["run"] == str(folder) and done.last["lossless"] is True and done.last["measured"] is True
    assert [own["drafter"] for own in done.last["drafters"]] == ["none", "odd_plugins:hold", "ngram"]
    table = done.err[done.err.index("τ raw") :]
    assert all(name in table for name in ("none", "odd_plugins:hold", "ngram", "identical", "speed-up"))
    assert "the baseline took" in done.err
    assert "rollout 3/3: 100%" in done.err and "9/9" in done.err and "turn 3/3, 383 tokens" in done.err


def test_a_run_folder_is_complete(finished: tuple[Path, Done]) -> None:
    """Fails if a file of the run folder is missing, or two of them tell different stories."""
    folder, done = finished
    manifest, rows = read_run(folder)
    assert {p.name for p in folder.iterdir()} == {
        ".lock",
        "manifest.json",
        "rollouts.jsonl",
        "rounds.jsonl",
        "summary.json",
        "turns.jsonl",
        "turns.parquet",
    }
    assert len(rows) == 3 * 3 * 3 and Counter(row.status for row in rows) == {"ok": 27}
    frame = pd.read_parquet(folder / "turns.parquet")
    assert list(frame["output_tokens"]) == [row.output_tokens for row in rows]
    assert list(frame["stop_reason"]) == [row.stop_reason for row in rows]
    assert len(read_rounds(folder)) == sum(row.rounds or 0 for row in rows)
    assert manifest["settings"]["decode"]["max_new_tokens"] == 24 and manifest["settings"]["drafters"] == list(
        HOLD[1::2]
    )
    assert manifest["data"]["rollouts"] == 3 and len(manifest["data"]["sha256"]) == 64 and manifest["finished"]
    assert set(manifest["warm_up_s"]) == {"none", "odd_plugins:hold", "ngram"}
    assert done.last["drafters"][2]["tau"]["pooled"] > 1.2, "look-up drafts must be accepted for the tests to mean much"


def test_settings_in_the_manifest_repeat_the_run(finished: tuple[Path, Done], tiny: Path, tmp_path: Path) -> None:
    """Fails if a default, flag or --set is not in the resolved copy, so that a run could not be made again from it."""
    folder, _ = finished
    again = run(load_config(base=read_manifest(folder)["settings"]), tmp_path / "again")
    assert without_clocks(again.rows) == without_clocks(rows_of(folder))


def test_rounds_are_written_on_request_only(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if every run pays for a file that few read; and a run without drafters claims to be lossless."""
    done = replay(tiny, rollouts, tmp_path / "run", "--limit", 1, "--max-turns", 1, "--drafter", "none")
    assert done.code == 0 and not (tmp_path / "run" / "rounds.jsonl").exists()
    assert done.last["lossless"] is None and len(rows_of(tmp_path / "run")) == 1


@pytest.mark.parametrize(
    ("arguments", "column", "value"),
    [
        (("--mode", "forced"), "decode_mode", "forced"),
        (("--history", "self"), "history_mode", "self"),
        (("--set", "replay.prefix=cold"), "prefix_mode", "cold"),
        (("--temperature", 0.5), "temperature", 0.5),
        (("--temperature", 1, "--set", "decode.top_k=5"), "top_k", 5),
        (("--temperature", 1, "--set", "decode.top_p=0.9"), "top_p", 0.9),
        (("--k", 0), "k", 0),
        (("--set", "measure.clock=both"), "clock", "both"),
        (("--set", "measure.tie_tolerance=0"), "divergence", "none"),
        (("--dtype", "bf16"), "status", "ok"),
    ],
)
def test_settings_reach_the_rows(
    tiny: Path, rollouts: Path, tmp_path: Path, arguments: tuple[object, ...], column: str, value: object
) -> None:
    """Fails if a setting is accepted and not obeyed, or not told by the rows."""
    done = replay(tiny, rollouts, tmp_path / "run", "--limit", 1, "--drafter", "ngram", *arguments)
    rows = rows_of(tmp_path / "run")
    assert done.code == 0 and len(rows) == 6 and {row.status for row in rows} == {"ok"}
    assert {getattr(row, column) for row in rows} == {value}
    if column == "decode_mode":
        assert {row.stop_reason for row in rows} <= {"end_of_record", "stop", "length"}
        assert {tuple(row.output_ids or ()) for row in rows if row.turn == 0} == {tuple(rows[0].output_ids or ())}
    if column == "prefix_mode":
        assert {row.reused_tokens for row in rows} == {0}
    if column == "temperature":
        assert done.last["lossless"] is None
    if column == "k":
        assert {row.proposed for row in rows} == {0}


# killed, interrupted, resumed


@pytest.fixture(scope="module")
def held(tiny: Path, rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A run in another process that stands still in its second rollout: its folder and process id."""
    folder = tmp_path_factory.mktemp("held") / "run"
    command = [sys.executable, "-m", "agentbench_spec", "run", "--target", str(tiny), "--workload", str(rollouts)]
    command += ["--out", str(folder), *SMALL, *HOLD, "--set", "measure.rounds=true", "--set", "measure.threads=1"]
    env = {**os.environ, odd_plugins.HOLD_FILE: str(folder / "turns.jsonl"), odd_plugins.HOLD_LINES: "12"}
    with subprocess.Popen(command, cwd=HERE, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        give_up = time.monotonic() + 120
        while not _lines(folder / "turns.jsonl") >= 12:
            assert child.poll() is None and time.monotonic() < give_up, "the run ended before it could be killed"
            time.sleep(0.02)
        yield folder, child.pid
        child.kill()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_kill_and_resume_equals_an_unbroken_run(
    held: tuple[Path, int], finished: tuple[Path, Done], tmp_path: Path
) -> None:
    """Fails if a second process may write beside the first, or a kill -9 loses, doubles or changes a row."""
    folder, pid = held
    beside = call("run", "--resume", "--out", folder)
    assert beside.code == 2 and f"{folder} is being written by process {pid}" in beside.error
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert _lines(folder / "rollouts.jsonl") == 1

    for arguments, setting in ((("--k", 3), "settings.decode.k (7 -> 3)"), (("--seed", 5), "settings.measure.seed")):
        refused = call("run", "--resume", "--out", folder, *arguments)
        assert refused.code == 2 and setting in refused.error

    done = call("run", "--resume", "--out", folder)
    assert done.code == 0 and "33%" in done.err  # the turns of the killed process count
    assert without_clocks(rows_of(folder)) == without_clocks(rows_of(finished[0]))
    assert len(read_rounds(folder)) == len(read_rounds(finished[0]))
    manifest = read_manifest(folder)
    assert [entry["complete_rollouts"] for entry in manifest["resumes"]] == [1]
    assert manifest["resumes"][0]["dropped_rows"] == 3 and manifest["settings_digest"]


def test_resuming_over_other_data_is_refused(tiny: Path, tmp_path: Path) -> None:
    """Fails if rows of two versions of one data file end in one folder."""
    file = tmp_path / "mine.jsonl"
    write_rollouts(file, [session("a", 1)])
    replay(tiny, file, tmp_path / "run", "--drafter", "none")
    write_rollouts(file, [session("a", 1), session("b", 1)])
    done = call("run", "--resume", "--out", tmp_path / "run")
    assert done.code == 2 and "data.rollouts (1 -> 2)" in done.error and "data.sha256" in done.error


def test_resuming_a_finished_run_changes_no_row(finished: tuple[Path, Done]) -> None:
    """Fails if resuming once too often decodes again, or fails."""
    folder, first = finished
    before = (folder / "turns.jsonl").read_bytes()
    again = call("run", "--resume", "--out", folder)
    assert again.code == 0 and (folder / "turns.jsonl").read_bytes() == before
    assert again.last["drafters"] == first.last["drafters"]


def test_ctrl_c_says_how_to_go_on_and_it_does(
    tiny: Path, rollouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an interrupt ends in a traceback, with code 0 or 1, or leaves a folder that cannot be resumed."""
    folder = tmp_path / "run"
    monkeypatch.setenv(odd_plugins.INTERRUPT_FILE, str(folder / "rollouts.jsonl"))
    stopped = replay(tiny, rollouts, folder, "--drafter", "odd_plugins:interrupt", "--max-turns", 1)
    assert stopped.code == 130 and "Traceback" not in stopped.err and stopped.out == ""
    assert f"interrupted; continue with: agentbench-spec run --resume --out {folder}" in stopped.err
    monkeypatch.delenv(odd_plugins.INTERRUPT_FILE)
    done = call("run", "--resume", "--out", folder)
    assert done.code == 0 and [(row.rollout, row.drafter) for row in rows_of(folder)] == [
        (rollout, drafter) for rollout in "abc" for drafter in ("none", "odd_plugins:interrupt")
    ]


def test_a_taken_folder_is_refused_before_the_model_is_loaded(finished: tuple[Path, Done], rollouts: Path) -> None:
    """Fails if a user waits for a model to load only to hear that --out is taken."""
    folder, _ = finished
    done = replay(Path("/no/such/model"), rollouts, folder)
    assert done.code == 2 and f"{folder} already holds a run" in done.error and "--resume" in done.error


# drafters that misbehave


def test_a_target_that_is_tampered_with_voids_the_run(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if output that differs from plain decoding beyond a tie is printed as a result with exit code 0."""
    done = replay(tiny, rollouts, tmp_path / "run", "--drafter", "odd_plugins:vandal", "--limit", 1, "--max-turns", 1)
    assert done.code == 1 and done.last["lossless"] is False
    assert "void: a greedy output differs" in done.err and "NOT LOSSLESS" in done.err
    assert {row.drafter: row.divergence for row in rows_of(tmp_path / "run")} == {
        "none": "none",
        "odd_plugins:vandal": "error",
    }


def test_lossless_is_a_claim_about_comparisons_that_were_made(finished: tuple[Path, Done]) -> None:
    """Fails if the baseline's agreement with itself counts, or one error among many turns is forgiven."""
    summary = summarise(rows_of(finished[0]))
    assert lossless(summary) is True
    assert lossless(Summary(summary.drafters[:1], [])) is None
    bad = dataclasses.replace(summary.drafters[1], losslessness=Losslessness(compared=9, identical=8, ties=0, errors=1))
    assert lossless(Summary([summary.drafters[0], bad, summary.drafters[2]], [])) is False
    tied = dataclasses.replace(
        summary.drafters[1], losslessness=Losslessness(compared=9, identical=8, ties=1, errors=0)
    )
    assert lossless(Summary([tied], [])) is True


def test_a_broken_drafter_costs_its_own_rows_only(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if one drafter's exception ends the run (in warm-up too), the screen does not say what it was, or a script
    that asked for the drafter is told that all is well.
    """
    done = replay(tiny, rollouts, tmp_path / "run", "--drafter", "odd_plugins:broken", "--drafter", "ngram")
    assert done.code == 1 and done.last["measured"] is True
    assert "odd_plugins:broken: not one turn could be decoded" in done.err
    status = {row.drafter: row.status for row in rows_of(tmp_path / "run")}
    assert status == {"none": "ok", "odd_plugins:broken": "error", "ngram": "ok"}
    assert "this drafter [never] works" in done.err and "odd_plugins:broken: 9 turns left out: error" in done.err
    assert read_manifest(tmp_path / "run")["warm_up_s"]["odd_plugins:broken"] is None


@pytest.mark.parametrize("name", ["quits", "quits_at_once"])
def test_a_drafter_that_ends_the_process_costs_its_own_rows_only(
    tiny: Path, rollouts: Path, tmp_path: Path, name: str
) -> None:
    """Fails if a plugin's sys.exit(0), in the loop or in a prefill, ends everyone's run with the code of success."""
    done = replay(tiny, rollouts, tmp_path / "run", "--drafter", f"odd_plugins:{name}", "--drafter", "ngram")
    assert done.code == 1 and f"odd_plugins:{name}: not one turn could be decoded" in done.err
    assert "ContractError: it called sys.exit(0) (at odd_plugins.py:" in done.err
    status = {row.drafter: row.status for row in rows_of(tmp_path / "run")}
    assert status == {"none": "ok", f"odd_plugins:{name}": "error", "ngram": "ok"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--drafter", "odd_plugins:no_opening"),
            "drafter 'odd_plugins:no_opening': open() failed: RuntimeError: no room",
        ),
        (
            ("--drafter", "odd_plugins:no_making"),
            "its factory odd_plugins:no_making failed: ValueError: invalid literal",
        ),
        (
            ("--drafter", "odd_plugins:quits_when_made"),
            "quits_when_made failed: it called sys.exit(0) (at odd_plugins.py",
        ),
        (
            ("--workload", "odd_plugins:fails_reading"),
            "reading its rollouts failed: KeyError: 'no such column' (at odd_",
        ),
        (
            ("--workload", "odd_plugins:quits_reading"),
            "workload listed: reading its rollouts failed: it called sys.exit(0)",
        ),
    ],
)
def test_a_plugin_that_cannot_be_had_is_named_with_its_cause(
    tiny: Path, rollouts: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    """Fails if a plugin's own fault shows as a traceback or as success, or lacks plugin, cause and place."""
    done = replay(tiny, rollouts, tmp_path / "run", *arguments)
    assert done.code == 1 and says in done.error and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--target", "/no/such/model", "--k", 100_000),
            "setting decode.k: expected at most 1024; lower it, got 100000",
        ),
        (("--k", 1024), "decode.k=1024 drafts more tokens in a round than 1024 tokens have room for (the window"),
        (("--k", 64, "--set", "target.capacity_tokens=64"), "in a round than 64 tokens have room for (target.capacity"),
    ],
)
def test_more_draft_tokens_than_fit_are_refused(
    tiny: Path, rollouts: Path, tmp_path: Path, arguments: tuple[object, ...], says: str
) -> None:
    """Fails if a mistyped k is answered by a full memory, or only after the model was loaded."""
    done = replay(tiny, rollouts, tmp_path / "run", *arguments)
    assert done.code == 2 and says in done.error and not (tmp_path / "run").exists()


def test_one_drafter_with_two_checkpoints_is_two_drafters(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if their rows share a name, or one of them runs under the plain name of both."""
    names = ("odd_plugins:repeat=1", "odd_plugins:repeat=2")
    given = [part for name in (*names, names[0]) for part in ("--drafter", name)]
    done = replay(tiny, rollouts, tmp_path / "run", *given, "--limit", 1)
    rows = rows_of(tmp_path / "run")
    assert done.code == 0 and Counter(row.drafter for row in rows) == dict.fromkeys(("none", *names), 3)
    assert [max(row.proposed_lengths or [0]) for row in rows[:3]] == [0, 1, 2]


def test_a_single_checkpoint_runs_under_the_short_name(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a label depends on where a checkpoint lies although nothing else has that name."""
    replay(tiny, rollouts, tmp_path / "run", "--drafter", "odd_plugins:repeat=2", "--limit", 1, "--max-turns", 1)
    assert [row.drafter for row in rows_of(tmp_path / "run")] == ["none", "odd_plugins:repeat"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--drafter", "ngrm"), "unknown drafter 'ngrm'; did you mean 'ngram'?"),
        (("--set", "drafter_options.sufix.factor=1"), "drafter_options: 'sufix'; did you mean 'suffix'?"),
        (("--set", "drafter_options.ngram.max_m=1"), "no option 'max_m'; did you mean 'max_n'?"),
        (("--drafter", "none=x"), "no option 'checkpoint'"),
        (("--drafter", "odd_plugins:nothing"), "module 'odd_plugins' has no 'nothing'"),
        (("--mode", "forced", "--temperature", 1), "temperature"),
        (("--mode", "forced", "--history", "self"), "replay.history=self"),
        (
            ("--set", "target.capacity_tokens=99999"),
            "target.capacity_tokens=99999 is beyond the model's window of 1024",
        ),
        (("--set", "target.capacity_tokens=24"), "leaves no room for a prompt in 24 tokens (target.capacity_tokens)"),
        (("--max-new-tokens", 5000), "leaves no room for a prompt in 1024 tokens (the window of the model)"),
        (("--target", "no-org/no-model"), "model 'no-org/no-model': no folder of that name"),
        (("--device", "toaster"), "device 'toaster' is not known"),
        (("--device", "meta"), "device 'meta' is not supported"),
        (("--set", "nothing"), "write it as key=value"),
        (("--config", "no.toml"), "cannot read the settings file no.toml"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(
    tiny: Path, rollouts: Path, tmp_path: Path, arguments: tuple[object, ...], says: str
) -> None:
    """Fails if a mistake ends in a traceback, in exit code 0 or 1, in a run folder, or without its name."""
    done = replay(tiny, rollouts, tmp_path / "run", *arguments)
    assert done.code == 2 and says in done.error and done.out == ""
    assert not (tmp_path / "run" / "manifest.json").exists()


# data


@pytest.mark.parametrize("offline", ["1", None])
@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("--workload", "/no/such/file.jsonl"),
        ("--workload", "/no/such/file"),
        ("--workload", "traces/mine.json"),
        ("--target", "/no/such/model"),
        ("--set", "workload.options.data=/no/such/folder"),
    ],
)
def test_a_path_that_is_not_there_is_named(
    tiny: Path,
    rollouts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    path: str,
    offline: str | None,
) -> None:
    """Field case 24: fails if a missing path leads to a download or to other data, with or without network."""
    if offline is None:
        monkeypatch.delenv("HF_HUB_OFFLINE")
    data = "bfcl_v3" if option == "--set" else rollouts
    done = replay(tiny, data, tmp_path / "run", option, path)
    assert done.code == 2 and path.rpartition("=")[2] in done.error and not (tmp_path / "run").exists()


def test_a_bad_line_stops_a_strict_run_and_is_listed_by_a_lenient_one(tiny: Path, tmp_path: Path) -> None:
    """Field case 23: fails if file, line or field is not named, or a lenient run hides what it passed over."""
    file = tmp_path / "mine.jsonl"
    write_rollouts(file, [session("a", 1), session("b", 1)])
    good, other = file.read_text().splitlines()
    empty = '{"schema":1,"id":"e","workload":"w","messages":[{"role":"user","content":"hi"}]}'
    file.write_text("\n".join([good, '{"id": "torn', '{"schema":1,"id":"x","workload":"w"}', empty, other, ""]))

    strict = replay(tiny, file, tmp_path / "strict")
    assert strict.code == 2 and f"{file}:2: not JSON" in strict.error and not (tmp_path / "strict").exists()

    lenient = replay(tiny, file, tmp_path / "lenient", "--set", "workload.lenient=true")
    assert lenient.code == 0 and {row.rollout for row in rows_of(tmp_path / "lenient")} == {"a", "b"}
    passed_over = read_manifest(tmp_path / "lenient")["data"]["left_out"]
    assert [line.split(": ")[0] for line in passed_over] == [f"{file}:{number}" for number in (2, 3, 4)]
    assert "messages: is missing" in passed_over[1] and "nothing to decode" in passed_over[2]
    assert all(line in lenient.err for line in passed_over)
    said = [note for note in lenient.last["notes"] if note.startswith("left out: ")]
    assert said == [f"left out: {line}" for line in passed_over]


def test_lenient_is_refused_where_it_means_nothing(tiny: Path, tmp_path: Path) -> None:
    """Fails if workload.lenient is accepted in silence for a workload that has its own option."""
    done = replay(tiny, "odd_plugins:with_empty", tmp_path / "run", "--set", "workload.lenient=true")
    assert done.code == 2 and "workload.options.strict" in done.error


@pytest.mark.parametrize(
    ("workload", "code", "says"),
    [
        ("only_empty", 2, "no rollout has a message to decode"),
        ("none_at_all", 2, "gave no rollouts"),
        ("twice", 1, "two rollouts have the id 'a'"),
        ("labels_an_object", 1, "rollout 'a' holds what JSON cannot"),
        ("not_rollouts", 1, "gave dict, not a Rollout"),
    ],
)
def test_workloads_that_give_nonsense_are_named(
    tiny: Path, tmp_path: Path, workload: str, code: int, says: str
) -> None:
    """Fails if a workload's fault shows as a traceback in the middle of a run."""
    done = replay(tiny, f"odd_plugins:{workload}", tmp_path / "run")
    assert done.code == code and says in done.error and not (tmp_path / "run").exists()


def test_an_empty_rollout_has_a_status(tiny: Path, tmp_path: Path) -> None:
    """Fails if a rollout with nothing to decode ends the run, or is passed over without a trace."""
    done = replay(tiny, "odd_plugins:with_empty", tmp_path / "run")
    assert done.code == 0 and {row.rollout for row in rows_of(tmp_path / "run")} == {"a"}
    lines = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert '"rollout": "nothing", "status": "empty"' in lines[0] and '"status": "ok"' in lines[1]


def test_oversized_and_draft_limited_turns_keep_their_rows(tiny: Path, tmp_path: Path) -> None:
    """Field case 18: fails if a long turn ends the run, loses its rows, or is missing from the count on screen."""
    file = tmp_path / "long.jsonl"
    write_rollouts(file, [session("a", 3), session("huge", 3, pad=500), session("b", 2)])
    done = replay(tiny, file, tmp_path / "run", "--drafter", "odd_plugins:short", "--drafter", "ngram")
    found = {(r.rollout, r.turn, r.drafter): r.status for r in rows_of(tmp_path / "run")}
    assert done.code == 0 and len(found) == 3 * (3 + 3 + 2)
    short = [found[name, turn, "odd_plugins:short"] for name, turn in (("a", 0), ("a", 2), ("huge", 2), ("b", 0))]
    assert short == ["ok", "draft_limit", "oversized", "ok"]
    assert [found["huge", turn, "ngram"] for turn in range(3)] == ["ok", "ok", "oversized"]
    assert found["b", 1, "ngram"] == "ok"
    assert (
        "none, odd_plugins:short, ngram: 1 turn left out: oversized" in done.err
        and "the drafter supports 330" in done.err
    )
    assert "exceed the target's window of 1024" in done.err


def test_a_smaller_capacity_makes_turns_oversized_not_wrong(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if target.capacity_tokens is not obeyed, or turns that do not fit end the run."""
    done = replay(tiny, rollouts, tmp_path / "run", "--limit", 1, "--set", "target.capacity_tokens=330")
    status = [row.status for row in rows_of(tmp_path / "run") if row.drafter == "none"]
    assert done.code == 0 and status[0] == "ok" and status[-1] == "oversized"
    assert "engine capacity 330" in done.err


def test_a_run_in_which_nothing_fits_is_void(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a table of dashes passes for a result."""
    done = replay(tiny, rollouts, tmp_path / "run", "--set", "target.capacity_tokens=40")
    assert done.code == 1 and done.last["measured"] is False and "void: not one turn could be decoded" in done.err
    assert {row.status for row in rows_of(tmp_path / "run")} == {"oversized"}


# thinking


def test_rows_carry_the_think_flag_and_different_flags_do_not_mix(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Field case 17: fails if a row does not say whether the model was told to think, or two flags are averaged."""
    replay(tiny, rollouts, tmp_path / "default", "--limit", 1, "--drafter", "none")
    assert {row.thinking for row in rows_of(tmp_path / "default")} == {True}  # what the tiny template does
    rows = []
    for flag in ("true", "false"):
        replay(tiny, rollouts, tmp_path / flag, "--limit", 1, "--set", f"replay.thinking={flag}", "--drafter", "ngram")
        own = rows_of(tmp_path / flag)
        assert own and all(row.thinking is (flag == "true") for row in own)
        rows += own
    with pytest.raises(MeasurementError, match=r"different conditions.*thinking: False, True"):
        summarise(rows)


def test_reasons_group_what_differs_only_in_numbers() -> None:
    """Fails if a thousand oversized turns fill the screen, or a different fault hides among them."""
    rows = [make_row(turn=i, status="oversized", error=f"{5000 + i:,} tokens are too many") for i in range(9)]
    rows += [make_row("r1", status="error", error="RuntimeError: two\nlines"), make_row("r2", matched=[1])]
    assert reasons(rows) == [
        "oversized: 5,000 tokens are too many (r0 turn 0; 9 rows, ngram)",
        "error: RuntimeError: two lines (r1 turn 0; 1 rows, ngram)",
    ]
    many = [make_row(turn=i, status="error", error="x" * (i + 1)) for i in range(7)]
    assert len(reasons(many)) == 6 and reasons(many)[-1].startswith("2 more")
