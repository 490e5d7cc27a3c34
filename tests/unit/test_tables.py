"""Hand-made rows to the paper's tables: figures, verdicts, notes and refusals by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rowkit import make_row

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.derived.table_text import grid, paper_text, value_text
from agentbench_spec.results.rows import SCHEMA, TurnRow
from agentbench_spec.results.summary import summarise
from agentbench_spec.results.tables import Column, Table, replay_table


def turn_rows(rollout: str, turn: int, seconds: float, k: int = 7, **drafters: list[int]) -> list[TurnRow]:
    """Baseline at 0.1 s a token, and drafters that need `seconds` a token, on one turn; matched lists by drafter."""
    emitted = {sum(matched) + len(matched) for matched in drafters.values()}
    assert len(emitted) == 1
    (tokens,) = emitted
    rows = [make_row(rollout, turn, "none", [0] * tokens, decode_s=0.1 * tokens)]
    rows[0].k = k
    return rows + [make_row(rollout, turn, name, own, k=k, decode_s=seconds * tokens) for name, own in drafters.items()]


def bfcl(**fields: Any) -> list[TurnRow]:
    """Two rollouts. dspark: 8 tokens in 2 rounds, then 6 in 3; dlite: 8 in 1, then 6 in 2. Both at 0.05 s a token."""
    rows = turn_rows("a", 0, 0.05, dspark=[3, 3], dlite=[7]) + turn_rows("b", 0, 0.05, dspark=[1, 1, 1], dlite=[3, 1])
    for row in rows:
        for name, value in fields.items():
            setattr(row, name, value)
    return rows


def table(*columns: Column, **options: Any) -> Table:
    return replay_table(
        "table3",
        "Table 3",
        columns,
        options.pop("drafters", ["none", "dflash", "dspark", "dlite"]),
        ["speedup", "tau_raw", "tau"],
        target="Qwen/Qwen3-4B",
        paper_target="Qwen3-4B",
        missing={"dflash": "no checkpoint"},
        **options,
    )


def test_cells_by_hand() -> None:
    """Fails if pooled or macro τ, the paired speed-up, an interval or the paper's value is another than by hand."""
    found = table(Column("BFCL-v3", bfcl(), "BFCL-v3"))
    dspark = found.cell("dspark", "tau_raw", "BFCL-v3")
    assert (dspark.value, dspark.macro) == (pytest.approx(14 / 5), pytest.approx((4 + 2) / 2))
    # without the one rollout 2, without the other 4; a t with one degree of freedom
    half = 12.7062 * 0.5 * np.log(4 / 2)
    assert dspark.interval is not None and dspark.macro_interval is not None
    assert np.log(dspark.interval.high / 2.8) == pytest.approx(half) == np.log(2.8 / dspark.interval.low)
    assert np.log(dspark.macro_interval.high / 3) == pytest.approx(half)
    assert dspark.paper is None and dspark.verdict == "unknown"
    speed = found.cell("dlite", "speedup", "BFCL-v3")
    assert speed.value == pytest.approx(2.0) and speed.turns == 2
    assert speed.paper is not None and speed.paper.text == "2.37" and speed.verdict == "below"
    assert found.cell("dflash", "speedup", "BFCL-v3").missing == "no checkpoint"


def test_raw_and_clipped_tau_stand_apart_and_named() -> None:
    """A last round cut from 8 to 2 tokens. Fails if the two counts are one, or one is just called τ."""
    rows = [make_row("a", 0, "none", [0] * 10), make_row("a", 0, "dlite", [7, 7], emitted=10)]
    rows[0].k = 7
    found = table(Column("BFCL-v3", rows), drafters=["dlite"])
    assert found.cell("dlite", "tau_raw", "BFCL-v3").value == 8.0
    assert found.cell("dlite", "tau", "BFCL-v3").value == 5.0
    assert {line[1] for line in grid(found)[1]} >= {"τ raw", "τ clipped"}


def test_pooled_and_macro_of_field_case_4() -> None:
    """Field case 4: rounds [4, 1] + [1] and [1, 1]. Fails unless pooled is 1.6 and per-rollout 1.5."""
    rows = [make_row("A", 0, matched=[3, 0]), make_row("A", 1, matched=[0]), make_row("B", 0, matched=[0, 0])]
    cell = table(Column("c", rows), drafters=["ngram"]).cell("ngram", "tau", "c")
    assert (cell.value, cell.macro) == (pytest.approx(1.6), pytest.approx(1.5))


