"""Rows on disk: written once, read strictly, and whole after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rowkit import make_row

from agentbench_spec.engine.machine import host_facts
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.folder import read_manifest, read_rounds, read_run
from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.provenance import make_manifest
from agentbench_spec.results.row_formats import row_line, rows_frame
from agentbench_spec.results.rows import CLOCK_FIELDS, COLUMNS, SCHEMA, RoundRow, TurnRow
from agentbench_spec.results.summary import summary_dict
from agentbench_spec.results.writer import RunWriter

ROLLOUTS, TURNS, DRAFTERS = 4, 3, ("none", "ngram")

CHILD = """
import os, signal, sys, time
from pathlib import Path
from test_rows import replay, toy_manifest
from agentbench_spec.results.writer import RunWriter
folder, how, tear, pause_s = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
writer = getattr(RunWriter, how)(folder, toy_manifest())
replay(writer, tear=tear, pause_s=pause_s)
writer.finish()
"""


def toy_manifest(**settings: Any) -> dict[str, Any]:
    """A manifest with made-up settings."""
    return make_manifest(
        host=host_facts(), settings={"k": 7, "seed": 0} | settings, model={"target": "toy"}, data={"toy": "0"}, argv=[]
    )


def toy_turn(rollout: str, turn: int) -> list[TurnRow]:
    """The rows of one turn; all but their clocks depend on the rollout and the turn alone."""
    clock = time.perf_counter() % 1 + 1e-3
    matched = [(turn + len(rollout)) % 4, int(rollout[-1]) % 8]
    total = sum(matched) + 2
    return [
        make_row(rollout, turn, "none", [0] * total, decode_s=2 * clock),
        make_row(rollout, turn, "ngram", matched, decode_s=clock, output_ids=list(range(total + 1))),
    ]


def replay(writer: RunWriter, *, tear: str = "", pause_s: float = 0.0) -> None:
    """Write every rollout that is not complete; at turn `tear` ("rollout/turn") write half of it and die."""
    for name in (f"rollout-{i}" for i in range(ROLLOUTS)):
        if name in writer.completed:
            continue
        for turn in range(TURNS):
            if tear == f"{name}/{turn}":
                _die_in_mid_write(writer.folder / "turns.jsonl", toy_turn(name, turn))
            rounds = [RoundRow(rollout=name, turn=turn, drafter="ngram", round=0, proposed=7, matched=2, emitted=3)]
            writer.turn(toy_turn(name, turn), rounds)
            time.sleep(pause_s)
        writer.rollout_done(name)


def _die_in_mid_write(path: Path, rows: list[TurnRow]) -> None:
    content = "".join(map(row_line, rows)).encode()
    with path.open("ab") as file:
        file.write(content[: len(content) - 40])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def start_child(folder: Path, how: str, *, tear: str = "-", pause_s: float = 0.0) -> subprocess.Popen[bytes]:
    """Another process that writes the toy run."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), how, tear, str(pause_s)], env=environment)


def without_clocks(rows: list[TurnRow]) -> list[dict[str, Any]]:
    """Rows as far as two runs of one setting must agree."""
    return [{name: value for name, value in asdict(row).items() if name not in CLOCK_FIELDS} for row in rows]


def unbroken(folder: Path) -> list[TurnRow]:
    """Rows of the toy run when nothing goes wrong."""
    writer = RunWriter.create(folder, toy_manifest())
    replay(writer)
    writer.finish()
    return read_run(folder)[1]


