"""Rows of several engines in one table: a line for each, where they were measured alike; refused by field where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rowkit import make_row

from agentbench_spec.errors import MeasurementError
from agentbench_spec.report.engine_grids import engine_grids, pass_engine_grids
from agentbench_spec.results.metrics import one_condition
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import summarise
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, append_row

SERVED: dict[str, Any] = {"clock": "wall", "client": "generate", "concurrency": 1, "async_scheduling": False}


def rows_of(backend: str, version: str | None, matched: int, **fields: Any) -> list[TurnRow]:
    """Two turns of plain decoding, and the same drafted with `matched` accepted drafts in each of two rounds."""
    own = (SERVED if backend != "engine" else {}) | {"backend": backend, "engine_version": version} | fields
    return [
        make_row(turn=turn, drafter=drafter, matched=accepted, **own)
        for turn in (0, 1)
        for drafter, accepted in (("none", [0] * (2 * matched + 2)), ("ngram", [matched] * 2))
    ]


def test_each_engine_has_its_lines() -> None:
    """Our loop, two servers and two versions of one: each figure is of its own rows, none is pooled, and each says
    whose it is."""
    engines = [("engine", None, 3), ("sglang", "0.5.23", 2), ("vllm", "0.32.0", 1), ("vllm", "0.33.0", 0)]
    found = summarise(row for name, version, matched in engines for row in rows_of(name, version, matched))
    assert {own.drafter: own.tau.pooled for own in found.drafters} == {
        "none (engine)": 1.0,
        "ngram (engine)": 4.0,
        "none (sglang 0.5.23)": 1.0,
        "ngram (sglang 0.5.23)": 3.0,
        "none (vllm 0.32.0)": 1.0,
        "ngram (vllm 0.32.0)": 2.0,
        "none (vllm 0.33.0)": 1.0,
        "ngram (vllm 0.33.0)": 1.0,
    }


@pytest.mark.parametrize(
    ("unlike", "said"),
    [
        ({"async_scheduling": True}, r"async_scheduling: False \(engine\), False \(sglang 1\), True \(vllm 2\)"),
        ({"concurrency": 4}, r"concurrency: 1 \(engine\), 1 \(sglang 1\), 4 \(vllm 2\)"),
        ({"k": 4}, r"k of ngram: 7 \(engine\), 7 \(sglang 1\), 4 \(vllm 2\)"),
        ({"target": "other"}, r"target: None \(engine\), None \(sglang 1\), other \(vllm 2\)"),
        ({"temperature": 0.7}, "temperature"),
        ({"prefix_mode": "cold"}, "prefix_mode"),
        ({"thinking": True}, "thinking"),
    ],
)
def test_unlike_engines_are_refused_by_field(unlike: dict[str, Any], said: str) -> None:
    """Each planted difference is named with the value of each engine, and no table is made."""
    rows = [*rows_of("engine", None, 3), *rows_of("sglang", "1", 2), *rows_of("vllm", "2", 1, **unlike)]
    with pytest.raises(MeasurementError, match=said) as refused:
        summarise(rows)
    assert str(refused.value).count(": ") == 1


def test_what_is_not_told_agrees_and_what_is_an_engines_own_does_not_matter() -> None:
    """Clock, route and graphs differ by nature; a server that does not tell its scheduling is not refused for it."""
    more = {"async_scheduling": None, "client": "chat"}
    rows = [*rows_of("engine", None, 3, graphs=True), *rows_of("vllm", "2", 1, **more)]
    assert len(summarise(rows).drafters) == 4


def test_other_turns_are_told_and_a_turn_twice_is_refused() -> None:
    """τ over other turns is another figure, which the table says; two runs of one engine would be averaged."""
    vllm, sglang = rows_of("vllm", "2", 1), rows_of("sglang", "1", 2)
    assert not any("different turns" in line for line in summarise([*vllm, *sglang]).warnings)
    found = summarise([*vllm[:2], *sglang]).warnings
    assert "engines are averaged over different turns (vllm 2 1, sglang 1 2)" in found
    vllm[0].status = vllm[1].status = "error"
    assert any("(vllm 2 1, sglang 1 2)" in line for line in summarise([*vllm, *sglang]).warnings)
    vllm = rows_of("vllm", "2", 1)
    with pytest.raises(MeasurementError, match="vllm 2: r0 turn 0 none stands there twice"):
        summarise([*vllm, *vllm, *sglang])


def test_one_engine_is_one_condition() -> None:
    """Within one engine, servers of unlike scheduling are refused, and figures over two engines still are."""
    with pytest.raises(MeasurementError, match="async_scheduling: False, True"):
        one_condition([*rows_of("vllm", "2", 1)[:2], *rows_of("vllm", "2", 1, async_scheduling=True)[2:]])
    with pytest.raises(MeasurementError, match="backend: sglang, vllm"):
        one_condition([*rows_of("vllm", "2", 1), *rows_of("sglang", "1", 1)])


def test_the_page_has_the_table_or_the_reason() -> None:
    """One engine: nothing. Two alike: one table of all lines. Two unlike: the fields, in place of the table."""
    vllm, sglang = rows_of("vllm", "2", 1), rows_of("sglang", "1", 2)
    assert engine_grids([({}, vllm)]) == []
    (grid,) = engine_grids([({}, vllm), ({}, sglang)])
    assert [line[0].text for line in grid.rows] == [
        "none (vllm 2)",
        "ngram (vllm 2)",
        "none (sglang 1)",
        "ngram (sglang 1)",
    ]
    (refused,) = engine_grids([({}, vllm), ({}, rows_of("sglang", "1", 2, concurrency=8))])
    assert refused.rows == () and "concurrency: 1 (vllm 2), 8 (sglang 1)" in refused.notes[0]


def a_pass(backend: str, drafter: str, seconds: float, rounds: int, **fields: Any) -> ThroughputRow:
    """200 tokens of two rollouts at concurrency 2."""
    values: dict[str, Any] = {
        "target": "m",
        "workload": "toy",
        "drafter": drafter,
        "k": 4,
        "thinking": False,
        "concurrency": 2,
        "turns": 2,
        "output_tokens": 200,
        "emitted": 198,
        "emitted_raw": 198,
        "rounds": rounds,
        "backend": backend,
        "engine_version": "1",
        "servers": 1,
        "served_s": seconds,
        "async_scheduling": False,
        "rollouts": {"a": (99, 99, rounds // 2), "b": (99, 99, rounds // 2)},
    }
    return ThroughputRow(**(values | fields))


def passes_of(folder: Path, backend: str, **fields: Any) -> Path:
    """A throughput run of plain decoding, and of a drafter that takes half the time and a third of the rounds."""
    folder.mkdir()
    for drafter, seconds, rounds in (("none", 10.0, 198), ("ngram", 5.0, 66)):
        append_row(folder, a_pass(backend, drafter, seconds, rounds, **fields))
    return folder


def test_passes_stand_side_by_side(tmp_path: Path) -> None:
    """Throughput of two engines: a line for each drafter, engine and concurrency, the speed-up over that engine's own
    plain decoding; one engine alone has no such table."""
    vllm, sglang = passes_of(tmp_path / "v", "vllm"), passes_of(tmp_path / "s", "sglang", concurrency=1)
    assert pass_engine_grids([vllm]) == []
    (grid,) = pass_engine_grids([vllm, sglang])
    assert [[cell.text for cell in line] for line in grid.rows][1::2] == [
        ["ngram (vllm 1)", "2", "3.00 [3.00, 3.00]", "2.00", "40.0"],
        ["ngram (sglang 1)", "1", "3.00 [3.00, 3.00]", "2.00", "40.0"],
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"async_scheduling": True}, "async_scheduling: False (vllm 1), True (sglang 1)"),
        ({"k": 7}, "k of ngram: 4 (vllm 1), 7 (sglang 1)"),
        ({"workload": "other"}, "workload: toy (vllm 1), other (sglang 1)"),
        ({"backend": "engine"}, "prefills in tokens/s: True (vllm 1), False (engine 1)"),
    ],
)
def test_unlike_passes_are_refused_by_field(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    """Each planted difference is named in place of the table; our engine's passes leave prefills out of tokens/s."""
    vllm = passes_of(tmp_path / "v", "vllm")
    (grid,) = pass_engine_grids([vllm, passes_of(tmp_path / "s", **({"backend": "sglang"} | fields))])
    assert grid.rows == () and said in grid.notes[0]
    (twice,) = pass_engine_grids([vllm, vllm, passes_of(tmp_path / "t", "sglang")])
    assert "vllm 1: none 2 0 wall stands there twice" in twice.notes[0]
