"""The fall of figure 1b and the mean τ of table 4, from hand-made cells and passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rowkit import make_row
from test_table4 import a_pass

from agentbench_spec.reproduce.figure1b import fall_table
from agentbench_spec.reproduce.mean_tau import mean_tau_table, tau_over_concurrencies
from agentbench_spec.reproduce.means import mean_cell, ratio_cell
from agentbench_spec.reproduce.plan import Plan, Request, plan
from agentbench_spec.results.export import markdown, sheet
from agentbench_spec.results.intervals import Interval
from agentbench_spec.results.paper import FALL, MEAN
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.tables import Cell, Column, Table, replay_table


def cell(value: float, error: float, df: float = 9) -> Cell:
    """A value whose logarithm has this standard error."""
    half = error * 2.2621571627  # t at 9 degrees of freedom
    return Cell(value=value, interval=Interval(value * math.exp(-half), value * math.exp(half), 0.95, 10, df), turns=3)


def test_errors_of_a_mean_weigh_as_its_parts_do() -> None:
    """Two workloads at τ 2 and 6, 10 % each: the mean's error is sqrt(.2² + .6²) / 4. Fails if errors are averaged."""
    mean = mean_cell([cell(2, 0.1), cell(6, 0.1)])
    assert mean.value == 4 and mean.interval is not None
    assert mean.interval.error == pytest.approx(math.hypot(0.2, 0.6) / 8, rel=1e-6)


def test_a_ratio_has_the_errors_of_both_sides() -> None:
    """Fails if one side's error is lost, or a side without an interval is taken to have no error."""
    ratio = ratio_cell([cell(1.2, 0.03)], [cell(6, 0.04)])
    assert ratio.value == pytest.approx(0.2) and ratio.interval is not None
    assert ratio.interval.error == pytest.approx(0.05, rel=1e-6)
    assert ratio_cell([Cell(value=1.2)], [cell(6, 0.04)]).interval is None


def test_the_interval_of_a_fall_covers() -> None:
    """Four workloads of eight rollouts each, 500 times: at least 93 % of intervals hold the true ratio of 0.4.

    Fails if workloads' errors are added wrongly or degrees of freedom are counted twice.
    """
    import numpy as np

    from agentbench_spec.results.intervals import ratio_interval

    draw = np.random.default_rng(5)
    hits = 0
    for _ in range(500):
        cells = []
        for truth in (5.0, 4.0, 2.0, 1.6):
            tau = truth * np.exp(draw.normal(0, 0.2, 8) - 0.02)
            parts = [(i, float(t * 50), 50.0) for i, t in enumerate(tau)]
            cells.append(Cell(value=float(tau.mean()), interval=ratio_interval(parts)))
        interval = ratio_cell(cells[2:], cells[:2]).interval
        assert interval is not None
        hits += interval.low <= 0.4 <= interval.high
    assert 0.93 * 500 <= hits <= 0.99 * 500


def figure1b(agentic: Sequence[int], *, comparable: bool = True) -> Table:
    """The fall of EAGLE-3 and DLite from 6 accepted tokens to about `agentic` on one workload of each group."""
    wanted = plan("figure1b", Request(target="Qwen/Qwen3-4B"))
    wanted = replace(wanted, columns=[wanted.columns[0], wanted.columns[-1]])

    def rows(matched: Sequence[int]) -> list[TurnRow]:
        return [
            make_row(f"r{i}", 0, name, [each] * 4, k=7)
            for name in ("eagle3", "dlite")
            for i, each in enumerate([*matched, *matched])
        ]

    columns = [
        Column("GSM8K", rows([5, 5, 4, 5]), "general"),
        Column("SWE-Bench", rows(agentic), "agentic"),
    ]
    whole = replay_table(
        "figure1b", "Figure 1b", columns, ["eagle3", "dlite"], ["tau_raw"], target="t", paper_target="Qwen3-4B"
    )
    return fall_table(whole, wanted if comparable else replace(wanted, changed=["decode.k"]))


def test_figure_1b_states_the_fall_beside_the_papers() -> None:
    """A fall of 83 % is what the paper says, one of 50 % is not. Fails if the two read alike or DLite is compared."""
    deep, shallow = figure1b([0, 0, 0, 0]), figure1b([2, 2, 1, 2])
    assert deep.cell("eagle3", "tau_raw", FALL).verdict == "inside"
    assert shallow.cell("eagle3", "tau_raw", FALL).verdict == "above", "more is left than the paper says"
    assert shallow.cell("dlite", "tau_raw", FALL).paper is None
    text = markdown(sheet(deep))
    assert "EAGLE-3: τ raw falls by 83 % [" in text and "over 80 %" in text and "about 5-6" in text


def test_under_other_conditions_the_fall_has_no_verdict() -> None:
    """Fails if a changed setting is judged."""
    assert figure1b([2, 2, 1, 2], comparable=False).cell("eagle3", "tau_raw", FALL).verdict == "unknown"


def table4() -> Plan:
    """The plan of table 4 for the paper's first target."""
    return plan("table4", Request(target="Qwen/Qwen3-4B"))


def served(concurrency: int, rounds: dict[str, int]) -> list:
    """A pass in which each rollout gave 40 tokens in its rounds."""
    return [
        a_pass("dlite", concurrency, 1.0, 1, rollouts={name: (40, 40, own) for name, own in rounds.items()}, repeat=i)
        for i in (0, 1)
    ]


def test_mean_tau_is_over_concurrencies_and_then_workloads() -> None:
    """τ 4 and 5 at two concurrencies, 2 on the other workload: 4.5, 2, and 3.25.

    Fails if rounds or passes are pooled, so that the largest batch rules.
    """
    first = [*served(1, {"a": 10, "b": 10}), *served(64, dict.fromkeys("abcdefgh", 8))]
    found = mean_tau_table("Table 4", table4(), [("LiveCodeBench", first), ("Alpaca", served(1, {"a": 20, "b": 20}))])
    values = {column: found.cell("dlite", "tau_raw", column).value for column in found.columns}
    assert values == {"LiveCodeBench": 4.5, "Alpaca": 2.0, MEAN: 3.25}
    paper = found.cell("dlite", "tau_raw", MEAN).paper
    assert paper is not None and paper.text == "5.98" and found.cell("dlite", "tau_raw", MEAN).verdict == "unknown"
    assert "5.28" in markdown(sheet(found)) and "not known" in " ".join(found.notes)


def test_a_rollout_is_left_out_of_all_concurrencies_together() -> None:
    """The same rollouts at three concurrencies know no more than at one. Fails if they count three times."""
    rounds = {name: 8 + i % 3 for i, name in enumerate("abcdefgh")}
    once = tau_over_concurrencies(served(1, rounds), "dlite")
    thrice = tau_over_concurrencies([row for c in (1, 2, 4) for row in served(c, rounds)], "dlite")
    assert once is not None and thrice is not None and once.interval is not None and thrice.interval is not None
    assert thrice.interval.error == pytest.approx(once.interval.error, rel=1e-9)
    assert thrice.interval.df == pytest.approx(once.interval.df, rel=1e-9)


def test_the_plan_has_two_groups(tmp_path: Path) -> None:
    """Fails if figure 1b's preset gains a group that the fall does not know of."""
    assert list(plan("figure1b", Request(embedded=True)).preset.groups) == ["general", "agentic"]
