"""Intervals clustered by rollout."""

from __future__ import annotations

import numpy as np
import pytest
from rowkit import make_row

from agentbench_spec.costs import paired
from agentbench_spec.stats import clustered_interval, ratio_interval, speedup_interval, tau_interval

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
