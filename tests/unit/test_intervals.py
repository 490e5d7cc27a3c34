"""Intervals clustered by rollout."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from benchkit import benchmark
from rowkit import make_row
from scipy.stats import t as student

from agentbench_spec.results.costs import paired
from agentbench_spec.results.intervals import (
    clustered_interval,
    combined,
    jackknife_interval,
    ratio_interval,
    speedup_intervals,
    spread_text,
    tau_interval,
)
from agentbench_spec.results.summary import summarise

Triples = list[tuple[int, float, float]]


def _correlated(draw: np.random.Generator, rollouts: int = 20, turns: int = 8) -> Triples:
    """Turns of a rollout share its level: nearly all spread lies between rollouts. True ratio 3."""
    levels = draw.normal(3.0, 0.5, size=rollouts)
    return [(i, 10 * (level + draw.normal(0, 0.1)), 10.0) for i, level in enumerate(levels) for _ in range(turns)]


def test_one_rollout_has_no_interval() -> None:
    """Fails if the spread of one rollout's turns is sold as the spread between rollouts."""
    assert tau_interval([make_row("a", t, matched=[t, 1]) for t in range(5)]) is None
    assert tau_interval([make_row("a", t, matched=[t, 1]) for t in range(5)], macro=True) is None
    assert ratio_interval([]) is None and jackknife_interval([1.0], median) is None


def test_few_rollouts_are_said_to_be_few() -> None:
    """Fails if an interval over two rollouts carries no caveat, or one over twelve does."""
    few = tau_interval([make_row(f"r{i}", matched=[i, 1]) for i in range(2)])
    many = tau_interval([make_row(f"r{i}", matched=[i % 7, 1]) for i in range(12)])
    assert few is not None and few.note is not None
    assert "only 2 independent rollouts" in few.note and "12.7 standard errors" in few.note
    assert many is not None and many.note is None and many.clusters == 12


def test_interval_by_hand_for_two() -> None:
    """Two rollouts with ratios 2 and 4, weighing the same. Fails if two are said to know more than 12.7 errors."""
    found = ratio_interval([("a", 2.0, 1.0), ("b", 4.0, 1.0)])
    error = np.sqrt(0.5 * 2 * (np.log(2) / 2) ** 2)
    assert found is not None and found.df == 1
    assert found.low == pytest.approx(3 * np.exp(-12.706 * error), rel=1e-3)
    assert found.high == pytest.approx(3 * np.exp(12.706 * error), rel=1e-3)


def test_interval_agrees_with_a_plain_loop() -> None:
    """Fails if the vectorised jackknife does not leave out whole rollouts, or a size is taken from the wrong one."""
    parts = [(i, top * (1 + i), bottom * (1 + i)) for i, top, bottom in _correlated(np.random.default_rng(2), 12, 3)]
    found = ratio_interval(parts)

    def logarithm(kept: Triples) -> float:
        return float(np.log(sum(p[1] for p in kept) / sum(p[2] for p in kept)))

    without = [logarithm([p for p in parts if p[0] != left_out]) for left_out in range(12)]
    error = np.sqrt(11 / 12 * sum((each - np.mean(without)) ** 2 for each in without))
    shares = [sum(p[1] for p in parts if p[0] == i) / sum(p[1] for p in parts) / 2 for i in range(12)]
    shares = [s + sum(p[2] for p in parts if p[0] == i) / sum(p[2] for p in parts) / 2 for i, s in enumerate(shares)]
    away = [each - np.mean(without) for each in without]
    by_spread = 1.5 * sum(d**2 for d in away) ** 2 / sum(d**4 for d in away)
    df = min(1 / sum(share**2 for share in shares), by_spread) - 1
    half = student.ppf(0.975, df) * error
    assert found is not None and found.df == pytest.approx(df)
    assert (np.log(found.low), np.log(found.high)) == (
        pytest.approx(logarithm(parts) - half),
        pytest.approx(logarithm(parts) + half),
    )
    by_cluster = [[p for p in parts if p[0] == i] for i in range(12)]
    generic = jackknife_interval(
        by_cluster, lambda kept: float(np.exp(logarithm([p for own in kept for p in own]))), weights=shares
    )
    assert generic is not None and (generic.low, generic.high) == (pytest.approx(found.low), pytest.approx(found.high))


