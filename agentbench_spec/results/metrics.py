"""Pure functions from rows to figures; every definition is spelt out in docs/metrics.md.

A **counted** row has status `ok`. Headline figures also leave out repetition loops. None means that nothing was
measured, never zero.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.derived.k_arms import arm_of
from agentbench_spec.results.rows import TurnRow

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)

BASELINE = "none"
"""Name of the drafter that proposes nothing: plain decoding."""

AGAIN = "none-again"
"""Name of a second such drafter: its speed-up is 1 but for what disturbs a run's clocks."""

PLAIN = frozenset({BASELINE, AGAIN})
"""Names under which plain decoding stands in rows: there is no draft to speak of."""

CONDITIONS = (
    *("schema", "target", "temperature", "top_k", "top_p", "decode_mode", "history_mode", "prefix_mode", "thinking"),
    *("clock", "graphs", "backend", "client", "concurrency"),
)
"""Fields in which rows must agree before any figure is taken over them."""


@dataclass(frozen=True, slots=True)
class Mean:
    """One quantity under both weightings."""

    pooled: float | None
    """Sum over sum: every round (or second) weighs the same."""
    macro: float | None
    """Mean over rollouts of each rollout's pooled value: every rollout weighs the same."""


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """The acceptance counts of one turn."""

    rounds: int
    emitted: int
    emitted_raw: int
    tau: float | None
    tau_raw: float | None


def count_rounds(matched_lengths: Sequence[int], emitted: int) -> RoundCounts:
    """Acceptance counts of a turn; the loop and offline analysis both use this one formula.

    matched_lengths: accepted drafts of each round before any stop rule; emitted: tokens added to the output after the
    prefill token. Raises MeasurementError if no clipping of the last round alone explains `emitted`.
    """
    clipped_lengths(matched_lengths, emitted)
    rounds, raw = len(matched_lengths), sum(matched_lengths) + len(matched_lengths)
    return RoundCounts(rounds, emitted, raw, _ratio(emitted, rounds), _ratio(raw, rounds))


def clipped_lengths(matched_lengths: Sequence[int], emitted: int) -> list[int]:
    """Tokens each round really emitted: matched + 1, the last round clipped so that they sum to `emitted`.

    Raises MeasurementError if no clipping of the last round alone explains `emitted`.
    """
    lengths = [matched + 1 for matched in matched_lengths]
    before_last = sum(lengths[:-1])
    if not lengths and emitted == 0:
        return []
    if not lengths or not before_last < emitted <= sum(lengths):
        raise MeasurementError(f"{emitted} tokens cannot come from rounds of {lengths}, of which only the last is cut")
    return [*lengths[:-1], emitted - before_last]


def one_condition(rows: Iterable[TurnRow]) -> None:
    """Raises MeasurementError naming the fields if the rows were measured under different conditions."""
    found: dict[str, set[Any]] = {}
    for row in rows:
        for name, value in conditions_of(row):
            found.setdefault(name, set()).add(value)
    named = [f"{name}: {', '.join(sorted(map(str, v)))}" for name, v in found.items() if len(v) > 1]
    if named:
        raise MeasurementError(f"rows of different conditions cannot be compared ({'; '.join(named)})")


