"""Run folders that were cut, copied together or edited by hand: no figure is taken of them, and the error says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reportkit import two_rollouts, write_run

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import read_run, read_turns
from agentbench_spec.results.row_formats import row_line
from agentbench_spec.results.rows import TurnRow


def altered(folder: Path, change: Callable[[list[TurnRow]], list[TurnRow]]) -> Path:
    """A finished run whose rows were changed afterwards."""
    write_run(folder, two_rollouts())
    (folder / "turns.jsonl").write_text("".join(map(row_line, change(read_run(folder)[1]))))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, rows[1]], r"turns\.jsonl:9: r0 turn 0 ngram stands in line 2 already"),
        (lambda rows: [rows[0], replace(rows[1], decode_s=-1.0), *rows[2:]], r"jsonl:2: .*decode_s -1\.0 is negative"),
        (lambda rows: [replace(rows[0], context_tokens=-5), *rows[1:]], r"jsonl:1: .*context_tokens holds -5"),
        (
            lambda rows: [replace(rows[0], emitted=10**400), *rows[1:]],
            r"jsonl:1: .*emitted holds a number over 64 bits",
        ),
        (lambda rows: [*rows[:7], replace(rows[7], thinking=True)], r"jsonl:8: field 'thinking' is True, and None in"),
        (lambda rows: [*rows[:7], replace(rows[7], clock="both")], r"jsonl:8: field 'clock' is 'both', and 'host' in"),
        (lambda rows: [*rows[:7], replace(rows[7], k=5)], r"jsonl:8: field 'k' is 5, and 3 in line 2"),
        (lambda rows: [*rows[:7], replace(rows[7], k=5, drafter="eagle3")], r"jsonl:8: field 'k' is 5, and 3 in line"),
        (lambda rows: rows[:6], r"rows of complete rollouts are missing: r1 \(1 of 2 turns\); the file was cut"),
        (lambda rows: [], r"missing: r0 \(0 of 2 turns\), r1 \(0 of 2 turns\)"),
    ],
    ids=["twice", "negative", "less-than-none", "huge", "thinking", "clock", "k", "k-of-another", "cut", "emptied"],
)
def test_rows_that_cannot_stand_in_a_table_are_named(
    tmp_path: Path, change: Callable[[list[TurnRow]], list[TurnRow]], message: str
) -> None:
    """Fails if a figure is taken from rows that are doubled, cut off, mixed or impossible."""
    with pytest.raises(ConfigError, match=message):
        read_run(altered(tmp_path, change))


def test_a_tau_over_k_plus_1_is_never_read(tmp_path: Path) -> None:
    """Field case 6. Fails if a merged chunk of 12 tokens, counted as one round of k 3, reaches a run's own table."""

    def merged(rows: list[TurnRow]) -> list[TurnRow]:
        unknown = dict.fromkeys(
            ("matched", "proposed", "matched_lengths", "proposed_lengths", "emitted_raw", "tau_raw")
        )
        return [rows[0], replace(rows[1], rounds=1, emitted=12, output_tokens=13, tau=12.0, **unknown), *rows[2:]]

    with pytest.raises(ConfigError, match=r"jsonl:2: .*12 tokens in 1 rounds is more than k \+ 1 = 4 a round"):
        read_run(altered(tmp_path, merged))


def test_a_finished_run_has_no_torn_line(tmp_path: Path) -> None:
    """Leniency is for runs that were killed. Fails if a finished run whose file was cut is reported as whole."""
    folder = write_run(tmp_path, two_rollouts())
    path = folder / "turns.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"turns\.jsonl:8: the last line is torn .* or restore the file"):
        read_turns(folder, lenient=True)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("settings", "x", "field 'settings'"),
        ("settings", {"measure": {"seed": "x"}}, r"field 'settings\.measure\.seed'"),
        ("host", {"gpus": [1]}, r"field 'host\.gpus\.0'"),
        ("card", {"floor_s": "x"}, r"field 'card\.floor_s'"),
        ("notes", 5, "field 'notes'"),
    ],
)
def test_a_manifest_of_another_shape_is_named_by_field(tmp_path: Path, part: str, value: Any, message: str) -> None:
    """Fails if a hand-edited manifest ends in a traceback inside the report."""
    path = write_run(tmp_path, two_rollouts()) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: value}))
    with pytest.raises(ConfigError, match=rf"manifest\.json: {message}"):
        read_run(tmp_path)


def test_a_line_nested_too_deeply_is_named(tmp_path: Path) -> None:
    """Fails if the JSON reader's own limit ends in a traceback."""
    folder = write_run(tmp_path, two_rollouts())
    (folder / "turns.jsonl").open("a").write("[" * 100_000 + "\n")
    with pytest.raises(ConfigError, match=r"turns\.jsonl:9: not JSON"):
        read_run(folder)


def test_what_holds_no_turns_says_what_it_holds(tmp_path: Path) -> None:
    """Fails if an empty table is written, or the way out is one for another mistake."""
    run = write_run(tmp_path / "run", two_rollouts())
    with pytest.raises(ConfigError, match=r"turns\.jsonl is a file; name the folder of a run, such as .*run"):
        read_turns(run / "turns.jsonl")
    with pytest.raises(ConfigError, match="no such folder"):
        read_turns(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"manifest\.json is missing\); name a folder that a run was written to"):
        read_turns(tmp_path)
    empty = write_run(tmp_path / "empty", [])
    with pytest.raises(ConfigError, match="is finished and holds no rows"):
        read_turns(empty)
    (empty / "throughput.jsonl").write_text("")
    with pytest.raises(ConfigError, match="reproduce table4"):
        read_turns(empty)
