"""How every figure of every drafter moved between two runs, in all contexts and in each stretch of them.

A pooled figure can stand still while one stretch of contexts collapses; therefore every stretch is judged by itself.
That makes many verdicts, so what has noise is tested over all of them together: were the new run no different, the two
runs' measurements of any one rollout could be exchanged. Over all ways to do so, the largest change of any cell shows
what chance alone makes of the largest; a cell has fallen if it lies beyond (Westfall and Young's step-down test). Cells
overlap and share their baseline, which this takes in and a correction such as Holm's does not. Chosen by simulation:
docs/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentbench_spec.results.intervals import (
    FEW_CLUSTERS,
    Array,
    Interval,
    cluster_of,
    clustered_interval,
    ratio_of_sums,
)
from agentbench_spec.results.metrics import BASELINE, counted, turn_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied

SIGNIFICANT = 0.05
_EXACT_CLUSTERS, _EXCHANGES, _SEED = 12, 4000, 0
_ENOUGH = 8
_LEAST_NOISE = 1e-3
"""Clocks are never better than this, relative to a turn."""

Figure = Literal["tau", "speedup"]
Judgement = Literal["fell", "rose", "same", "unsure"]
WHOLE = "all contexts"


@dataclass(frozen=True, slots=True)
class Change:
    """How one figure of one drafter moved in one stretch of contexts."""

    workload: str
    drafter: str
    bucket: str
    figure: Figure
    old: float
    new: float
    ratio: float
    """New over old; below 1 is worse."""
    interval: Interval | None
    """Of the ratio, by itself; 90 %."""
    p: float | None
    """One-sided, of a change as large anywhere, all noisy figures tested together; None: not tested."""
    turns: int
    judgement: Judgement


class Name(NamedTuple):
    """What a cell is of."""

    workload: str
    drafter: str
    bucket: str
    figure: Figure


Key = tuple[tuple[str, str, int], str]
"""Turn and drafter."""


def key_of(row: TurnRow) -> Key:
    """The key that pairs two runs' rows."""
    return turn_of(row), row.drafter


def by_turn(rows: Sequence[TurnRow]) -> dict[Key, TurnRow]:
    """The rows that count, by turn and drafter."""
    return {key_of(row): row for row in steadied(counted(rows))}


def changes_between(
    before: Mapping[Key, TurnRow], after: Mapping[Key, TurnRow], tolerance: float, *, timed: bool
) -> list[Change]:
    """Every change, judged. timed: False if clocks may not be."""
    named = dict(cells(before, after))
    exact = {name for name in named if name.figure == "tau" and _without_noise(before, name)}
    noisy = [name for name in named if name not in exact and (timed or name.figure == "tau")]
    p = dict(zip(noisy, family_p([named[name] for name in noisy]), strict=True))
    return [_change(name, cell, p.get(name), tolerance, exact=name in exact) for name, cell in named.items()]


def cells(before: Mapping[Key, TurnRow], after: Mapping[Key, TurnRow]) -> Iterator[tuple[Name, Cell]]:
    """Every figure of every drafter in every stretch of contexts, over the turns that both runs have."""
    groups: dict[tuple[str, str, str], list[Key]] = {}
    for key in before:
        if key in after and key[1] != BASELINE:
            for bucket in (WHOLE, bucket_of(before[key].context_tokens)):
                groups.setdefault((before[key].workload, key[1], bucket), []).append(key)
    figures: dict[Figure, Callable[[Mapping[Key, TurnRow], Key], tuple[float, ...] | None]] = {
        "tau": _tau_parts,
        "speedup": _speedup_parts,
    }
    for group, keys in sorted(groups.items(), key=lambda item: (*item[0][:2], bucket_order(item[0][2]))):
        for figure, parts_of in figures.items():
            pairs = [(cluster_of(before[key]), parts_of(before, key), parts_of(after, key)) for key in keys]
            found = [(cluster, was, now) for cluster, was, now in pairs if was and now]
            if found:
                yield Name(*group, figure), _cell(found, kind=(*group[:2], figure), whole=group[2] == WHOLE)