def conditions_of(row: TurnRow) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything that must be one among rows that are compared.

    `CONDITIONS`, and k: of each drafter, and in our own engine of all that propose (a server, or an arm, has its own).
    """
    yield from ((name, getattr(row, name)) for name in CONDITIONS)
    if row.drafter != BASELINE and row.backend == "engine" and arm_of(row.drafter)[1] is None:
        yield "k", row.k_asked
    yield f"k of {row.drafter}", row.k_asked
    if row.async_scheduling is not None:  # what a server does not tell agrees with anything
        yield "async_scheduling", row.async_scheduling


def by_drafter(rows: Iterable[TurnRow]) -> dict[str, list[TurnRow]]:
    """Rows of each drafter, in order of first appearance."""
    return _group(rows, lambda row: row.drafter)


def rollout_of(row: TurnRow) -> tuple[str, str]:
    """The cluster of a row: turns of one rollout are not independent."""
    return row.workload, row.rollout


def left_out_because(row: TurnRow, *, include_degenerate: bool = False) -> str | None:
    """Why a row is not in the headline figures: its status, or `degenerate`; None if it is in them."""
    if row.status != "ok":
        return row.status
    return "degenerate" if looped(row) and not include_degenerate else None


def counted(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> list[TurnRow]:
    """The rows that headline figures are taken over."""
    return [row for row in rows if left_out_because(row, include_degenerate=include_degenerate) is None]


def left_out(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> dict[str, int]:
    """How many rows are not in the headline figures, by reason."""
    reasons = (left_out_because(row, include_degenerate=include_degenerate) for row in rows)
    return dict(sorted(Counter(reason for reason in reasons if reason).items()))


def tau(rows: Iterable[TurnRow]) -> Mean:
    """Emitted tokens after the prefill token per round, clipped at stop tokens and at the length cap.

    A turn without a round has no τ and weighs nothing; a rollout without a round is not in the macro mean.
    """
    return _mean_of_sums(rows, "emitted")


def tau_raw(rows: Iterable[TurnRow]) -> Mean:
    """Matched drafts + 1 per round, the last round unclipped: what the DLite paper's released loop counts."""
    return _mean_of_sums(rows, "emitted_raw")


def _mean_of_sums(rows: Iterable[TurnRow], numerator: str) -> Mean:
    parts = [
        (rollout_of(row), float(tokens), float(row.rounds))
        for row in rows
        if row.rounds and (tokens := getattr(row, numerator)) is not None
    ]
    return pooled_and_macro(parts)


def pooled_and_macro(parts: Iterable[tuple[Hashable, float, float]]) -> Mean:
    """Both weightings of a ratio, from (rollout, numerator, denominator) triples."""
    groups = _group(parts, lambda part: part[0])
    sums = [(sum(p[1] for p in own), sum(p[2] for p in own)) for own in groups.values()]
    pooled = _ratio(sum(s[0] for s in sums), sum(s[1] for s in sums))
    each = [value for top, bottom in sums if (value := _ratio(top, bottom)) is not None]
    return Mean(pooled, fmean(each) if each else None)


def acceptance_by_position(rows: Iterable[TurnRow]) -> list[tuple[float, float | None]]:
    """For draft position 1, 2, ...: (unconditional, conditional) acceptance.

    Unconditional: rounds that accepted position i / rounds that proposed it. Conditional: the same among rounds that
    accepted position i - 1; None where there is no such round. Counted before any stop rule.
    """
    rounds = [pair for row in rows for pair in positions(row)]
    depth = max((proposed for _, proposed in rounds), default=0)
    table = []
    for i in range(1, depth + 1):
        accepted = sum(matched >= i for matched, _ in rounds)
        asked = sum(proposed >= i for _, proposed in rounds)
        reached = sum(proposed >= i and matched >= i - 1 for matched, proposed in rounds)
        table.append((accepted / asked, _ratio(accepted, reached)))
    return table


def accepted_histogram(rows: Iterable[TurnRow]) -> list[int]:
    """Element m: rounds in which exactly m drafts were accepted, before any stop rule."""
    lengths = [matched for row in rows for matched in matched_of(row)]
    return [int(n) for n in np.bincount(lengths)] if lengths else []


def positions(row: TurnRow) -> list[tuple[int, int]]:
    """(accepted, proposed) drafts of each round, before any stop rule."""
    return list(zip(matched_of(row), _proposed(row), strict=False))


def matched_of(row: TurnRow) -> list[int]:
    """Accepted drafts of each round; a server's histogram tells them without their order."""
    if row.matched_lengths is not None:
        return row.matched_lengths
    return [accepted for accepted, rounds in enumerate(row.matched_histogram or ()) for _ in range(rounds)]


def _proposed(row: TurnRow) -> list[int]:
    """Positions proposed in each round, one fewer than a histogram has elements; unknown if rounds had unlike many."""
    histogram = row.matched_histogram or []
    told = row.proposed_lengths or [len(histogram) - 1] * sum(histogram)
    return told if row.proposed in (None, sum(told)) else []


