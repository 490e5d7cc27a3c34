"""Pure functions from rows to speed-ups, draft shares and draft memory; definitions in docs/metrics.md.

Speed-ups come from the wall clock and are paired: baseline and drafter on the same turn, from the same prefill, both
with their stalled rounds at the time of their like (`steady`), so that a stall of the machine is no speed-up.
Shares come from the attribution clock. Nothing is clipped: a drafter that slows decoding down has a speed-up below 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentbench_spec.results.metrics import BASELINE, counted, pooled_and_macro, rollout_of, turn_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied

Pair = tuple[TurnRow, TurnRow]
"""The baseline's row and a drafter's row of one turn."""
Parts = tuple[float, float, float, float]
"""Baseline seconds, baseline tokens, drafter seconds, drafter tokens."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speed-up of one drafter over plain decoding, each field under its own weighting."""

    pooled: float | None
    """The headline: baseline seconds per token over the drafter's, each a sum over the paired turns."""
    macro: float | None
    """Mean over rollouts of the rollout's pooled value."""
    turn_mean: float | None
    """Mean over turns of the turn's ratio."""
    e2e: float | None
    """As pooled, with prefill and ingest in the seconds and the prefill token in the tokens."""
    pairs: int
    """Turns the first three are taken over."""
    as_timed: float | None = None
    """As pooled, of what the clock said, stalls and all."""


def turn_speedup(baseline: TurnRow, row: TurnRow) -> float | None:
    """Baseline decode seconds per token over the drafter's on one turn; None if either emitted or measured nothing."""
    parts = decode_parts(baseline, row)
    return None if parts is None else (parts[0] / parts[1]) / (parts[2] / parts[3])


def turn_speedup_e2e(baseline: TurnRow, row: TurnRow) -> float | None:
    """The same over prefill, ingest and decoding, per output token, the prefill token included."""
    parts = e2e_parts(baseline, row)
    return None if parts is None else (parts[0] / parts[1]) / (parts[2] / parts[3])


def paired(rows: Iterable[TurnRow], drafter: str, *, include_degenerate: bool = False) -> list[Pair]:
    """Turns that both the baseline and `drafter` decoded and that count for both, as the clock timed them."""
    both = [row for row in rows if row.drafter in (BASELINE, drafter)]
    kept = counted(both, include_degenerate=include_degenerate)
    baselines = {turn_of(row): row for row in kept if row.drafter == BASELINE}
    return [(baselines[turn_of(row)], row) for row in kept if row.drafter == drafter and turn_of(row) in baselines]