def test_kill_in_mid_write_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL halfway through a turn of the third rollout. Fails if a row is lost, doubled, or left torn."""
    folder = tmp_path / "run"
    assert start_child(folder, "create", tear="rollout-2/1").wait(60) == -signal.SIGKILL
    with pytest.raises(ConfigError, match=r"turns\.jsonl:16: the last line is torn"):
        read_run(folder)
    assert len(read_run(folder, lenient=True)[1]) == 15

    writer = RunWriter.resume(folder, toy_manifest())
    assert writer.completed == {"rollout-0", "rollout-1"}
    replay(writer)
    summary = writer.finish()

    manifest, rows = read_run(folder)
    assert without_clocks(rows) == without_clocks(unbroken(tmp_path / "whole"))
    assert len(read_rounds(folder)) == ROLLOUTS * TURNS
    (resumed,) = manifest["resumes"]
    assert (resumed["dropped_rows"], resumed["dropped_rounds"], resumed["complete_rollouts"]) == (4, 1, 2)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(summary_dict(summary)))


def test_kill_at_any_moment_then_resume_in_a_new_process(tmp_path: Path) -> None:
    """Killed from outside at a moment nobody chose. Fails if resuming depends on where the kill fell."""
    folder = tmp_path / "run"
    child = start_child(folder, "create", pause_s=0.02)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _lines(folder / "turns.jsonl") < 9:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL
    assert start_child(folder, "resume").wait(60) == 0
    assert without_clocks(read_run(folder)[1]) == without_clocks(unbroken(tmp_path / "whole"))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_last_line_without_its_newline_is_not_glued_to_the_next(tmp_path: Path) -> None:
    """Killed between a line and its newline. Fails if the next row is appended to the same line."""
    writer = RunWriter.create(tmp_path, toy_manifest())
    for turn in range(TURNS):
        writer.turn(toy_turn("rollout-0", turn))
    writer.rollout_done("rollout-0")
    writer.close()
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    writer = RunWriter.resume(tmp_path, toy_manifest())
    replay(writer)
    writer.finish()
    assert without_clocks(read_run(tmp_path)[1]) == without_clocks(unbroken(tmp_path / "whole"))
    assert _lines(path) == ROLLOUTS


def test_resume_with_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    """Fails if rows of two settings can end up in one file, or the message does not say what differs."""
    RunWriter.create(tmp_path, toy_manifest()).close()
    with pytest.raises(ConfigError, match=r"settings\.k \(7 -> 4\)") as caught:
        RunWriter.resume(tmp_path, toy_manifest(k=4))
    assert "seed" not in str(caught.value)


def test_creating_over_a_run_says_both_ways_out(tmp_path: Path) -> None:
    """Fails if a second run overwrites the first, or the user is not told what to do."""
    RunWriter.create(tmp_path, toy_manifest()).close()
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(ConfigError, match=r"--resume.*another folder"):
        RunWriter.create(tmp_path, toy_manifest())
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_rows_without_a_manifest_are_not_overwritten(tmp_path: Path) -> None:
    """Fails if rows whose manifest was lost are deleted by starting a run over them."""
    (tmp_path / "turns.jsonl").write_text(row_line(make_row(matched=[1])))
    with pytest.raises(ConfigError, match="already holds a run"):
        RunWriter.create(tmp_path, toy_manifest())
    assert (tmp_path / "turns.jsonl").stat().st_size > 0


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    """Fails if a mistyped folder starts an empty run."""
    with pytest.raises(ConfigError, match="holds no run"):
        RunWriter.resume(tmp_path / "typo", toy_manifest())
    assert not (tmp_path / "typo").exists()


def test_two_writers_never_share_a_run(tmp_path: Path) -> None:
    """Fails if two processes can interleave rows, or a closed run stays locked."""
    with RunWriter.create(tmp_path, toy_manifest()), pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        RunWriter.resume(tmp_path, toy_manifest())
    RunWriter.resume(tmp_path, toy_manifest()).close()


def test_manifest_is_there_before_the_first_row(tmp_path: Path) -> None:
    """Fails if a run killed in its first turn has no manifest."""
    with RunWriter.create(tmp_path, toy_manifest()):
        assert read_manifest(tmp_path)["settings"] == {"k": 7, "seed": 0}
        assert not (tmp_path / "turns.jsonl").exists()


def test_rows_are_on_disk_when_turn_returns(tmp_path: Path) -> None:
    """Fails if rows wait in a buffer that a kill would lose."""
    with RunWriter.create(tmp_path, toy_manifest()) as writer:
        writer.turn(toy_turn("rollout-0", 0))
        assert [row.drafter for row in read_run(tmp_path)[1]] == list(DRAFTERS)


def test_writer_refuses_rows_twice_and_rows_of_complete_rollouts(tmp_path: Path) -> None:
    """Fails if a replay bug can double a row."""
    with RunWriter.create(tmp_path, toy_manifest()) as writer:
        writer.turn(toy_turn("rollout-0", 0))
        with pytest.raises(MeasurementError, match="written twice"):
            writer.turn(toy_turn("rollout-0", 0))
        with pytest.raises(MeasurementError, match="exactly one turn"):
            writer.turn(toy_turn("rollout-0", 1) + toy_turn("rollout-0", 2))
        with pytest.raises(MeasurementError, match="not declared complete: rollout-0"):
            writer.finish()
        writer.rollout_done("rollout-0")
        with pytest.raises(MeasurementError, match="already complete"):
            writer.turn(toy_turn("rollout-0", 1))


def test_lost_rows_of_a_complete_rollout_stop_the_resume(tmp_path: Path) -> None:
    """Fails if a run whose rows were deleted by hand is continued as if they were there."""
    with RunWriter.create(tmp_path, toy_manifest()) as writer:
        replay(writer)
    path = tmp_path / "turns.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[2:]))
    with pytest.raises(ConfigError, match="missing: rollout-0"):
        RunWriter.resume(tmp_path, toy_manifest())


def test_failed_rollout_is_complete_and_says_why(tmp_path: Path) -> None:
    """Fails if a rollout that failed is decoded again for ever, or its reason is lost."""
    with RunWriter.create(tmp_path, toy_manifest()) as writer:
        writer.turn([make_row("rollout-0", 0, status="error", error="tool crashed")])
        writer.rollout_done("rollout-0", status="error", error="tool crashed")
    with RunWriter.resume(tmp_path, toy_manifest()) as writer:
        assert writer.completed == {"rollout-0"}
    line = json.loads((tmp_path / "rollouts.jsonl").read_text())
    assert line == {"rollout": "rollout-0", "status": "error", "turns": 1, "error": "tool crashed"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "field 'extra'"),
        ({"k": "7"}, "field 'k'"),
        ({"k": None}, "field 'k'"),
        ({"status": "fine"}, "field 'status'"),
        ({"matched_lengths": [1, "2"]}, "field 'matched_lengths.1'"),
        ({"schema": SCHEMA + 1}, "newer than"),
        ({"schema": None}, "field 'schema'"),
        ({"drafter": ...}, "field 'drafter'"),
    ],
)
def test_bad_rows_are_named_by_file_line_and_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Fails if a row that is not of this schema is read, or the reader cannot find it in the file."""
    values = {name: v for name, v in (asdict(make_row(matched=[1])) | change).items() if v is not ...}
    _write_run(tmp_path, [row_line(make_row(matched=[1])), json.dumps(values) + "\n"])
    with pytest.raises(ConfigError, match=r"turns\.jsonl:2") as caught:
        read_run(tmp_path)
    assert message in str(caught.value)


