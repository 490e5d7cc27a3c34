"""Drafter against drafter over the turns that both decoded, and how many rollouts a difference takes to be seen."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from agentbench_spec.results.derived.k_arms import arm_of
from agentbench_spec.results.intervals import (
    LEVEL,
    Interval,
    cluster_of,
    clustered_interval,
    ratio_of_sums,
    spread_text,
    sums_by_cluster,
    tau_parts,
)
from agentbench_spec.results.metrics import BASELINE, by_drafter, counted, turn_of
from agentbench_spec.results.paper import DRAFTERS
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied

_Parts = tuple[Hashable, float, float, float, float]
Measure = Literal["tau", "tau_raw", "s_per_token"]
"""What two drafters are compared by: pooled τ, pooled raw τ, or decode seconds per emitted token."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How one drafter compares with another over the turns that both decoded."""

    drafter: str
    other: str
    measure: Measure
    ratio: float | None
    """The drafter's pooled value over the other's; of seconds, below 1 is faster. None: nothing in common."""
    interval: Interval | None
    """Of the ratio, each cluster left out for both at once."""
    p: float | None
    """Two-sided p of a ratio of 1, by the test the interval is of: below 0.05 where 1 is outside. None: one cluster."""
    turns: int
    needed: Power | None = None
    """What it takes to see a difference of 5 % by one test alone; None: not known."""
    p_holm: float | None = None
    """`p` corrected for all tests of one table; see `with_holm`."""


def paired_difference(rows: Iterable[TurnRow], drafter: str, other: str, measure: Measure) -> Difference:
    """Compare two drafters on the same turns; turns that only one of them has, or without a round, weigh nothing."""
    found = _paired_parts(steadied(counted(rows)), drafter, other, measure)
    if not found:
        return Difference(drafter, other, measure, None, None, None, 0)
    clusters, parts = [own[0] for own in found], np.asarray([own[1:] for own in found])
    interval = clustered_interval(parts, clusters, ratio_of_sums)
    return Difference(
        drafter,
        other,
        measure,
        float(ratio_of_sums(parts.sum(0, keepdims=True))[0]),
        interval,
        interval.p_of(1.0) if interval else None,
        len(parts),
        clusters_needed(found),
    )


def _paired_parts(kept: Sequence[TurnRow], drafter: str, other: str, measure: Measure) -> list[_Parts]:
    """(cluster, the drafter's top and bottom, the other's top and bottom) of every turn that both decoded."""
    others = {turn_of(row): row for row in kept if row.drafter == other}
    pairs = [(row, others[turn_of(row)]) for row in kept if row.drafter == drafter and turn_of(row) in others]
    return [
        (cluster_of(a), *own, *their)
        for a, b in pairs
        if (own := _ratio_parts(a, measure)) and (their := _ratio_parts(b, measure))
    ]


def _ratio_parts(row: TurnRow, measure: Measure) -> tuple[float, float] | None:
    if measure == "s_per_token":
        return (row.decode_s, float(row.emitted)) if row.decode_s and row.emitted else None
    tokens = row.emitted_raw if measure == "tau_raw" else row.emitted
    return (float(tokens), float(row.rounds)) if row.rounds and tokens is not None else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction: each p as if it were the only test, the chance of any false alarm kept. None stays None."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = largest
    return adjusted


