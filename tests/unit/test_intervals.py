"""Intervals clustered by rollout."""

from __future__ import annotations

import numpy as np
import pytest
from rowkit import make_row

from agentbench_spec.results.costs import paired
from agentbench_spec.results.intervals import (
    clustered_interval,
    clusters_needed,
    exchange_p,
    holm,
    paired_difference,
    ratio_interval,
    speedup_interval,
    tau_interval,
)
from agentbench_spec.results.rows import TurnRow

Triples = list[tuple[int, float, float]]


def _correlated(draw: np.random.Generator, rollouts: int = 20, turns: int = 8) -> Triples:
    """Turns of a rollout share its level: nearly all spread lies between rollouts. True ratio 3."""
    levels = draw.normal(3.0, 0.5, size=rollouts)
    return [(i, 10 * (level + draw.normal(0, 0.1)), 10.0) for i, level in enumerate(levels) for _ in range(turns)]


def test_one_rollout_has_no_interval() -> None:
    """Fails if the spread of one rollout's turns is sold as the spread between rollouts."""
    assert tau_interval([make_row("a", t, matched=[t, 1]) for t in range(5)], seed=0) is None
    assert ratio_interval([], seed=0) is None


def test_few_rollouts_are_said_to_be_few() -> None:
    """Fails if an interval over three rollouts carries no caveat, or one over twelve does."""
    few = tau_interval([make_row(f"r{i}", matched=[i, 1]) for i in range(3)], seed=0)
    many = tau_interval([make_row(f"r{i}", matched=[i % 7, 1]) for i in range(12)], seed=0)
    assert few is not None and few.note is not None and "only 3 rollouts" in few.note
    assert many is not None and many.note is None and many.clusters == 12


def test_seed_decides_the_interval() -> None:
    """Fails if a report cannot be reproduced, or if the seed is ignored."""
    parts = _correlated(np.random.default_rng(1))
    assert ratio_interval(parts, seed=3) == ratio_interval(parts, seed=3)
    assert ratio_interval(parts, seed=3) != ratio_interval(parts, seed=4)


def test_interval_agrees_with_a_plain_loop() -> None:
    """Fails if the vectorised resampling is not resampling of whole rollouts with replacement."""
    parts = _correlated(np.random.default_rng(2), rollouts=12, turns=3)
    found = ratio_interval(parts, seed=0, resamples=4000)
    draw = np.random.default_rng(99)
    values = []
    for _ in range(4000):
        picked = draw.integers(12, size=12)
        rows = [part for rollout in picked for part in parts if part[0] == rollout]
        values.append(sum(p[1] for p in rows) / sum(p[2] for p in rows))
    low, high = np.quantile(values, [0.025, 0.975])
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))


def test_clustered_interval_covers_and_turnwise_does_not() -> None:
    """Over 200 experiments: fails if 95 % intervals miss the truth too often; turn-wise ones are the control."""
    covered = {"rollout": 0, "turn": 0}
    for experiment in range(200):
        parts = _correlated(np.random.default_rng(experiment))
        turnwise = [(i, top, bottom) for i, (_, top, bottom) in enumerate(parts)]
        for kind, triples in (("rollout", parts), ("turn", turnwise)):
            found = ratio_interval(triples, seed=experiment, resamples=500)
            assert found is not None
            covered[kind] += found.low <= 3.0 <= found.high
    assert covered["rollout"] >= 0.88 * 200
    assert covered["turn"] <= 0.60 * 200


def test_paired_speedup_is_tighter_than_its_parts() -> None:
    """Rollouts differ tenfold in speed, the ratio is 2 in all. Fails if baseline and drafter are resampled apart."""
    rows = []
    for i in range(12):
        slowness = 1.0 + 9.0 * (i % 3) / 2
        rows.append(make_row(f"r{i}", 0, "none", [0] * 10, decode_s=2 * slowness))
        rows.append(make_row(f"r{i}", 0, "ngram", [1] * 5, decode_s=slowness))
    found = speedup_interval(paired(rows, "ngram"), seed=0)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_rollouts_without_a_round_do_not_count_as_clusters() -> None:
    """Fails if an empty rollout lets a single measured rollout pass for two."""
    assert tau_interval([make_row("a", matched=[3]), make_row("b", matched=[])], seed=0) is None


