"""Bootstrap intervals clustered by rollout: turns of one rollout share a context and are not independent."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentbench_spec.costs import Pair, speedup_parts
from agentbench_spec.metrics import rollout_of
from agentbench_spec.records import TurnRow

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
    """Rollouts resampled."""
    resamples: int
    note: str | None = None
    """Why the interval should be read with care; None if nothing is known against it."""


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


def tau_interval(rows: Iterable[TurnRow], *, seed: int, raw: bool = False, **options: Any) -> Interval | None:
    """Interval of pooled τ, or of pooled raw τ. Options: resamples, level."""
    name = "emitted_raw" if raw else "emitted"
    parts = [
        (rollout_of(row), float(tokens), float(row.rounds))
        for row in rows
        if row.rounds and (tokens := getattr(row, name)) is not None
    ]
    return ratio_interval(parts, seed=seed, **options)


def speedup_interval(pairs: Iterable[Pair], *, seed: int, **options: Any) -> Interval | None:
    """Interval of the pooled decode speed-up over paired turns. Options: resamples, level."""
    timed = speedup_parts(pairs)
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
