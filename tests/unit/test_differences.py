"""Drafter against drafter, corrected over a table, and how many rollouts it takes to see a difference."""

from __future__ import annotations

import numpy as np
import pytest
from rowkit import make_row

from agentbench_spec.results.differences import (
    clusters_needed,
    difference_line,
    holm,
    paired_difference,
    power_lines,
    with_holm,
)
from agentbench_spec.results.rows import TurnRow


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
    found = paired_difference(rows, "a", "b", "tau")
    assert found.turns == 2
    assert found.ratio == pytest.approx((10 / 4) / (12 / 8))
    assert found.interval is not None and found.p == found.interval.p_of(1.0)
    assert found.interval.low < 1 < found.interval.high and found.p > 0.05  # two rollouts prove nothing here


def _drawn(seed: int, effect: float = 1.0, rollouts: int = 12) -> list[TurnRow]:
    """Seconds of two drafters that share each rollout's level, with noise of their own."""
    draw, rows = np.random.default_rng(seed), []
    for i in range(rollouts):
        level = draw.lognormal(0, 0.5)
        for name, factor in (("a", effect), ("b", 1.0)):
            seconds = level * factor * draw.lognormal(0, 0.08)
            rows.append(make_row(f"r{i}", drafter=name, matched=[1] * 5, decode_s=seconds))
    return rows


def test_difference_keeps_its_level() -> None:
    """Fails if alike drafters are told apart too often, unlike ones never, or a line contradicts itself."""
    alarms, seen = 0, 0
    for experiment in range(200):
        for effect in (1.0, 1.2):
            found = paired_difference(_drawn(experiment, effect), "a", "b", "s_per_token")
            assert found.interval is not None and found.p is not None
            different = not found.interval.low <= 1 <= found.interval.high
            assert different == (found.p < 0.05)
            alarms += different and effect == 1
            seen += different and effect > 1
    assert alarms <= 0.08 * 200
    assert seen >= 0.9 * 200


def test_line_names_both_p() -> None:
    """Fails if a corrected p stands beside an uncorrected interval without saying so."""
    (found,) = with_holm([paired_difference(_drawn(0, 1.5), "a", "b", "s_per_token")])
    line = difference_line(found)
    assert "alone" in line and "with all tests here (Holm)" in line and "independent rollouts show 5 %" in line
    (alone,) = with_holm([paired_difference(_drawn(0, rollouts=1), "a", "b", "s_per_token")])
    assert difference_line(alone).endswith("not tested, one rollout")


def test_holm_by_hand() -> None:
    """Holm's steps for 0.01, 0.04, 0.03: times 3, 2, 1, never falling. Fails if a missing p counts as a test."""
    assert holm([0.01, 0.04, None, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06)]
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_power_by_hand() -> None:
    """Spread 0.25 of τ between 16 rollouts: (1.98 + 0.85)^2 (0.25 / 0.05)^2 rollouts. Pairing must lower it."""
    shape = np.array([-1.0, 1.0] * 8) * 0.25 * np.sqrt(15 / 16)
    alone = clusters_needed([(i, 3 * (1 + d), 1.0) for i, d in enumerate(shape)])
    assert alone is not None and alone.spread == pytest.approx(0.25)
    assert (alone.needed, alone.clusters) == (201, 16)
    # chi-square with 15 degrees of freedom: 6.262 and 27.488
    assert alone.low == pytest.approx(201 * 15 / 27.488, rel=0.02)
    assert alone.high == pytest.approx(201 * 15 / 6.262, rel=0.02)
    paired_parts = [(i, 3 * (1 + d), 1.0, 2 * (1 + 0.9 * d), 1.0) for i, d in enumerate(shape)]
    both = clusters_needed(paired_parts)
    assert both is not None and both.spread == pytest.approx(0.025) and both.needed < 6
    assert clusters_needed([(0, 1.0, 1.0)]) is None


def test_range_of_needed_holds_the_truth() -> None:
    """Pilots of 12 of a spread known to need 36. Fails if the range misses it more often than one time in ten."""
    held = 0
    for experiment in range(300):
        draw = np.random.default_rng(experiment)
        found = clusters_needed([(i, float(v), 1.0) for i, v in enumerate(draw.normal(1, 0.1, size=12))])
        assert found is not None and found.low <= found.needed <= found.high
        held += found.low <= 36 <= found.high
    assert held >= 0.9 * 300


def test_small_pilots_say_nothing_of_power() -> None:
    """Fails if three rollouts tell how many it takes."""
    assert clusters_needed([(i, 3.0 + i % 2, 1.0) for i in range(9)]) is None
    (line,) = power_lines(_drawn(0, rollouts=9))
    assert line.startswith("9 independent rollouts are too few to tell")


def test_power_lines_say_which_pairs_they_speak_of() -> None:
    """Fails if a number for look-up against learned reads as one for any two drafters."""
    rows = []
    for i in range(12):
        spreads = {"none": 0.0, "ngram": 0.5, "dlite": 0.1, "eagle3": 0.1}
        for name, spread in spreads.items():
            seconds = 1 + spread * (-1) ** i
            rows.append(make_row(f"r{i}", drafter=name, matched=[0 if name == "none" else 1] * 6, decode_s=seconds))
    lines = list(power_lines(rows))
    kinds = ("a drafter against plain decoding", "learned against look-up", "learned against learned")
    found = {kind: next(line for line in lines if kind in line) for kind in kinds}
    assert "(of all, ngram most)" in found["a drafter against plain decoding"]
    assert (
        "(of all, eagle3 / dlite most)" in found["learned against learned"]
        or "dlite / eagle3" in found["learned against learned"]
    )