def test_degrees_of_freedom_by_hand() -> None:
    """Fails if size or spread is forgotten, one cluster that rules the error passes for twenty, or three lose one."""

    def df(sizes: list[float], ratios: list[float]) -> float:
        found = ratio_interval([(i, s * r, s) for i, (s, r) in enumerate(zip(sizes, ratios, strict=True))])
        assert found is not None
        return found.df

    assert df([1.0] * 20, [1.0, 1.01] * 10) == pytest.approx(19.0, rel=1e-3), "alike in size and in spread"
    assert df([1.0] * 20, [1.0] * 18 + [1.5, 1.5]) == pytest.approx(1.5 * _worth([-0.1] * 18 + [0.9] * 2) - 1, rel=0.02)
    assert df([1.0] * 20, [1.0] * 19 + [1.5]) == pytest.approx(2.0), "one rules it: as of three"
    assert df([1.0] * 3, [1.0, 1.0, 1.01]) == pytest.approx(2.0, rel=1e-3)
    assert df([18.0] + [1.0] * 18, [1.0, 3.0] * 9 + [1.0]) < 3.0, "one weighs as much as the others together"
    assert df([1.0] * 2, [1.0, 3.0]) == 1.0


def _worth(away: list[float]) -> float:
    """Clusters that a sum of squares rests on."""
    return sum(d**2 for d in away) ** 2 / sum(d**4 for d in away)


def test_interval_of_any_estimate() -> None:
    """Fails if an estimate that is no ratio of sums has no interval, or an undefined one has."""
    found = jackknife_interval([1.0, 1.1, 1.2, 1.3, 1.4], median)
    assert found is not None and found.low < 1.2 < found.high and found.df == 4
    assert jackknife_interval([1.0, 2.0, 3.0], lambda kept: median(kept) if len(kept) == 3 else None) is None
    assert jackknife_interval([-1.0, 2.0, 3.0], min) is None


@pytest.mark.parametrize("rollouts", [3, 6, 20])
def test_clustered_interval_covers_and_turnwise_does_not(rollouts: int) -> None:
    """400 experiments: fails if intervals hold the truth in less than 93 % or, but for chance, more than 97 % of them.

    Turn-wise intervals are the control.
    """
    covered = {"rollout": 0, "turn": 0}
    for experiment in range(400):
        parts = _correlated(np.random.default_rng(experiment), rollouts)
        turnwise = [(i, top, bottom) for i, (_, top, bottom) in enumerate(parts)]
        for kind, triples in (("rollout", parts), ("turn", turnwise)):
            found = ratio_interval(triples)
            assert found is not None
            covered[kind] += found.low <= 3.0 <= found.high
    assert 0.93 * 400 <= covered["rollout"] <= (0.97 + 2 * 0.0085) * 400
    assert covered["turn"] <= 0.60 * 400


def test_p_is_of_the_interval() -> None:
    """Fails if a p below 0.05 can stand beside an interval that holds the value, or the other way round."""
    for experiment in range(100):
        found = ratio_interval(_correlated(np.random.default_rng(experiment), rollouts=2 + experiment % 7))
        assert found is not None
        for value in (2.5, 3.0, 3.5):
            assert (found.p_of(value) < 0.05) == (not found.low <= value <= found.high)
        assert found.p_of(found.low) == pytest.approx(0.05) and found.p_of(found.high) == pytest.approx(0.05)


def test_alike_rollouts_have_an_interval_of_no_width() -> None:
    """Fails if rounding is tested against: equal drafters would differ with p = 0."""
    found = ratio_interval([(i, 0.1 * i, 0.1 * i) for i in range(1, 8)])
    assert found is not None and found.low == found.high == pytest.approx(1.0)
    assert found.p_of(1.0) == 1 and found.p_of(1.1) == 0