def test_a_row_of_the_first_schema_is_read_as_one_of_today(tmp_path: Path) -> None:
    """Fails if rows recorded before rounds were timed cannot be read, or never mix with new ones."""
    old = {name: value for name, value in asdict(make_row(matched=[1])).items() if name not in ("round_s", "attempts")}
    _write_run(tmp_path, [json.dumps(old | {"schema": 1}) + "\n"])
    (row,) = read_run(tmp_path)[1]
    assert (row.schema, row.round_s, row.attempts, row.tau) == (SCHEMA, None, None, 2.0)


@pytest.mark.parametrize("line", ["{broken\n", "[1]\n", '{"schema": 1, "tau": NaN}\n', "\n"])
def test_corrupt_line_in_the_middle_is_never_skipped(tmp_path: Path, line: str) -> None:
    """Fails if `lenient`, meant for a torn last line, hides damage elsewhere."""
    good = row_line(make_row(matched=[1]))
    _write_run(tmp_path, [good, line, good])
    with pytest.raises(ConfigError, match=r"turns\.jsonl:2"):
        read_run(tmp_path, lenient=True)


def _write_run(folder: Path, lines: list[str]) -> None:
    RunWriter.create(folder, toy_manifest()).close()
    (folder / "turns.jsonl").write_text("".join(lines))


