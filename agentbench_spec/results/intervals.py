"""Bootstrap intervals clustered by rollout: turns of one rollout share a context and are not independent.

Rollouts that name one `scenario` in their labels (BFCL's four categories do) tell one story and form one cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentbench_spec.results.costs import Pair, speedup_parts
from agentbench_spec.results.metrics import counted, turn_of
from agentbench_spec.results.rows import TurnRow

Array = NDArray[np.float64]

FEW_CLUSTERS = 10
"""Below this many rollouts a percentile interval is known to be too narrow, and the interval says so."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile bootstrap interval."""

    low: float
    high: float
    level: float
    clusters: int
    """Rollouts, or scenarios that several rollouts share, resampled."""
    resamples: int
    note: str | None = None
    """Why the interval should be read with care; None if nothing is known against it."""


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    """Low and high; both None where there is no interval."""
    return (interval.low, interval.high) if interval else (None, None)


def clustered_interval(
    parts: Array | Sequence[Sequence[float]],
    clusters: Sequence[Hashable],
    statistic: Callable[[Array], Array],
    *,
    seed: int,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval | None:
    """Interval of a statistic of sums, whole clusters resampled with replacement; None with fewer than two clusters.

    parts [n, m]: the addends of each row; clusters [n]: the rollout of each row; statistic: sums [resamples, m] ->
    values [resamples]. Numerator and denominator come from the same resample, so a paired ratio stays paired.
    """
    sums = _sums_by_cluster(np.asarray(parts, dtype=np.float64), clusters)
    count = len(sums)
    if count < 2:
        return None
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(draws @ sums)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, count, resamples, _note(count, resamples - len(values)))


def ratio_interval(
    parts: Iterable[tuple[Hashable, float, float]], *, seed: int, resamples: int = 2000, level: float = 0.95
) -> Interval | None:
    """Interval of sum(numerator) / sum(denominator), from (rollout, numerator, denominator) triples."""
    used = [part for part in parts if part[2]]
    return clustered_interval(
        [part[1:] for part in used],
        [part[0] for part in used],
        lambda sums: sums[:, 0] / sums[:, 1],
        seed=seed,
        resamples=resamples,
        level=level,
    )


def cluster_of(row: TurnRow) -> Hashable:
    """What is resampled as one: the row's scenario where its labels name one, else its rollout."""
    scenario = row.labels.get("scenario")
    return (row.workload, row.rollout) if scenario is None else (row.workload, "scenario", scenario)


def tau_parts(rows: Iterable[TurnRow], *, raw: bool = False) -> list[tuple[Hashable, float, float]]:
    """(cluster, tokens, rounds) of each turn that has a round; raw: unclipped tokens."""
    name = "emitted_raw" if raw else "emitted"
    return [
        (cluster_of(row), float(tokens), float(row.rounds))
        for row in rows
        if row.rounds and (tokens := getattr(row, name)) is not None
    ]


def tau_interval(rows: Iterable[TurnRow], *, seed: int, raw: bool = False, **options: Any) -> Interval | None:
    """Interval of pooled τ, or of pooled raw τ. Options: resamples, level."""
    return ratio_interval(tau_parts(rows, raw=raw), seed=seed, **options)


def speedup_interval(pairs: Iterable[Pair], *, seed: int, **options: Any) -> Interval | None:
    """Interval of the pooled decode speed-up over paired turns. Options: resamples, level."""
    timed = [(cluster_of(pair[1]), parts) for pair in pairs for _, parts in speedup_parts([pair])]
    return clustered_interval(
        [parts for _, parts in timed],
        [cluster for cluster, _ in timed],
        lambda sums: (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3]),
        seed=seed,
        **options,
    )