def test_undefined_resamples_are_said_and_left_out() -> None:
    """A statistic that fails when rollout a alone is drawn. Fails if NaN reaches the interval."""
    parts = [(0.0, 0.0), (2.0, 1.0), (4.0, 1.0)]
    with np.errstate(all="raise"):
        found = clustered_interval(parts, ["a", "b", "c"], lambda sums: sums[:, 0] / sums[:, 1], seed=0)
    assert found is not None and found.note is not None
    assert "resamples undefined" in found.note
    assert 2.0 <= found.low <= found.high <= 4.0


def _two(matched: list[tuple[list[int], list[int]]]) -> list[TurnRow]:
    """One turn a rollout, decoded by a and b."""
    rows = []
    for i, (a, b) in enumerate(matched):
        rows += [make_row(f"r{i}", drafter="a", matched=a), make_row(f"r{i}", drafter="b", matched=b)]
    return rows


def test_paired_difference_by_hand() -> None:
    """a: 10 tokens in 4 rounds; b: 12 in 8. Fails if unpaired turns count or a ratio is of means."""
    rows = _two([([3, 1], [1, 0, 1]), ([1, 1], [0, 1, 0, 0, 1])])
    rows.append(make_row("alone", drafter="a", matched=[6] * 9))
    found = paired_difference(rows, "a", "b", "tau", seed=0)
    assert found.turns == 2
    assert found.ratio == pytest.approx((10 / 4) / (12 / 8))
    assert found.p == 0.5  # both clusters favour a: 2 of the 4 exchanges are as large
    assert found.interval is not None and found.interval.low > 1


def test_exchange_test_keeps_its_level() -> None:
    """Fails if alike drafters are told apart too often (clusters of correlated turns), or unlike ones never are."""
    alarms, seen = 0, 0
    for experiment in range(200):
        draw = np.random.default_rng(experiment)
        level = draw.normal(3, 0.5, size=(15, 1))
        alike = level + draw.normal(0, 0.3, size=(15, 2))
        sums = np.stack([alike[:, 0], np.ones(15), alike[:, 1], np.ones(15)], axis=1)
        p = exchange_p(sums, seed=experiment)
        alarms += p is not None and p < 0.05
        sums[:, 0] *= 1.2
        p = exchange_p(sums, seed=experiment)
        seen += p is not None and p < 0.05
    assert alarms <= 0.09 * 200
    assert seen >= 0.9 * 200


def test_holm_by_hand() -> None:
    """Holm's steps for 0.01, 0.04, 0.03: times 3, 2, 1, never falling. Fails if a missing p counts as a test."""
    assert holm([0.01, 0.04, None, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06)]
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_power_by_hand() -> None:
    """Spread 0.25 of τ between rollouts: (1.96 + 0.84)^2 (0.25 / 0.05)^2 = 196.2 rollouts. Pairing must lower it."""
    shape = np.array([-1.0, 1.0] * 8) * 0.25 * np.sqrt(15 / 16)
    alone = clusters_needed([(i, 3 * (1 + d), 1.0) for i, d in enumerate(shape)])
    assert alone is not None and alone.spread == pytest.approx(0.25)
    assert (alone.needed, alone.clusters) == (197, 16)
    paired_parts = [(i, 3 * (1 + d), 1.0, 2 * (1 + 0.9 * d), 1.0) for i, d in enumerate(shape)]
    both = clusters_needed(paired_parts)
    assert both is not None and both.spread == pytest.approx(0.025) and both.needed == 2
    assert clusters_needed([(0, 1.0, 1.0)]) is None


def test_rollouts_of_one_scenario_are_one_cluster() -> None:
    """Fails if four categories that tell one story pass for four independent rollouts."""
    rows = [
        make_row(f"{category}{i}", matched=[i % 7, 1], labels={"scenario": f"s{i}"})
        for category in ("base", "miss_func", "miss_param", "long_context")
        for i in range(3)
    ]
    found = tau_interval(rows, seed=0)
    assert found is not None and found.clusters == 3