def steady_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs as a quiet machine would have timed them; rows that nothing disturbed are the same objects."""
    rows = steadied([row for pair in pairs for row in pair])
    return list(zip(rows[::2], rows[1::2], strict=True))


def speedup(pairs: Sequence[Pair]) -> Speedup:
    """Speed-up over paired turns, from steady seconds.

    pairs: as the clock timed them. Turns that were not timed, or where either side emitted nothing, weigh nothing.
    """
    steady = steady_pairs(pairs)
    decode = _timed(steady, decode_parts)
    by_rollout: dict[object, list[Parts]] = {}
    for rollout, own in decode:
        by_rollout.setdefault(rollout, []).append(own)
    each = [_of_sums(turns) for turns in by_rollout.values()]
    single = [_of_sums([own]) for _, own in decode]
    end_to_end, as_timed = _timed(steady, e2e_parts), _timed(pairs, decode_parts)
    return Speedup(
        pooled=_of_sums([own for _, own in decode]) if decode else None,
        macro=fmean(each) if each else None,
        turn_mean=fmean(single) if single else None,
        e2e=_of_sums([own for _, own in end_to_end]) if end_to_end else None,
        pairs=len(decode),
        as_timed=_of_sums([own for _, own in as_timed]) if as_timed else None,
    )


def _timed(
    pairs: Iterable[Pair], parts_of: Callable[[TurnRow, TurnRow], Parts | None]
) -> list[tuple[tuple[str, str], Parts]]:
    """For each timed pair: its rollout, and its parts."""
    return [(rollout_of(row), parts) for base, row in pairs if (parts := parts_of(base, row))]


def _of_sums(parts: Sequence[Sequence[float]]) -> float:
    base_s, base_tokens, own_s, own_tokens = (float(sum(column)) for column in zip(*parts, strict=True))
    return (base_s / base_tokens) / (own_s / own_tokens)


def decode_parts(baseline: TurnRow, row: TurnRow) -> Parts | None:
    """What a turn adds to a speed-up; None if it was not timed, or either side emitted nothing."""
    return _all_positive(baseline.decode_s, baseline.emitted, row.decode_s, row.emitted)


def e2e_parts(baseline: TurnRow, row: TurnRow) -> Parts | None:
    """The same with prefill and ingest in the seconds and the prefill token in the tokens."""
    return _all_positive(e2e_s(baseline), baseline.output_tokens, e2e_s(row), row.output_tokens)


def e2e_s(row: TurnRow) -> float | None:
    """Seconds of prefill, ingest and decoding; None if a part was not measured. The baseline has nothing to ingest.

    For a server: time to the first token, which has them all in it, and decoding.
    """
    if row.ttft_s is not None and row.decode_s is not None:  # a server's prefill, ingest and queue are one wait
        return row.ttft_s + row.decode_s
    ingest_s = 0.0 if row.drafter == BASELINE and row.draft_ingest_s is None else row.draft_ingest_s
    if row.prefill_s is None or ingest_s is None or row.decode_s is None:
        return None
    return row.prefill_s + ingest_s + row.decode_s


def total_of(parts: Iterable[float | None]) -> float | None:
    """The sum; None where a part is not known, or there is none."""
    found = list(parts)
    known = [part for part in found if part is not None]
    return sum(known) if found and len(known) == len(found) else None


def _all_positive(a: float | None, b: float | None, c: float | None, d: float | None) -> Parts | None:
    return (a, b, c, d) if a and b and c and d else None


def decode_s_per_token(rows: Iterable[TurnRow]) -> float | None:
    """Seconds of decoding per token emitted after the prefill token, sum over sum of steady seconds."""
    steady = steadied(list(rows))
    timed = [(rollout_of(r), r.decode_s, float(r.emitted)) for r in steady if r.decode_s is not None and r.emitted]
    return pooled_and_macro(timed).pooled


def draft_share(rows: Iterable[TurnRow]) -> float | None:
    """Share of decoding spent in `propose`: sum of draft_s over sum of attributed_decode_s; no disturbed turns."""
    return pooled_and_macro((rollout_of(row), *parts) for row in rows if (parts := draft_parts(row))).pooled


def draft_parts(row: TurnRow) -> tuple[float, float] | None:
    """(seconds of `propose`, seconds of decoding); None where they were not timed, or the turn is disturbed."""
    if row.disturbed or row.draft_s is None or row.attributed_decode_s is None:
        return None
    return row.draft_s, row.attributed_decode_s


def draft_kv_s(row: TurnRow) -> float | None:
    """Seconds of draft-KV maintenance, ingest plus append; None where a part is null, as for a fused drafter."""
    if row.draft_ingest_s is None or row.draft_append_s is None:
        return None
    return row.draft_ingest_s + row.draft_append_s


def draft_kv_share(rows: Iterable[TurnRow]) -> float | None:
    """Share of the turn spent on draft-KV maintenance: (ingest + append) over (prefill + ingest + decoding).

    Decoding is attributed_decode_s. Ingest belongs to the turn, not to decoding, so the whole turn is the denominator.
    Disturbed turns are left out.
    """
    return pooled_and_macro((rollout_of(row), *parts) for row in rows if (parts := draft_kv_parts(row))).pooled


def draft_kv_parts(row: TurnRow) -> tuple[float, float] | None:
    """(seconds of draft-KV maintenance, seconds of the turn); None where a part is null, or the turn is disturbed."""
    kv_s = draft_kv_s(row)
    if row.disturbed or kv_s is None or row.prefill_s is None or row.attributed_decode_s is None:
        return None
    return kv_s, row.prefill_s + (row.draft_ingest_s or 0.0) + row.attributed_decode_s


def state_bytes_max(rows: Iterable[TurnRow]) -> int | None:
    """Largest drafter state at the end of a turn."""
    return max((row.draft_state_bytes for row in rows if row.draft_state_bytes is not None), default=None)


def state_bytes_per_token(rows: Iterable[TurnRow]) -> float | None:
    """Drafter state per text token that went through the target (all but the anchor), sum over sum."""
    sized = [
        (rollout_of(row), float(row.draft_state_bytes), float(row.context_tokens + row.output_tokens - 1))
        for row in rows
        if row.draft_state_bytes is not None and row.context_tokens is not None and row.output_tokens
    ]
    return pooled_and_macro(sized).pooled
