"""Jackknife t intervals clustered by rollout: turns of one rollout share a context and are not independent.

Rollouts that name one `scenario` in their labels (BFCL's four categories do) tell one story and form one cluster.
Every figure with an interval is positive; all arithmetic is on its logarithm. Chosen by simulation: docs/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from agentbench_spec.results.costs import Pair, Parts, decode_parts, e2e_parts, steady_pairs
from agentbench_spec.results.metrics import rollout_of
from agentbench_spec.results.rows import TurnRow

Array = NDArray[np.float64]
_Cluster = TypeVar("_Cluster")

LEVEL = 0.95
FEW_CLUSTERS = 5
"""Below this many clusters an interval rests on the assumption that they are alike, and compare gives no verdict."""
_MOST_FITS = 20
"""Clusters up to which what is like a stalled round is estimated anew without each; of more, one hardly changes it."""
_ROUNDING = 1e-11
"""A standard error of a logarithm below this is rounding, and none."""
_ALIKE = 1.5
"""Alike clusters for each one that the standard error rests on: of three it always rests on two."""
_WIDEST = 100.0
"""An interval of more than a factor e^100 either way is none."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A t interval, symmetric on the logarithm of the value."""

    low: float
    high: float
    level: float
    clusters: int
    """Rollouts, or scenarios that several rollouts share, left out one at a time."""
    df: float
    """Degrees of freedom: the effective number of clusters, by size or by spread, less one."""
    note: str | None = None
    """Why the interval should be read with care; None if nothing is known against it."""

    def p_of(self, value: float = 1.0) -> float:
        """Two-sided p of "the truth is `value`": below 1 - level exactly where `value` lies outside the interval."""
        from scipy.special import stdtr

        if not self.error:
            return float(math.isclose(self.low, value, rel_tol=_ROUNDING))
        return float(2 * stdtr(self.df, -abs(self.centre - math.log(value)) / self.error))

    @property
    def centre(self) -> float:
        """Logarithm of the estimate."""
        return (math.log(self.low) + math.log(self.high)) / 2

    @property
    def error(self) -> float:
        """Standard error of that logarithm."""
        return (math.log(self.high) - math.log(self.low)) / 2 / _factor(self.df, self.level)


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    """Low and high; both None where there is no interval."""
    return (interval.low, interval.high) if interval else (None, None)


def spread_text(interval: Interval | None, digits: int = 2) -> str:
    """ " [1.19, 1.73]" to stand behind the value, or nothing; ends too far off to mean anything lose their digits."""
    if interval is None:
        return ""
    low, high = (f"{end:.0e}" if end >= 1e6 else f"{end:.{digits}f}" for end in (interval.low, interval.high))
    return f" [{low}, {high}]"


def jackknife_interval(
    clusters: Sequence[_Cluster],
    estimate: Callable[[Sequence[_Cluster]], float | None],
    *,
    weights: Sequence[float] | None = None,
    level: float = LEVEL,
) -> Interval | None:
    """Interval of any positive estimate over independent clusters, from the estimates without one of them.

    clusters: what each cluster contributes, in any form that `estimate` takes a list of; weights: how much each weighs
    in the estimate (None: all the same). None with fewer than two clusters, or if an estimate is not positive.
    """
    if len(clusters) < 2:
        return None
    without = [estimate([*clusters[:i], *clusters[i + 1 :]]) for i in range(len(clusters))]
    values = [math.nan if value is None else value for value in (estimate(clusters), *without)]
    shares = np.ones(len(clusters)) if weights is None else np.asarray(weights, dtype=np.float64)
    return _interval(values[0], np.asarray(values[1:]), shares, level)


def clustered_interval(
    parts: Array | Sequence[Sequence[float]],
    clusters: Sequence[Hashable],
    statistic: Callable[[Array], Array],
    *,
    level: float = LEVEL,
) -> Interval | None:
    """Interval of a positive statistic of sums; None with fewer than two clusters, or where it is not defined.

    parts [n, m]: the addends of each row; clusters [n]: the rollout of each row; statistic: sums [j, m] -> values [j].
    Numerator and denominator lose the same cluster, so a paired ratio stays paired.
    """
    sums = sums_by_cluster(parts, clusters)
    if len(sums) < 2:
        return None
    total = sums.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole, *without = statistic(np.vstack([total, total - sums]))
        shares = np.nanmean(sums / total, axis=1)
    return _interval(float(whole), np.asarray(without), shares, level)