def test_merged_chunks_of_field_case_6_are_refused() -> None:
    """Field case 6: 12 tokens in one "round" with k = 3. Fails if a τ of 12 reaches a table."""
    row = make_row(drafter="server", k=3, rounds=1, output_tokens=13, tau=12.0)
    row.emitted = 12
    with pytest.raises(MeasurementError, match=r"12 tokens in 1 rounds is more than k \+ 1 = 4"):
        table(Column("c", [row]), drafters=["server"])


def test_loops_of_field_case_19_are_left_out_and_counted() -> None:
    """Field case 19: a loop of one token beside a healthy turn. Fails if the loop's τ wins, or goes unsaid."""
    rows = [
        make_row("a", 0, "dlite", [1, 1], output_ids=[3, 4, 5, 6, 7], stop_reason="length"),
        make_row("b", 0, "dlite", [7] * 30, output_ids=[9] * 241, stop_reason="length"),
    ]
    found = table(Column("c", rows), drafters=["dlite"])
    assert found.cell("dlite", "tau", "c").value == 2.0 and found.cell("dlite", "tau", "c").left_out == 1
    notes = "\n".join(found.notes)
    assert "dlite: 1 of 2 turns left out: degenerate" in notes
    assert "all 2 turns hit the length cap" in notes


def test_a_warning_about_all_drafters_is_one_line() -> None:
    """Fails if a column says the same of each drafter, as table 3 did with seven of them: 21 lines for 3."""
    rows = bfcl(stop_reason="length")
    warned = [note for note in table(Column("c", rows)).notes if "warning" in note]
    cap = "all 2 turns hit the length cap; replies were cut, or the model loops"
    assert warned == [f"c: warning: none, dspark, dlite: {cap}"]


def test_a_slower_drafter_of_field_case_21_is_printed_as_slower() -> None:
    """Field case 21: τ 2.0 and slower than the baseline. Fails if 0.64 is clipped to 1 or hidden."""
    rows = turn_rows("a", 0, 0.1 / 0.64, dlite=[1] * 8)
    found = table(Column("c", rows), drafters=["dlite"])
    assert value_text(found.cell("dlite", "speedup", "c")) == "0.64"


def test_failed_rows_are_counted_under_the_table() -> None:
    """Fails if a table is silent about turns it does not hold."""
    rows = [
        *bfcl(),
        make_row("c", 0, "dlite", status="error", error="X: y"),
        make_row("d", 0, "dlite", status="oversized"),
    ]
    notes = table(Column("BFCL-v3", rows, "BFCL-v3")).notes
    assert "BFCL-v3: dlite: 1 of 4 turns left out: error" in notes
    assert "BFCL-v3: dlite: 1 of 4 turns left out: oversized" in notes


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"decode_mode": "forced"}, "decode_mode: forced, generate"),
        ({"thinking": True}, "thinking: None, True"),
        ({"k": 3}, "k of "),
        ({"schema": 0}, f"schema: 0, {SCHEMA}"),
        ({"history_mode": "self"}, "history_mode: recorded, self"),
        ({"temperature": 1.0}, "temperature: 0.0, 1.0"),
        ({"target": "other"}, "target: "),
    ],
)
def test_a_wrong_mix_is_refused(fields: dict[str, Any], named: str) -> None:
    """Fails if columns measured under different conditions share a table, or the message does not name the field."""
    other = turn_rows("z", 0, 0.05, k=fields.get("k", 7), dspark=[1], dlite=[1])
    for row in other:
        for name, value in fields.items():
            setattr(row, name, value)
    with pytest.raises(MeasurementError, match=named):
        table(Column("BFCL-v3", bfcl()), Column("other", other))


def test_drafters_of_different_k_are_refused() -> None:
    """Fails if a table lets k 3 of one drafter stand beside k 7 of another, or a run's own table does."""
    rows = bfcl()
    rows += [make_row(row.rollout, 0, "eagle3", [1], k=3) for row in rows if row.drafter == "dlite"]
    for refused in (lambda: table(Column("BFCL-v3", rows)), lambda: summarise(rows)):
        with pytest.raises(MeasurementError, match="k: 3, 7"):
            refused()
    for row in rows:
        row.backend = "sglang"
    assert len(summarise(rows).drafters) == 4  # each server has the k it was started with
    with pytest.raises(MeasurementError, match="different k"):
        table(Column("BFCL-v3", rows))


def test_other_conditions_than_the_papers_get_no_verdict() -> None:
    """Fails if a stand-in, or another target, is said to be above or below the paper."""
    for options in ({"comparable": False}, {}):
        column = Column("BFCL-v3", bfcl(), "BFCL-v3", standin=not options)
        found = table(column, **options)
        cell = found.cell("dlite", "speedup", "BFCL-v3")
        assert cell.verdict == "unknown" and cell.paper is not None and paper_text(cell) == "2.37"
        assert any("stand-in" in note or "not the paper's conditions" in note for note in found.notes)


