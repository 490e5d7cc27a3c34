"""Table 4 from hand-made passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reportkit import MANIFEST
from runkit import call

from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.reproduce.table4 import throughput_table
from agentbench_spec.results.derived.policy import choices_of_passes
from agentbench_spec.results.tables import Table
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, append_row, drop_torn_line, read_rows


def a_pass(drafter: str, concurrency: int, seconds: float, rounds: int, **fields: Any) -> ThroughputRow:
    """200 tokens of two rollouts in `seconds`, 180 of them with all rows busy; the first took 3/4 of the rounds."""
    values: dict[str, Any] = {
        "target": "Qwen/Qwen3-4B",
        "workload": "livecodebench",
        "drafter": drafter,
        "k": 7,
        "thinking": False,
        "concurrency": concurrency,
        "turns": 2,
        "emitted": 200,
        "emitted_raw": 210,
        "rounds": rounds,
        "decode_s": seconds * 1.2,
        "steps": 50,
        "full_steps": 40,
        "full_emitted": 180,
        "full_s": seconds * 0.9,
        "prefill_s": 1.0,
        "draft_ingest_s": 0.5,
        "draft_append_s": 0.5,
        "clock": "host",
        "windows": [(10, seconds / 20)] * 20,
        "rollouts": {"a": (100, 105, rounds * 3 // 4), "b": (100, 105, rounds // 4)},
        "outputs": {"a#0": "x", "b#0": "y"},
    }
    return ThroughputRow(**(values | fields))


def rows() -> list[ThroughputRow]:
    """At 1: 20 against 5 s. At 64: 2 against 1 s. Two passes each, the second 1 % slower."""
    return [
        a_pass(drafter, concurrency, seconds * (1 + repeat / 100), rounds, repeat=repeat, rollouts=rollouts(rounds))
        for repeat in (0, 1)
        for drafter, concurrency, seconds, rounds in (
            ("none", 1, 20.0, 200),
            ("dlite", 1, 5.0, 40),
            ("none", 64, 2.0, 200),
            ("dlite", 64, 1.0, 40),
        )
    ]


def rollouts(rounds: int) -> dict[str, tuple[int, int, int]]:
    """Ten rollouts of 20 tokens, of which every second one is a little harder to guess."""
    uneven = 0 if rounds == 200 else rounds // 40
    return {str(i): (20, 21, rounds // 10 + (uneven if i % 2 else -uneven)) for i in range(10)}


def table(given: list[ThroughputRow], **options: Any) -> Table:
    return throughput_table(
        "Table 4",
        "LiveCodeBench",
        given,
        ["dspark", "dlite"],
        [1, 64],
        ["tokens_per_s", "speedup", "tau_raw", "tau"],
        target="Qwen/Qwen3-4B",
        paper_target="Qwen3-4B",
        missing={"dspark": "no checkpoint"},
        **options,
    )


def test_cells_by_hand() -> None:
    """Fails if a speed-up is taken against another concurrency, or τ, its weightings or the paper's value are wrong."""
    found = table(rows())
    one, many = (found.cell("dlite", "speedup", f"concurrency {c}") for c in (1, 64))
    assert (one.value, many.value) == (pytest.approx(4.0), pytest.approx(2.0))
    assert one.paper is not None and many.paper is not None
    assert (one.paper.text, many.paper.text) == ("3.97", "1.83")
    speed = found.cell("dlite", "tokens_per_s", "concurrency 64")
    assert speed.value == pytest.approx(200.0 / 1.01**0.5)  # the geometric mean of 200 and 200 / 1.01
    tau = found.cell("dlite", "tau_raw", "concurrency 1")
    assert (tau.value, tau.macro) == (pytest.approx(210 / 40), pytest.approx((21 / 3 + 21 / 5) / 2))
    assert found.cell("dlite", "tau", "concurrency 1").value == pytest.approx(5.0)
    assert found.cell("dspark", "speedup", "concurrency 1").missing == "no checkpoint"


