"""Speed-up and draft-KV maintenance in octaves of prompt length, and whether the longest differ from the shortest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from agentbench_spec.results.costs import decode_parts, draft_kv_parts, draft_kv_s, paired, steady_pairs
from agentbench_spec.results.intervals import Array, Interval, cluster_of, clustered_interval, ratio_of_sums
from agentbench_spec.results.metrics import PLAIN, by_drafter, counted, one_condition, rollout_of
from agentbench_spec.results.rows import TurnRow

Addends = tuple[float, ...]
"""(top, bottom), or (other's top, other's bottom, own top, own bottom): what a turn adds to a ratio of sums."""


@dataclass(frozen=True, slots=True)
class ContextFigure:
    """One figure of one drafter over the turns whose prompts have lengths of one octave."""

    drafter: str
    octave: int
    """i stands for 2**i up to 2**(i+1) - 1 tokens."""
    turns: int
    rollouts: int
    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure of one drafter in the shortest and in the longest octave that the run has of it."""

    first: ContextFigure
    last: ContextFigure
    ratio: float | None
    """Last over first; None where the first is zero."""
    interval: Interval | None
    """Of the ratio, each cluster left out of both octaves at once; None: too few clusters in one of them."""

    @property
    def told_apart(self) -> bool:
        """True if the interval of the ratio leaves out 1."""
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high


def octave_of(row: TurnRow) -> int | None:
    """Octave of the prompt length: i stands for 2**i up to 2**(i+1) - 1 tokens; None where it was not recorded."""
    return row.context_tokens.bit_length() - 1 if row.context_tokens else None


def tokens_text(tokens: float) -> str:
    """A token count, short: 512, 1K, 32K, 1M, in powers of 1024 where it is one."""
    whole = round(tokens)
    for size, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if whole >= size and whole % size == 0:
            return f"{whole // size}{letter}"
    return f"{whole:,}"


def octave_text(octave: int) -> str:
    """ "1K-2K", as short as an axis wants it."""
    return f"{tokens_text(2**octave)}-{tokens_text(2 ** (octave + 1))}"


_Turns = dict[tuple[str, int], list[tuple[TurnRow, Addends]]]


@dataclass(frozen=True, slots=True)
class ByContext:
    """A ratio of sums by drafter and octave; `figures` for the drawing, `trend` for the sentence."""

    turns: _Turns

    @property
    def figures(self) -> list[ContextFigure]:
        """One a drafter and octave, short contexts first."""
        return [_figure(*key, own) for key, own in sorted(self.turns.items(), key=lambda item: item[0][1])]

    def trend(self, drafter: str) -> Trend | None:
        """The drafter's shortest and longest octave; None with fewer than two."""
        octaves = sorted(octave for name, octave in self.turns if name == drafter)
        if len(octaves) < 2:
            return None
        first, last = (self.turns[drafter, octave] for octave in (octaves[0], octaves[-1]))
        found = _figure(drafter, octaves[0], first), _figure(drafter, octaves[-1], last)
        nothing = (0.0,) * len(first[0][1])
        parts = [(*nothing, *own) for _, own in first] + [(*own, *nothing) for _, own in last]
        clusters = [cluster_of(row) for row, _ in (*first, *last)]
        interval = clustered_interval(parts, clusters, _ratio_of_ratios)
        return Trend(*found, found[1].value / found[0].value if found[0].value else None, interval)


def _ratio_of_ratios(sums: Array) -> Array:
    half = sums.shape[1] // 2
    values: Array = ratio_of_sums(sums[:, :half]) / ratio_of_sums(sums[:, half:])
    return values


def _figure(drafter: str, octave: int, own: Sequence[tuple[TurnRow, Addends]]) -> ContextFigure:
    parts, clusters = [addends for _, addends in own], [cluster_of(row) for row, _ in own]
    value = float(ratio_of_sums(np.sum(parts, 0, keepdims=True))[0])
    rollouts = len({rollout_of(row) for row, _ in own})
    return ContextFigure(drafter, octave, len(own), rollouts, value, clustered_interval(parts, clusters, ratio_of_sums))


def _grouped(drafter: str, rows: Iterable[tuple[TurnRow, Addends | None]], turns: _Turns) -> None:
    for row, parts in rows:
        if parts is not None and (octave := octave_of(row)) is not None:
            turns.setdefault((drafter, octave), []).append((row, parts))


def speedup_by_context(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> ByContext:
    """Speed-up over plain decoding, from steady seconds of paired turns.

    Raises MeasurementError if the rows were measured under different conditions.
    """
    rows, turns = list(rows), _Turns()
    one_condition(rows)
    for drafter in _drafting(rows):
        pairs = steady_pairs(paired(rows, drafter, include_degenerate=include_degenerate))
        _grouped(drafter, ((row, decode_parts(base, row)) for base, row in pairs), turns)
    return ByContext(turns)


def draft_kv_share_by_context(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> ByContext:
    """Draft-KV maintenance over the whole turn. Raises MeasurementError if conditions differ."""
    return _of_rows(rows, draft_kv_parts, include_degenerate=include_degenerate)


def draft_kv_time_by_context(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> ByContext:
    """Seconds of draft-KV maintenance an output token. Raises MeasurementError if conditions differ."""
    return _of_rows(rows, draft_kv_per_token, include_degenerate=include_degenerate)


def draft_kv_per_token(row: TurnRow) -> tuple[float, float] | None:
    """(seconds of draft-KV maintenance, output tokens), of the turns that `draft_kv_parts` takes."""
    kv_s = draft_kv_s(row)
    if kv_s is None or draft_kv_parts(row) is None or not row.output_tokens:
        return None
    return kv_s, float(row.output_tokens)


def _of_rows(
    rows: Iterable[TurnRow], parts_of: Callable[[TurnRow], Addends | None], *, include_degenerate: bool
) -> ByContext:
    rows, turns = list(rows), _Turns()
    one_condition(rows)
    for drafter, own in _drafting(rows).items():
        kept = counted(own, include_degenerate=include_degenerate)
        _grouped(drafter, ((row, parts_of(row)) for row in kept), turns)
    return ByContext(turns)


def _drafting(rows: Iterable[TurnRow]) -> dict[str, list[TurnRow]]:
    return {name: own for name, own in by_drafter(rows).items() if name not in PLAIN}