def _cell(found: Sequence[tuple[Hashable, Sequence[float], Sequence[float]]], *, kind: Hashable, whole: bool) -> Cell:
    old, new = (np.array([turn[side] for turn in found], dtype=np.float64) for side in (1, 2))
    return Cell([turn[0] for turn in found], old, new, kind, whole)


def _without_noise(rows: Mapping[Key, TurnRow], name: Name) -> bool:
    """True of τ where the target's choice is not drawn."""
    own = (row for row in rows.values() if (row.workload, row.drafter) == name[:2])
    return all(row.temperature == 0 or row.decode_mode == "forced" for row in own)


def _change(name: Name, cell: Cell, p: float | None, tolerance: float, *, exact: bool) -> Change:
    (old, new), interval = cell.values, cell.interval
    judgement = judge(new / old, interval, p, tolerance, exact=exact)
    return Change(*name, old, new, new / old, interval, p, len(cell.clusters), judgement)


def judge(ratio: float, interval: Interval | None, p: float | None, tolerance: float, *, exact: bool) -> Judgement:
    """What a change of a figure is.

    exact: the figure has no noise, as greedy τ on the same turns; then the ratio alone decides. Else the change must
    stand out among all, by `p`, and its own interval must lie on one side of 1; without a p nothing is sure.
    """
    small = abs(ratio - 1) <= tolerance
    if math.isclose(ratio, 1, rel_tol=1e-9) or (small and (exact or p is not None)):
        return "same"
    if not exact and (p is None or p >= SIGNIFICANT or interval is None or interval.low <= 1 <= interval.high):
        return "unsure"
    return "fell" if ratio < 1 else "rose"


def _tau_parts(rows: Mapping[Key, TurnRow], key: Key) -> tuple[float, ...] | None:
    row = rows[key]
    return (float(row.emitted), float(row.rounds)) if row.rounds and row.emitted else None


def _speedup_parts(rows: Mapping[Key, TurnRow], key: Key) -> tuple[float, ...] | None:
    plain, row = rows.get((key[0], BASELINE)), rows[key]
    if plain is None or not (plain.decode_s and plain.emitted and row.decode_s and row.emitted):
        return None
    return plain.decode_s, float(plain.emitted), row.decode_s, float(row.emitted)