def with_holm(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with `p_holm` filled in, corrected over all of them."""
    adjusted = holm([found.p for found in differences])
    return [replace(found, p_holm=p) for found, p in zip(differences, adjusted, strict=True)]


def difference_line(found: Difference) -> str:
    """A comparison in words; the interval and the first p are of one test, the second p is corrected over the table."""
    what = {"tau": "τ clipped", "tau_raw": "τ raw", "s_per_token": "seconds per token"}[found.measure]
    where = f"{found.drafter} / {found.other}, {what}, {found.turns} shared turns: {found.ratio:.2f}"
    if found.p is None or found.p_holm is None:
        return f"{where}, not tested, one rollout"
    tested = f"{spread_text(found.interval)}, p = {found.p:.3f} alone, {found.p_holm:.3f} with all tests here (Holm)"
    enough = f"; {found.needed.words} show 5 % in a single test" if found.needed else ""
    return f"{where}{tested}{enough}"


LEAST_PILOT = 10
"""Clusters below which nothing is said of how many more it takes: a pilot's spread is too uncertain."""


@dataclass(frozen=True, slots=True)
class Power:
    """How many clusters a difference takes to be seen."""

    spread: float
    """Standard deviation of one cluster's contribution, relative to the value."""
    needed: int
    """Clusters at which a two-sided test sees the effect with the given power, were `spread` the true one."""
    low: int
    """The same at the low end of what `spread` may be, given the size of the pilot."""
    high: int
    """The same at its high end."""
    clusters: int
    """Clusters there are: the pilot."""

    @property
    def words(self) -> str:
        """ "18 (11 to 41) independent rollouts"."""
        return f"{self.needed} ({self.low} to {self.high}) independent rollouts"


def clusters_needed(
    parts: Iterable[tuple[Hashable, float, float]] | Iterable[tuple[Hashable, float, float, float, float]],
    *,
    effect: float = 0.05,
    power: float = 0.8,
    level: float = LEVEL,
) -> Power | None:
    """Clusters it takes to see a relative `effect` in a ratio, or in a ratio of two paired ratios; None below ten.

    parts: (cluster, top, bottom), or (cluster, top, bottom, other's top, other's bottom). The ratio is linearised
    round its value (the delta method), so a cluster weighs as much as it has rounds. The range comes from the
    chi-square interval of the variance.
    """
    from scipy.special import chdtri

    clusters: list[Hashable] = []
    addends: list[tuple[float, ...]] = []
    for cluster, *own in parts:
        clusters.append(cluster)
        addends.append(tuple(own))
    sums = sums_by_cluster(addends, clusters)
    count = len(sums)
    if count < LEAST_PILOT or not (sums.sum(0) > 0).all():
        return None
    relative = sums / sums.mean(0)  # a relative change of the ratio is the change of the top less that of the bottom
    signs = np.array([1.0, -1.0, -1.0, 1.0])[: sums.shape[1]]
    spread = float((relative @ signs).std(ddof=1))
    spreads = [
        spread * math.sqrt((count - 1) / float(chdtri(count - 1, tail))) for tail in ((1 - level) / 2, (1 + level) / 2)
    ]
    needed, low, high = (_needed(each / effect, power, level) for each in (spread, *spreads))
    return Power(spread, needed, low, high, count)


def _needed(ratio: float, power: float, level: float) -> int:
    """Least n at which an interval excludes an effect `ratio` times smaller than the spread, with the given power."""
    from scipy.special import ndtri, stdtrit

    z = float(ndtri((1 + level) / 2) + ndtri(power))
    count = max(2, math.ceil((z * ratio) ** 2))
    while True:
        df = min(count - 1, (count + 1) / 2)  # what the intervals of normal contributions have on average
        if float(stdtrit(df, (1 + level) / 2) + stdtrit(df, power)) * ratio <= math.sqrt(count):
            return count
        count += 1


def too_few(clusters: int) -> str:
    """Why nothing is said of power."""
    return f"{clusters} independent rollouts are too few to tell how many it takes to see 5 % ({LEAST_PILOT} at least)"


def power_lines(rows: Sequence[TurnRow]) -> Iterator[str]:
    """For each kind of comparison the rollouts that a 5 % difference takes, for the pair that needs most."""
    kept = steadied(counted(rows))
    clusters = len({cluster_of(row) for row in kept})
    if clusters < LEAST_PILOT:
        yield too_few(clusters)
        return
    most: dict[str, tuple[Power, str]] = {}
    for kind, who, need in _needs(kept):
        if need is not None and (kind not in most or need.needed > most[kind][0].needed):
            most[kind] = need, who
    for kind, (need, who) in most.items():
        yield f"to see 5 % of {kind} with 80 % power takes {need.words}; there are {need.clusters} (of all, {who} most)"


def _needs(kept: Sequence[TurnRow]) -> Iterator[tuple[str, str, Power | None]]:
    """(kind of comparison, who is compared, what it takes)."""
    drafters = [(name, own) for name, own in by_drafter(kept).items() if name != BASELINE]
    for name, own in drafters:
        yield "τ raw, a drafter against a fixed value", name, clusters_needed(tau_parts(own, raw=True))
        parts = _paired_parts(kept, name, BASELINE, "s_per_token")
        yield "speed, a drafter against plain decoding", name, clusters_needed(parts)
    for (a, _), (b, _) in combinations(drafters, 2):
        kinds = " against ".join(sorted(map(_kind, (a, b)), key=_KINDS.index))
        yield f"speed, {kinds}", f"{a} / {b}", clusters_needed(_paired_parts(kept, a, b, "s_per_token"))


_KINDS = ("learned", "look-up", "other")


def _kind(drafter: str) -> str:
    """What kind of drafter it is, by its name; a third party's is "other"."""
    name = arm_of(drafter)[0].partition("=")[0]
    if name in ("ngram", "suffix"):
        return "look-up"
    return "learned" if name in DRAFTERS else "other"