def _sums_by_cluster(parts: Array, clusters: Sequence[Hashable]) -> Array:
    index = {cluster: i for i, cluster in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros((len(index), parts.shape[1] if parts.ndim == 2 else 0))
    if len(index):
        np.add.at(sums, [index[cluster] for cluster in clusters], parts)
    return sums


def _note(clusters: int, undefined: int) -> str | None:
    notes = [f"only {clusters} rollouts: likely too narrow"] if clusters < FEW_CLUSTERS else []
    notes += [f"{undefined} resamples undefined"] if undefined else []
    return "; ".join(notes) or None


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
    """Of the ratio, whole clusters resampled together for both."""
    p: float | None
    """Two-sided permutation test: within each cluster the two drafters could be exchanged. None: one cluster."""
    turns: int
    needed: int | None = None
    """Clusters at which a difference of 5 % would be seen with 80 % power by one test alone; None: unknown.

    At least 6: with fewer the permutation test cannot go below p = 0.05.
    """
    p_holm: float | None = None
    """`p` corrected for all tests of one table; see `with_holm`."""


def paired_difference(
    rows: Iterable[TurnRow], drafter: str, other: str, measure: Measure, *, seed: int, resamples: int = 2000
) -> Difference:
    """Compare two drafters on the same turns; turns that only one of them has, or without a round, weigh nothing."""
    kept = counted(rows)
    others = {turn_of(row): row for row in kept if row.drafter == other}
    pairs = [(row, others[turn_of(row)]) for row in kept if row.drafter == drafter and turn_of(row) in others]
    found = [
        (cluster_of(a), (*own, *their))
        for a, b in pairs
        if (own := _ratio_parts(a, measure)) and (their := _ratio_parts(b, measure))
    ]
    clusters, parts = [c for c, _ in found], [p for _, p in found]
    if not parts:
        return Difference(drafter, other, measure, None, None, None, 0)
    sums = _sums_by_cluster(np.asarray(parts), clusters)
    need = clusters_needed((cluster, *own) for cluster, own in found)
    return Difference(
        drafter,
        other,
        measure,
        float(_ratio_of_ratios(sums.sum(0, keepdims=True))[0]),
        clustered_interval(parts, clusters, _ratio_of_ratios, seed=seed, resamples=resamples),
        exchange_p(sums, seed=seed),
        len(parts),
        max(need.needed, _LEAST_CLUSTERS) if need else None,
    )


def _ratio_parts(row: TurnRow, measure: Measure) -> tuple[float, float] | None:
    if measure == "s_per_token":
        return (row.decode_s, float(row.emitted)) if row.decode_s and row.emitted else None
    tokens = row.emitted_raw if measure == "tau_raw" else row.emitted
    return (float(tokens), float(row.rounds)) if row.rounds and tokens is not None else None


def _ratio_of_ratios(sums: Array) -> Array:
    return (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])


_EXACT_CLUSTERS, _EXCHANGES, _LEAST_CLUSTERS = 12, 4000, 6


def exchange_p(sums: Array, *, seed: int) -> float | None:
    """p of "the two sides are alike" from per-cluster sums [n, 4] (own top, own bottom, other's top, other's bottom).

    Each cluster's sides are exchanged or not: all 2^n ways for up to 12 clusters, else 4,000 drawn ones. None for one
    cluster, which can show nothing. With n clusters p cannot go below 2 / 2^n.
    """
    count = len(sums)
    if count < 2:
        return None
    swapped = sums[:, [2, 3, 0, 1]]
    if count <= _EXACT_CLUSTERS:
        flips = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    else:
        drawn = np.random.default_rng(seed).integers(2, size=(_EXCHANGES, count))
        flips = np.concatenate([np.zeros((1, count), dtype=drawn.dtype), drawn])
    mixed = flips @ swapped + (1 - flips) @ sums
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.abs(np.log(_ratio_of_ratios(mixed)))
    return float((sizes >= sizes[0] - 1e-12).mean())


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


@dataclass(frozen=True, slots=True)
class Power:
    """How many clusters a difference takes to be seen."""

    spread: float
    """Standard deviation of one cluster's contribution, relative to the value."""
    needed: int
    """Clusters at which a two-sided test sees the effect with the given power."""
    clusters: int
    """Clusters there are."""


def clusters_needed(
    parts: Iterable[tuple[Hashable, float, float]] | Iterable[tuple[Hashable, float, float, float, float]],
    *,
    effect: float = 0.05,
    power: float = 0.8,
    level: float = 0.95,
) -> Power | None:
    """Clusters it takes to see a relative `effect` in a ratio, or in a ratio of two paired ratios; None below two.

    parts: (cluster, top, bottom), or (cluster, top, bottom, other's top, other's bottom). The ratio is linearised
    round its value (the delta method), so a cluster weighs as much as it has rounds.
    """
    used = list(parts)
    sums = _sums_by_cluster(np.asarray([part[1:] for part in used], dtype=np.float64), [part[0] for part in used])
    if len(sums) < 2 or not (sums.sum(0) > 0).all():
        return None
    means = sums.mean(0)
    relative = sums / means  # a relative change of the ratio is the change of the top less that of the bottom
    signs = np.array([1.0, -1.0, -1.0, 1.0])[: sums.shape[1]]
    spread = float((relative @ signs).std(ddof=1))
    normal = NormalDist()
    z = normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(power)
    return Power(spread, max(2, math.ceil((z * spread / effect) ** 2)), len(sums))