def test_only_steps_with_every_row_busy_count() -> None:
    """The drain of the batch takes ten times as long. Fails if how many requests there were decides who is faster."""
    slow_end = [replace(row, decode_s=10 * (row.decode_s or 0)) if row.drafter == "dlite" else row for row in rows()]
    for column in ("concurrency 1", "concurrency 64"):
        assert table(slow_end).cell("dlite", "speedup", column) == table(rows()).cell("dlite", "speedup", column)
    never_full = [replace(row, full_steps=0, full_emitted=0, full_s=0.0) for row in rows()]
    found = table(never_full)
    assert found.cell("dlite", "speedup", "concurrency 64").value is None
    assert "dlite at concurrency 64: its rows were never all busy: serve more requests" in found.notes


def test_an_interval_holds_what_passes_and_what_rollouts_differ_by() -> None:
    """Fails if one pass has an interval, or a wide spread between passes, or between rollouts, does not widen it."""
    steady = table(rows()).cell("dlite", "speedup", "concurrency 1").interval
    assert steady is not None
    torn = [
        replace(row, full_s=1.3 * (row.full_s or 0)) if row.repeat and row.drafter == "dlite" else row for row in rows()
    ]
    apart = table(torn).cell("dlite", "speedup", "concurrency 1").interval
    assert apart is not None and apart.error > 1.5 * steady.error
    alike = [replace(row, rollouts={str(i): (20, 21, row.rounds // 10) for i in range(10)}) for row in rows()]  # type: ignore[operator]
    even = table(alike).cell("dlite", "speedup", "concurrency 1").interval
    assert even is not None and even.error < 0.1 * steady.error
    single = table([row for row in rows() if not row.repeat]).cell("dlite", "speedup", "concurrency 1")
    assert single.value == pytest.approx(4.0) and single.interval is None and single.verdict == "unknown"


def test_tokens_per_second_are_judged_on_the_papers_gpu_only() -> None:
    """Fails if another machine is said to be below the paper."""
    column = "concurrency 1"
    assert table(rows()).cell("dlite", "tokens_per_s", column).verdict == "unknown"
    assert table(rows(), same_hardware=True).cell("dlite", "tokens_per_s", column).verdict == "below"
    assert table(rows(), comparable=False).cell("dlite", "speedup", column).verdict == "unknown"


def test_draft_kv_share_stands_beside_the_papers_and_is_not_judged() -> None:
    """Fails if plain decoding has a share, a fused drafter has 0, or the share of another engine becomes a verdict."""
    given = rows()
    found = throughput_table("T", "LiveCodeBench", given, ["eagle3", "dlite"], [1], ["draft_kv_share"], target="t")
    assert found.cell("dlite", "draft_kv_share", "concurrency 1").value == pytest.approx(1 / (1.5 + 6.0), rel=0.01)
    assert found.cell("none", "draft_kv_share", "concurrency 1").value is None
    paper = found.cell("eagle3", "draft_kv_share", "concurrency 1").paper
    assert paper is not None and paper.text == "10-20 % (MTP, DeepSeek-V4 MTP on SGLang)"
    fused = [replace(row, draft_append_s=None) for row in given]
    assert table(fused).cell("dlite", "draft_kv_share", "concurrency 1").value is None


def test_power_is_said_of_tau() -> None:
    """Rounds 3 and 1 for the same tokens. Fails if table 4 alone says nothing of what its rollouts can show."""
    few = [replace(row, rollouts={"a": (100, 105, 30), "b": (100, 105, 10)}) for row in rows()]
    assert any("2 independent rollouts are too few to tell how many it takes" in note for note in table(few).notes)
    many = [replace(row, rollouts={str(i): (20, 21, 3 if i % 2 else 1) for i in range(10)}) for row in rows()]
    (note,) = [note for note in table(many).notes if "80 % power" in note]
    # relative to the means the rounds are 1.5 and 0.5: spread 0.527, and (2.8016 x 0.527 / 0.05)^2 = 872; by t 876
    assert note.startswith("876 (") and note.endswith("there are 10")


def test_failed_passes_lost_turns_and_other_outputs_are_said() -> None:
    """Fails if the table is silent about what it does not hold."""
    given = rows()
    given[1].left_out, given[1].outputs = {"oversized": 3}, {"a#0": "x", "b#0": "z"}
    for row in given:
        if (row.drafter, row.concurrency) == ("dlite", 64):
            row.status, row.error = "error", "ValueError: no"
    found = table(given)
    assert "dlite at concurrency 1: 3 turns left out: oversized" in found.notes
    assert "dlite at concurrency 1: 1 of 2 outputs are those of plain decoding at 1" in found.notes
    assert "dlite at concurrency 64: failed: ValueError: no" in found.notes
    assert found.cell("dlite", "speedup", "concurrency 64").missing == "ValueError: no"
    assert found.cell("dlite", "tau_raw", "concurrency 1").left_out == 3


@pytest.mark.parametrize(
    "fields", [{"k": 3}, {"thinking": True}, {"target": "other"}, {"schema": 0}, {"workload": "x"}]
)
def test_a_wrong_mix_is_refused(fields: dict[str, Any]) -> None:
    """Fails if passes under different conditions share a table."""
    with pytest.raises(MeasurementError, match=next(iter(fields))):
        table([*rows(), a_pass("dspark", 1, 5.0, 40, **fields)])
    with pytest.raises(MeasurementError, match="one pass stands there twice"):
        table([*rows(), *rows()])


def test_rows_survive_their_file(tmp_path: Path) -> None:
    """Fails if a row changes on disk, a torn line ends reading, or a wrong field goes unnamed."""
    for row in rows():
        append_row(tmp_path, row)
    file = tmp_path / "throughput.jsonl"
    with file.open("a") as stream:
        stream.write('{"schema": 1, "targ')
    assert read_rows(tmp_path) == rows()
    drop_torn_line(tmp_path)
    append_row(tmp_path, rows()[0])
    assert len(read_rows(tmp_path)) == 9
    file.write_text(file.read_text().replace('"k": 7', '"k": "7"', 1))
    with pytest.raises(ConfigError, match=r"throughput\.jsonl:1: field 'k'"):
        read_rows(tmp_path)


def of_k_3() -> list[ThroughputRow]:
    """The same passes with K = 3: slower on one row, faster on 64."""
    slower = {1: 1.5, 64: 0.5}
    return [
        replace(row, k=3, full_s=(row.full_s or 0) * (slower[row.concurrency] if row.drafter == "dlite" else 1))
        for row in rows()
    ]


def test_the_best_k_by_concurrency_is_read_from_passes() -> None:
    """Fails if concurrencies are thrown together, or a K is paired with plain decoding of another one."""
    choices = choices_of_passes([rows(), of_k_3()])
    assert [(each.place.concurrency, each.best.k) for each in choices] == [(1, 7), (64, 3)]
    assert [round(each.best.speedup, 2) for each in choices] == [4.0, 4.0]
    assert all(each.rivals == () and each.speculate and len(each.tried) == 2 for each in choices)
    assert choices_of_passes([rows()]) == []
    failed = [replace(row, status="error") if row.concurrency == 64 else row for row in of_k_3()]
    assert [each.place.concurrency for each in choices_of_passes([rows(), failed])] == [1]


def test_a_report_over_throughput_runs_has_their_cards_and_the_best_k(tmp_path: Path) -> None:
    """Fails if passes cannot be reported together, one K alone is, or runs on unlike targets stand in one table."""
    folders = [tmp_path / name for name in ("k7", "k3", "other")]
    other = [replace(row, k=1, target="another") for row in rows()]
    for folder, passes in zip(folders, (rows(), of_k_3(), other), strict=True):
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "schema": 1}))
        for each in passes:
            append_row(folder, each)
    page = tmp_path / "page.html"
    done = call("report", *folders[:2], "-o", page)
    assert done.code == 0, done.err
    text = page.read_text()
    assert "How many tokens to draft, by rollouts decoded at once" in text and "K = 3: 4.00" in text
    assert "k7" in text and "k3" in text
    for refused in (folders[:1], [folders[0], folders[2]]):
        assert "differ in k alone" in call("report", *refused, "-o", page).error


def test_a_pass_on_a_busy_machine_is_named() -> None:
    """Fails if a baseline that other processes slowed down makes speed-ups that nobody is warned of."""
    slowed = a_pass("none", 64, 9.0, 200, other_cores=1.84, contended=True)
    notes = table([a_pass("none", 1, 20.0, 200), a_pass("dlite", 1, 5.0, 40, other_cores=0.1), slowed]).notes
    assert [note for note in notes if "doubtful" in note] == [
        "none at concurrency 64: other work took 1.8 cores of the machine meanwhile: its seconds and speed-ups are "
        "doubtful"
    ]