def test_paired_speedup_is_tighter_than_its_parts() -> None:
    """Rollouts differ tenfold in speed, the ratio is 2 in all. Fails if baseline and drafter are left out apart."""
    rows = []
    for i in range(12):
        slowness = 1.0 + 9.0 * (i % 3) / 2
        rows.append(make_row(f"r{i}", 0, "none", [0] * 10, decode_s=2 * slowness))
        rows.append(make_row(f"r{i}", 0, "ngram", [1] * 5, decode_s=slowness))
    found = speedup_intervals(paired(rows, "ngram")).pooled
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_independent_errors_add_up() -> None:
    """Two errors of one value. Fails if the larger one hides the other, or few degrees of freedom do not widen."""
    alone = combined(2.0, [(0.1, 9.0)], 10)
    both = combined(2.0, [(0.1, 9.0), (0.1, 9.0)], 10)
    assert alone.error == pytest.approx(0.1) and alone.df == pytest.approx(9.0)
    assert both.error == pytest.approx(0.1 * np.sqrt(2)) and both.df == pytest.approx(18.0)
    few = combined(2.0, [(0.1, 2.0), (0.001, 9.0)], 10)
    assert few.df == pytest.approx(2.0, rel=0.01) and few.high > alone.high
    assert combined(2.0, [(0.0, 2.0)], 10).high == 2.0


def test_rollouts_without_a_round_do_not_count_as_clusters() -> None:
    """Fails if an empty rollout lets a single measured rollout pass for two."""
    assert tau_interval([make_row("a", matched=[3]), make_row("b", matched=[])]) is None
    parts = [(0.0, 0.0), (2.0, 1.0), (4.0, 1.0)]
    with np.errstate(all="raise"):
        found = clustered_interval(parts, ["a", "b", "c"], lambda sums: sums[:, 0] / sums[:, 1])
    assert found is not None and found.clusters == 2


def test_undefined_without_one_rollout_is_no_interval() -> None:
    """Only one rollout has a top. Fails if infinity reaches the interval."""
    assert ratio_interval([("a", 0.0, 1.0), ("b", 3.0, 1.0)]) is None


def test_macro_interval_by_hand() -> None:
    """A rollout's length must not matter. Fails if a macro figure has the pooled figure's interval."""
    rows = [make_row(f"r{i}", matched=[1 + i] * (1 if i else 40)) for i in range(6)]
    found = tau_interval(rows, macro=True)
    assert found == ratio_interval([(i, 2.0 + i, 1.0) for i in range(6)])
    assert found is not None and found.low < np.mean([2, 3, 4, 5, 6, 7]) < found.high


def test_rollouts_of_one_scenario_are_one_cluster() -> None:
    """Fails if four categories that tell one story pass for four independent rollouts, in either weighting."""
    rows = [
        make_row(f"{category}{i}", matched=[i % 7, 1], labels={"scenario": f"s{i}"})
        for category in ("base", "miss_func", "miss_param", "long_context")
        for i in range(3)
    ]
    for macro in (False, True):
        found = tau_interval(rows, macro=macro)
        assert found is not None and found.clusters == 3


def test_ends_far_off_are_short() -> None:
    """Fails if an interval that says nothing prints twenty digits of it."""
    found = ratio_interval([("a", 1.0, 1.0), ("b", 20.0, 1.0)])
    assert found is not None and spread_text(found) == " [0.00, 2e+09]"
    assert spread_text(None) == ""


@pytest.mark.parametrize("correlation", [0.0, 0.5, -0.5])
def test_coverage_is_what_is_claimed(correlation: float) -> None:
    """The benchmark in short. Fails if 95 % covers another share of simulated runs, of few rollouts or of many."""
    coverage = benchmark("coverage")
    for figure in (coverage.of_tau, coverage.of_speedup):
        for rollouts in (3, 10):
            missed = coverage.misses(figure, rollouts, correlation, coverage.truth(correlation), 500)
            assert 0.02 <= missed <= 0.08
    assert 0.01 <= coverage.misses(coverage.of_alike, 6, correlation, 1.0, 500) <= 0.075


def test_shares_have_intervals() -> None:
    """Fails if a share of time is printed or exported without one, or a turn that was not timed counts."""
    rows = [make_row(f"r{i}", matched=[1], draft_s=0.1 + 0.01 * i, attributed_decode_s=1.0) for i in range(5)]
    (own,) = summarise([*rows, make_row("r5", matched=[1])]).drafters
    assert own.draft_share == pytest.approx(0.12) and own.draft_share_interval is not None
    assert own.draft_share_interval.low < 0.12 < own.draft_share_interval.high < 0.15
    assert own.draft_share_interval.clusters == 5 and own.draft_kv_share_interval is None