def bucket_of(context_tokens: int | None) -> str:
    """The octave of contexts a turn is in: "under 1K", "1K-2K", "2K-4K", ...; "unknown" without a length."""
    if context_tokens is None:
        return "unknown"
    if context_tokens < 1024:
        return "under 1K"
    low = 1 << ((context_tokens // 1024).bit_length() - 1)
    return f"{low}K-{2 * low}K"


def bucket_order(bucket: str) -> int:
    """Sorts what `bucket_of` names: all contexts first, short before long, unknown last."""
    known = {WHOLE: -1, "under 1K": 0, "unknown": 1 << 30}
    return known[bucket] if bucket in known else int(bucket.partition("K")[0])


@dataclass(frozen=True, slots=True)
class Cell:
    """What each shared turn adds to one figure, in the old run and in the new one."""

    clusters: Sequence[Hashable]
    """[n] the rollout of each turn."""
    old: Array
    """[n, m] addends of the figure: m is 2 for a ratio of sums, 4 for a ratio of two."""
    new: Array
    kind: Hashable
    """Turns of one kind (one figure of one drafter) are equally noisy."""
    whole: bool
    """True if the cell holds what other cells of its kind hold, too."""

    @property
    def values(self) -> tuple[float, float]:
        """The figure in the old run and in the new one."""
        old, new = (float(ratio_of_sums(part.sum(0, keepdims=True))[0]) for part in (self.old, self.new))
        return old, new

    @property
    def interval(self) -> Interval | None:
        """Of new over old, whole rollouts left out of both at once; 90 %, since a fall is tested to one side."""
        width = self.old.shape[1]
        return clustered_interval(
            np.hstack([self.old, self.new]),
            self.clusters,
            lambda sums: ratio_of_sums(sums[:, width:]) / ratio_of_sums(sums[:, :width]),
            level=1 - 2 * SIGNIFICANT,
        )


def family_p(cells: Sequence[Cell]) -> list[float | None]:
    """For each cell, p of a change in its direction at least as large, all cells tested together.

    None for a cell of fewer than five clusters. With n clusters p cannot go below 1 / 2^n.
    """
    tested = [i for i, cell in enumerate(cells) if len(set(cell.clusters)) >= FEW_CLUSTERS]
    found: list[float | None] = [None] * len(cells)
    if tested:
        changes = _standardised([cells[i] for i in tested])
        falls, rises = _step_down(-changes), _step_down(changes)
        for place, i in enumerate(tested):
            found[i] = float((falls if changes[0, place] < 0 else rises)[place])
    return found


def _standardised(cells: Sequence[Cell]) -> Array:
    """Log changes [exchanges, cells] over what noise makes of them; the first line is what was measured."""
    names = {name: i for i, name in enumerate(dict.fromkeys(name for cell in cells for name in cell.clusters))}
    exchanged = _exchanges(len(names))
    noise = _noise(cells)
    columns = []
    for cell in cells:
        old, new = (np.zeros((len(names), cell.old.shape[1])) for _ in range(2))
        index = [names[name] for name in cell.clusters]
        np.add.at(old, index, cell.old)
        np.add.at(new, index, cell.new)
        before, after = exchanged @ new + (1 - exchanged) @ old, exchanged @ old + (1 - exchanged) @ new
        weights = cell.old[:, -2] / cell.old[:, -2].sum() + cell.new[:, -2] / cell.new[:, -2].sum()
        scale = noise[cell.kind] * np.sqrt((weights**2).sum()) / 2
        columns.append(np.log(ratio_of_sums(after) / ratio_of_sums(before)) / scale)
    return np.stack(columns, axis=1)


def _exchanges(clusters: int) -> NDArray[np.int64]:
    """Which clusters are exchanged [exchanges, clusters], 0 or 1; none of them in the first line."""
    if clusters <= _EXACT_CLUSTERS:
        return (np.arange(2**clusters)[:, None] >> np.arange(clusters)) & 1
    drawn = np.random.default_rng(_SEED).integers(2, size=(_EXCHANGES, clusters))
    return np.concatenate([np.zeros((1, clusters), dtype=drawn.dtype), drawn])


def _noise(cells: Sequence[Cell]) -> dict[Hashable, float]:
    """By kind, the typical size of one turn's log change beside that of its rollout's other turns in the cell.

    A change that all turns share is not in it, and it is the same however rollouts are exchanged.
    """
    apart: dict[Hashable, list[float]] = {cell.kind: [] for cell in cells}
    sizes: list[float] = []
    for cell in cells:
        changes = np.log(ratio_of_sums(cell.new) / ratio_of_sums(cell.old))
        sizes += np.abs(changes).tolist()
        by_cluster: dict[Hashable, list[float]] = {}
        for name, change in zip(cell.clusters, changes.tolist(), strict=True):
            by_cluster.setdefault(name, []).append(change)
        for own in by_cluster.values() if not cell.whole else ():
            if (count := len(own)) > 1:
                apart[cell.kind] += [abs(change - fmean(own)) * math.sqrt(count / (count - 1)) for change in own]
    usual = median(sizes)
    return {kind: max(_LEAST_NOISE, median(own) if len(own) >= _ENOUGH else usual) for kind, own in apart.items()}


def _step_down(sizes: Array) -> Array:
    """Adjusted p of each cell from its sizes [exchanges, cells], the first line measured: largest cell first."""
    order = np.argsort(-sizes[0])
    found = np.empty(len(order))
    least = 0.0
    for rank, place in enumerate(order):
        largest = sizes[:, order[rank:]].max(axis=1)
        least = max(least, float((largest >= sizes[0, place] - 1e-9).mean()))
        found[place] = least
    return found