def test_stand_ins_and_real_rows_do_not_share_a_column() -> None:
    """Fails if generated rollouts are averaged into a real workload."""
    rows = bfcl() + turn_rows("s", 0, 0.05, dspark=[1], dlite=[1])
    for row in rows[-3:]:
        row.labels = {"standin": "True"}
    with pytest.raises(MeasurementError, match="stand-in"):
        table(Column("BFCL-v3", rows))


def test_layout_of_the_paper() -> None:
    """Fails if the paper's values do not stand under ours, an unknown one is blank, or a column is lost."""
    found = table(Column("BFCL-v3", bfcl(), "BFCL-v3"), Column("SWE-Bench", [], "SWE-Bench", missing="no data"))
    headings, lines = grid(found)
    assert headings == ["method", "figure", "BFCL-v3", "SWE-Bench"]
    at = next(i for i, line in enumerate(lines) if line[0] == "dlite")
    assert lines[at] == ["dlite", "speed-up", "2.00 [2.00, 2.00]", "no data"]
    assert lines[at + 1] == ["", "  paper, Qwen3-4B", "2.37 below", "2.68"]
    assert lines[at + 3] == ["", "  paper, Qwen3-4B", "unknown", "3.15"]
    assert "SWE-Bench: not run: no data" in found.notes


def test_differences_and_power_are_said_below() -> None:
    """dlite against dspark on the same turns: 14/3 over 14/5. Fails if the table leaves both to the reader's eye."""
    found = table(Column("BFCL-v3", bfcl(), "BFCL-v3"))
    (title, first), (_, second) = found.differences
    assert (title, first.drafter, first.other, first.measure) == ("BFCL-v3", "dlite", "dspark", "tau_raw")
    assert first.ratio == pytest.approx((14 / 3) / (14 / 5)) and second.ratio == pytest.approx(1.0)
    assert first.p is not None and first.p_holm == pytest.approx(2 * first.p)
    assert "BFCL-v3: only 2 independent rollouts: intervals are wide, and hold if rollouts are alike" in found.notes
    assert any("2 independent rollouts are too few to tell how many it takes" in note for note in found.notes)


def test_power_is_said_from_ten_rollouts_on() -> None:
    """Fails if a pilot of ten tells nothing, or a table's line does not say how uncertain its number is."""
    rows = [row for i in range(10) for row in turn_rows(f"r{i}", 0, 0.05, dspark=[3, 3], dlite=[7])]
    rows += [row for i in range(0, 10, 2) for row in turn_rows(f"r{i}", 1, 0.05, dspark=[3, 0], dlite=[2, 1])]
    found = table(Column("BFCL-v3", rows, "BFCL-v3"))
    (line,) = [note for note in found.notes if "τ raw, a drafter against a fixed value" in note]
    assert "independent rollouts; there are 10 (of all, dlite most)" in line
    first = found.differences[0][1]
    assert first.needed is not None and first.needed.low < first.needed.needed < first.needed.high
    assert any(f"{first.needed.words} show 5 % in a single test" in note for note in found.notes)


def test_what_several_drafters_share_is_said_once() -> None:
    """Fails if a turn that is a loop for all fills the foot of the table with one line a drafter."""
    rows = bfcl() + [make_row("c", 0, name, status="oversized") for name in ("none", "dspark", "dlite")]
    notes = table(Column("BFCL-v3", rows, "BFCL-v3")).notes
    assert [note for note in notes if "oversized" in note] == [
        "BFCL-v3: none, dspark, dlite: 1 of 3 turns left out: oversized"
    ]
    for row in rows:
        row.stop_reason = "length"
    assert [note for note in table(Column("BFCL-v3", rows, "BFCL-v3")).notes if "length cap" in note] == [
        "BFCL-v3: warning: none, dspark, dlite: all 2 turns hit the length cap; replies were cut, or the model loops"
    ]


def test_only_methods_of_the_paper_have_its_line() -> None:
    """Fails if a look-up drafter, which the paper does not have, is said to be unknown there."""
    rows = turn_rows("a", 0, 0.05, ngram=[3, 3], dlite=[7])
    lines = grid(table(Column("BFCL-v3", rows, "BFCL-v3"), drafters=["none", "ngram", "dlite"]))[1]
    assert sum("paper" in line[1] for line in lines) == 2  # DLite's speed-up and raw τ
