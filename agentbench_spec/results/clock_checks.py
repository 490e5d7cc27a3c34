"""What a run's clocks tell of themselves: how fast nothing reads, what a place in the order and hidden states cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from agentbench_spec.results.costs import paired, speedup
from agentbench_spec.results.intervals import Interval, cluster_of, jackknife_interval, speedup_intervals, spread_text
from agentbench_spec.results.metrics import AGAIN, by_drafter, counted, turn_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times that should be 1, and its interval; None: too few rollouts for one."""

    value: float
    interval: Interval | None

    @property
    def excludes_one(self) -> bool:
        """True if the interval says that it is not 1."""
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high


@dataclass(frozen=True, slots=True)
class TapsCost:
    """Part by which the shared prefill is longer for the hidden states that drafters take."""

    cost: float
    low: float
    """Ends of its 95 % interval."""
    high: float
    pairs: int
    """Prefills of one chunk with and without hidden states."""

    @property
    def text(self) -> str:
        """The part with its interval; said to be not told from noise if that holds zero."""
        found = f"{self.cost:+.1%} [{self.low:+.1%}, {self.high:+.1%}] over {self.pairs} pairs"
        return f"not told from noise, {found}" if self.low <= 0 <= self.high else found


def null_speedup(rows: Iterable[TurnRow]) -> Ratio | None:
    """Speed-up of a second plain drafter over the first; None if the run had none (`run --aa`)."""
    pairs = paired(rows, AGAIN)
    pooled = speedup(pairs).pooled
    return None if pooled is None else Ratio(pooled, speedup_intervals(pairs).pooled)


def place_effect(rows: Iterable[TurnRow]) -> Ratio | None:
    """Time of a step in the decoder that runs first in its turn over that of the same one elsewhere.

    From logarithms of steady seconds a round, less the mean of the turn and that of the drafter. None without a turn
    that two decoders took, or where none changed places.
    """
    steps = {
        (turn_of(row), row.drafter): (row, math.log(row.decode_s / row.rounds))
        for row in steadied(counted(rows))
        if row.order is not None and row.decode_s and row.rounds
    }
    for part in (0, 1, 0):  # twice by turn, for turns may lack a drafter
        means = _means((key[part], value) for key, (_, value) in steps.items())
        steps = {key: (row, value - means[key[part]]) for key, (row, value) in steps.items()}
    clusters: dict[object, list[tuple[bool, float]]] = defaultdict(list)
    for row, value in steps.values():
        clusters[cluster_of(row)].append((row.order == 0, value))
    whole = _first_over_others(list(clusters.values()))
    if whole is None or len({row.drafter for row, _ in steps.values() if row.order == 0}) < 2:
        return None
    return Ratio(whole, jackknife_interval(list(clusters.values()), _first_over_others))


def _means(values: Iterable[tuple[object, float]]) -> dict[object, float]:
    groups: dict[object, list[float]] = defaultdict(list)
    for key, value in values:
        groups[key].append(value)
    return {key: fmean(own) for key, own in groups.items()}


def _first_over_others(clusters: Sequence[Sequence[tuple[bool, float]]]) -> float | None:
    first = [value for own in clusters for is_first, value in own if is_first]
    others = [value for own in clusters for is_first, value in own if not is_first]
    return math.exp(fmean(first) - fmean(others)) if first and others else None


def clock_lines(rows: Sequence[TurnRow]) -> list[str]:
    """The checks in words; empty where a run has nothing to check, as a server's."""
    if all(row.order is None for row in rows):
        return []
    null, place = null_speedup(rows), place_effect(rows)
    lines = []
    if null is not None:
        lines.append(f"plain decoding against itself reads {_text(null)}: what nothing at all looks like in this run")
    measured = "not enough turns to tell" if place is None else f"its step takes {_text(place)} times as long"
    lines.append(f"running first in a turn: {measured}")
    return lines


def clock_warnings(rows: Sequence[TurnRow]) -> list[str]:
    """Checks that failed, and rows whose clocks weigh nothing."""
    null = null_speedup(rows)
    found = []
    if null is not None and null.excludes_one:
        found.append(f"plain decoding against itself reads {_text(null)}, not 1: the speed-ups may be off by as much")
    return found + list(_moved(rows))


def _moved(rows: Sequence[TurnRow]) -> Iterator[str]:
    for drafter in by_drafter(rows):
        pairs = paired(rows, drafter)
        found = speedup(pairs)
        if _notable(found.pooled, found.as_timed):
            yield (
                f"{drafter}: rounds far above their like took much of the time; the plain ratio of sums, with them, is "
                f"{found.as_timed:.2f}, the speed-up without {found.pooled:.2f}"
            )
        if any(row.decode_s and not (row.rounds or row.chunk_gaps_s) for pair in pairs for row in pair):
            yield f"{drafter}: its speed-up is doubtful: of turns without rounds or chunks, a stall cannot be told"
        if max((row.concurrency or 1 for pair in pairs for row in pair), default=1) > 1:
            alone = speedup([(replace(base, concurrency=1), replace(row, concurrency=1)) for base, row in pairs])
            if _notable(alone.pooled, found.pooled):
                yield (
                    f"{drafter}: its speed-up, {found.pooled:.2f}, is doubtful: rounds far above their like took much "
                    "of the time, by other requests or by a stall, which cannot be told apart; without them it would "
                    f"be {alone.pooled:.2f}"
                )


_NOTABLE = math.log(1.05)


def _notable(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(math.log(one / other)) > _NOTABLE


def _text(ratio: Ratio) -> str:
    spread = spread_text(ratio.interval, 3) if ratio.interval else " (too few rollouts for an interval)"
    return f"{ratio.value:.3f}{spread}"