def test_newer_manifest_is_refused(tmp_path: Path) -> None:
    """Fails if a run of a later package is read as if it were of this one."""
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": SCHEMA + 1}))
    with pytest.raises(ConfigError, match="upgrade"):
        read_run(tmp_path)


def test_nan_is_never_written() -> None:
    """Fails if a division by zero reaches a file as NaN."""
    with pytest.raises(MeasurementError, match="decode_s"):
        row_line(make_row(matched=[1], decode_s=float("nan")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"emitted_raw": 9}, "emitted_raw 9 is not matched"),
        ({"output_tokens": 9}, "output_tokens 9"),
        ({"emitted": 99, "output_tokens": 100}, "exceeds emitted_raw"),
        ({"proposed": 99}, "exceeds k"),
        ({"proposed": 1}, "exceeds proposed"),
        ({"matched_lengths": [1, 2, 0]}, "matched_lengths do not add up"),
        ({"tau": 1.0}, "tau 1.0 is not 5 tokens / 2 rounds"),
        ({"decode_s": -1.0}, "decode_s -1.0 is negative"),
        ({"status": "error"}, "no error is given"),
        (
            {"attributed_decode_s": 1.0}
            | dict.fromkeys(("draft_s", "verify_s", "accept_s", "draft_append_s", "other_s"), 0.1),
            "phases sum to 0.5 s",
        ),
    ],
)
def test_rows_that_contradict_themselves_are_refused(change: dict[str, Any], message: str) -> None:
    """Fails if a counting or timing bug in the loop is written to disk as a result."""
    good = make_row(matched=[1, 2])
    check_row(good)
    with pytest.raises(MeasurementError, match="r0 turn 0 ngram") as caught:
        check_row(replace(good, **change))
    assert message in str(caught.value)


def test_row_survives_the_file_and_parquet(tmp_path: Path) -> None:
    """Fails if a field changes its value or type, or null turns into 0 or NaN, on the way through a file."""
    row = make_row(matched=[1, 2], labels={"category": "base"}, decode_s=0.5, identical=True, draft_state_bytes=2**40)
    with RunWriter.create(tmp_path, toy_manifest()) as writer:
        writer.turn([row])
        writer.rollout_done("r0")
        writer.finish()
    assert read_run(tmp_path)[1] == [row]
    (stored,) = pq.read_table(tmp_path / "turns.parquet").to_pylist()
    assert stored | {"labels": dict(stored["labels"])} == asdict(row)


def test_frame_keeps_column_order_and_nulls() -> None:
    """Fails if a column moves, or a whole number with a null beside it turns into a float."""
    frame = rows_frame([make_row("a", matched=[1], draft_state_bytes=2**60 + 1), make_row("b", matched=[])])
    assert list(frame.columns) == list(asdict(make_row())) == list(COLUMNS)
    assert frame["draft_state_bytes"].dtype == "Int64"
    assert frame["draft_state_bytes"][0] == 2**60 + 1
    assert frame["draft_state_bytes"].isna().tolist() == [False, True]
    assert frame["tau"].isna().tolist() == [False, True]
    assert len(rows_frame([])) == 0


def test_readme_explains_every_column_in_order() -> None:
    """Fails if results/README.md leaves a column out, invents one, or lists them in another order."""
    text = (Path(__file__).parents[2] / "results" / "README.md").read_text()
    table = text.split("## Columns")[1].split("## ")[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert named == list(COLUMNS)