def sums_by_cluster(parts: Array | Sequence[Sequence[float]], clusters: Sequence[Hashable]) -> Array:
    """Sums [clusters, m] of the addends [n, m]; a cluster that adds nothing at all is none."""
    addends = np.asarray(parts, dtype=np.float64)
    index = {cluster: i for i, cluster in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros((len(index), addends.shape[1] if addends.ndim == 2 else 0))
    if len(index):
        np.add.at(sums, [index[cluster] for cluster in clusters], addends)
    return sums[sums.any(axis=1)]


def _interval(whole: float, without: Array, weights: Array, level: float) -> Interval | None:
    """From the estimate, the estimates without one cluster, and the clusters' weights."""
    count = len(without)
    if not (np.isfinite(without) & (without > 0)).all() or not (math.isfinite(whole) and whole > 0):
        return None
    logs = np.log(without)
    squares = (logs - logs.mean()) ** 2
    error = math.sqrt((count - 1) / count * float(squares.sum()))
    effective = _effective(weights)
    if error > _ROUNDING:
        effective = min(effective, _ALIKE * max(2.0, _effective(squares)))
    df = min(max(effective - 1, 1.0), count - 1.0)  # one degree goes to the mean
    half = _factor(df, level) * error if error > _ROUNDING else 0.0
    if half > _WIDEST:
        return None
    few = f"only {count} independent rollouts: its ends lie {_factor(count - 1, level):.1f} standard errors off or more"
    note = few if count < FEW_CLUSTERS else None
    return Interval(whole * math.exp(-half), whole * math.exp(half), level, count, df, note)


def _effective(weights: Array) -> float:
    """Kish's number of clusters of one weight that are worth these."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def _factor(df: float, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + level) / 2))


def ratio_interval(parts: Iterable[tuple[Hashable, float, float]], *, level: float = LEVEL) -> Interval | None:
    """Interval of sum(numerator) / sum(denominator), from (cluster, numerator, denominator) triples."""
    used = [part for part in parts if part[2]]
    return clustered_interval(
        [part[1:] for part in used], [part[0] for part in used], lambda sums: sums[:, 0] / sums[:, 1], level=level
    )


def combined(value: float, errors: Sequence[tuple[float, float]], clusters: int, *, level: float = LEVEL) -> Interval:
    """Interval of a value whose logarithm has several independent errors, Welch's way.

    errors: (standard error of the logarithm, degrees of freedom) of each; clusters: what the weakest of them has.
    """
    variance = sum(error**2 for error, _ in errors)
    pooled = sum(error**4 / df for error, df in errors)
    df = variance**2 / pooled if pooled else min(df for _, df in errors)
    half = _factor(df, level) * math.sqrt(variance)
    return Interval(value * math.exp(-half), value * math.exp(half), level, clusters, df)


def cluster_of(row: TurnRow) -> Hashable:
    """What is left out as one: the row's scenario where its labels name one, else its rollout."""
    scenario = row.labels.get("scenario")
    return (row.workload, row.rollout) if scenario is None else (row.workload, "scenario", scenario)


def tau_parts(rows: Iterable[TurnRow], *, raw: bool = False) -> list[tuple[Hashable, float, float]]:
    """(cluster, tokens, rounds) of each turn that has a round; raw: unclipped tokens."""
    return [(cluster_of(row), tokens, rounds) for row, tokens, rounds in _tau_turns(rows, raw=raw)]


def _tau_turns(rows: Iterable[TurnRow], *, raw: bool) -> list[tuple[TurnRow, float, float]]:
    name = "emitted_raw" if raw else "emitted"
    return [
        (row, float(tokens), float(row.rounds))
        for row in rows
        if row.rounds and (tokens := getattr(row, name)) is not None
    ]


def tau_interval(
    rows: Iterable[TurnRow], *, raw: bool = False, macro: bool = False, level: float = LEVEL
) -> Interval | None:
    """Interval of τ; raw: of raw τ; macro: of the mean over rollouts instead of the pooled value."""
    if macro:
        turns = _tau_turns(rows, raw=raw)
        clusters, addends = _macro_addends([(row, (tokens, rounds)) for row, tokens, rounds in turns])
        return clustered_interval(addends, clusters, ratio_of_sums, level=level)
    return ratio_interval(tau_parts(rows, raw=raw), level=level)


@dataclass(frozen=True, slots=True)
class SpeedupIntervals:
    """The interval of each figure of a `Speedup` that has one."""

    pooled: Interval | None
    macro: Interval | None
    e2e: Interval | None


def speedup_intervals(pairs: Sequence[Pair], *, level: float = LEVEL) -> SpeedupIntervals:
    """Intervals of the speed-up over paired turns; pairs: as the clock timed them.

    What the like of a stalled round takes is an estimate, too: it is made anew without each cluster.
    """
    steady = steady_pairs(pairs)
    clusters = list(dict.fromkeys(cluster_of(row) for _, row in pairs))
    stalled = any(a is not b for pair, own in zip(pairs, steady, strict=True) for a, b in zip(pair, own, strict=True))
    fits = {
        name: steady_pairs([pair for pair in pairs if cluster_of(pair[1]) != name])
        for name in (clusters if stalled and len(clusters) <= _MOST_FITS else ())
    }
    return SpeedupIntervals(
        _over_fits(steady, fits, decode_parts, level),
        _over_fits(steady, fits, decode_parts, level, macro=True),
        _over_fits(steady, fits, e2e_parts, level),
    )


def _over_fits(
    steady: Sequence[Pair],
    fits: Mapping[Hashable, Sequence[Pair]],
    parts_of: Callable[[TurnRow, TurnRow], Parts | None],
    level: float,
    *,
    macro: bool = False,
) -> Interval | None:
    """fits: the pairs without each cluster, steady by themselves; empty: as steady as all together."""

    def addends_of(pairs: Sequence[Pair]) -> _Addends:
        timed = [(row, parts) for base, row in pairs if (parts := parts_of(base, row))]
        return _macro_addends(timed) if macro else ([cluster_of(row) for row, _ in timed], [own for _, own in timed])

    clusters, addends = addends_of(steady)
    sums = sums_by_cluster(addends, clusters)
    if not fits or len(sums) < 2:
        return clustered_interval(addends, clusters, ratio_of_sums, level=level)
    ratios = [ratio_of_sums(np.sum(addends_of(fits[name])[1], 0, keepdims=True)) for name in dict.fromkeys(clusters)]
    whole = float(ratio_of_sums(sums.sum(0, keepdims=True))[0])
    return _interval(whole, np.concatenate(ratios), (sums / sums.sum(0)).mean(axis=1), level)


def share_interval(
    rows: Iterable[TurnRow], parts_of: Callable[[TurnRow], tuple[float, float] | None], *, level: float = LEVEL
) -> Interval | None:
    """Interval of a share of time, from the part and the whole of each turn that has them."""
    parts = [(cluster_of(row), *own) for row in rows if (own := parts_of(row))]
    return ratio_interval(parts, level=level)


def ratio_of_sums(sums: Array) -> Array:
    """Sums [j, 2] or [j, 4] -> values [j]: top over bottom, or (top over bottom) over (other's top over its bottom)."""
    values: Array = sums[:, 0] / sums[:, 1]
    return values if sums.shape[1] == 2 else values / (sums[:, 2] / sums[:, 3])


_Addends = tuple[Sequence[Hashable], Sequence[Sequence[float]]]
"""Clusters [n], and what each adds to a ratio of sums [n, m]; a cluster may stand there several times."""


def _macro_addends(turns: Sequence[tuple[TurnRow, Sequence[float]]]) -> _Addends:
    """Each rollout's ratio of sums, whose mean over rollouts is the figure; a cluster may hold several rollouts."""
    cluster = {rollout_of(row): cluster_of(row) for row, _ in turns}
    sums = sums_by_cluster([parts for _, parts in turns], [rollout_of(row) for row, _ in turns])
    return list(cluster.values()), [(value, 1.0) for value in (ratio_of_sums(sums).tolist() if len(sums) else ())]