@dataclass(frozen=True, slots=True)
class Losslessness:
    """Turns by how their output compares with the baseline's."""

    compared: int
    identical: int
    ties: int
    errors: int


def losslessness(rows: Iterable[TurnRow]) -> Losslessness:
    """Counts over rows whose output was compared; loops count too, for they must be the baseline's loops."""
    kinds = Counter("identical" if row.identical else row.divergence for row in rows if row.identical is not None)
    return Losslessness(kinds.total(), kinds["identical"], kinds["tie"], kinds["error"])


def looped(row: TurnRow) -> bool:
    """True if the row is flagged as a loop, or, where no flag was stored, if its output is one."""
    return is_degenerate(row.output_ids or ()) if row.degenerate is None else row.degenerate


_MAX_PERIOD, _MIN_LOOP_TOKENS, _MIN_DOMINATED_TOKENS, _DOMINANT_SHARE = 16, 48, 64, 2 / 3


def is_degenerate(ids: Sequence[int]) -> bool:
    """True if the output is a repetition loop, whose acceptance says nothing about real text.

    Either its tail repeats with a period of at most 16 tokens over at least 48 tokens and half the output (up to 16
    tokens may follow: a loop that was left at last), or one token makes up two thirds of 64 or more tokens.
    """
    tokens = np.asarray(ids)
    if len(tokens) < _MIN_LOOP_TOKENS:
        return False
    if len(tokens) >= _MIN_DOMINATED_TOKENS:
        _, counts = np.unique(tokens, return_counts=True)
        if counts.max() > _DOMINANT_SHARE * len(tokens):
            return True
    need = max(_MIN_LOOP_TOKENS, math.ceil(len(tokens) / 2))
    # Every loop we look for covers this window, and a loop has no more distinct tokens than its period.
    if len(np.unique(tokens[-need:-_MAX_PERIOD])) > _MAX_PERIOD:
        return False
    return any(_periodic_tail(tokens, period) >= need for period in range(1, _MAX_PERIOD + 1))


def _periodic_tail(tokens: np.ndarray[tuple[int, ...], np.dtype[np.int64]], period: int) -> int:
    """Length of the longest run with this period that ends within the last `_MAX_PERIOD` tokens."""
    breaks = np.flatnonzero(tokens[period:] != tokens[:-period])
    edges = np.concatenate(([-1], breaks, [len(tokens) - period]))
    late = np.searchsorted(edges, len(tokens) - period - _MAX_PERIOD)
    return int(np.diff(edges[max(late - 1, 0) :]).max()) - 1 + period


def warnings(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> list[str]:
    """Reasons to distrust the figures: every turn at the length cap, or drafters averaged over different turns."""
    capped: dict[str, list[str]] = {}
    covered = {}
    for drafter, own in by_drafter(rows).items():
        ended = [row.stop_reason for row in counted(own, include_degenerate=True)]
        if len(ended) > 1 and set(ended) == {"length"}:
            text = f"all {len(ended)} turns hit the length cap; replies were cut, or the model loops"
            capped.setdefault(text, []).append(drafter)
        covered[drafter] = frozenset(turn_of(row) for row in counted(own, include_degenerate=include_degenerate))
    found = [f"{', '.join(drafters)}: {text}" for text, drafters in capped.items()]
    if len(set(covered.values())) > 1:
        sizes = ", ".join(f"{drafter} {len(turns)}" for drafter, turns in covered.items())
        found.append(f"drafters are averaged over different turns ({sizes}); only speed-ups are paired")
    return found


def turn_of(row: TurnRow) -> tuple[str, str, int]:
    """The key that pairs the rows of one turn.

    Servers whose history is their own words, or live, part ways: there a turn is shared as far as it was paired.
    """
    paired = row.identical is not None or row.speedup is not None or row.speedup_e2e is not None
    shared = paired or row.backend == "engine" or row.history_mode == "recorded"
    return row.workload, row.rollout if shared else f"{row.rollout} of {row.drafter}", row.turn


def _group(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    groups: dict[_Key, list[_Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def _ratio(top: float, bottom: float) -> float | None:
    return top / bottom if bottom else None
