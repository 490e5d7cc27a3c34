"""Seconds as a quiet machine would have had them: stalls are planted, and what they may move is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rowkit import make_row

from agentbench_spec.results.costs import paired, speedup
from agentbench_spec.results.intervals import jackknife_interval, speedup_intervals
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied, steady_decode_s


def quiet(turns: int = 20, *, by_round: bool = True, drafter: str = "ngram") -> list[TurnRow]:
    """Turns whose step grows with context and width, with a few per cent of noise."""
    rng = random.Random(0 if drafter == "ngram" else 1)
    rows = []
    for turn in range(turns):
        widths = [rng.choice([0, 0, 3, 7]) for _ in range(12)]
        context = 500 + 300 * turn
        spent = [(0.02 + 1e-5 * context) * (1 + 0.1 * width) * rng.uniform(0.97, 1.03) for width in widths]
        rows.append(
            make_row(
                turn=turn,
                drafter=drafter,
                matched=[0] * 12,
                context_tokens=context,
                proposed_lengths=widths,
                decode_s=sum(spent),
                round_s=spent if by_round else None,
            )
        )
    return rows


def stalled(row: TurnRow, factor: float, rounds: slice = slice(None)) -> TurnRow:
    """The row with some of its rounds so many times slower."""
    if row.round_s is None:
        return replace(row, decode_s=(row.decode_s or 0.0) * factor)
    spent = list(row.round_s)
    spent[rounds] = [factor * s for s in spent[rounds]]
    return replace(row, round_s=spent, decode_s=sum(spent))


def total(rows: Sequence[TurnRow]) -> float:
    return sum(s or 0.0 for s in steady_decode_s(rows))


@pytest.mark.parametrize("by_round", [True, False])
def test_without_a_stall_nothing_changes(by_round: bool) -> None:
    """Fails if ordinary differences between rounds, widths or contexts are taken for stalls."""
    rows = quiet(by_round=by_round)
    assert steady_decode_s(rows) == pytest.approx([row.decode_s for row in rows])


@pytest.mark.parametrize("by_round", [True, False])
@pytest.mark.parametrize("factor", [10, 50])
@pytest.mark.parametrize("place", [0, 9, 18])
def test_stalled_turns_move_the_seconds_by_little(by_round: bool, factor: float, place: int) -> None:
    """Fails if a tenth of the turns, 10 to 50 times slower, anywhere in the run, moves the total by 5 % or more."""
    rows = quiet(by_round=by_round)
    noisy = [stalled(row, factor) if row.turn in (place, place + 1) else row for row in rows]
    assert sum(row.decode_s or 0 for row in noisy) > 1.3 * total(rows)  # what the plain sum makes of it
    assert total(noisy) == pytest.approx(total(rows), rel=0.05)


def test_stalled_rounds_within_many_turns_are_found() -> None:
    """Fails if stalls that hit a few rounds of every turn count because no whole turn is slow."""
    rows = quiet()
    noisy = [stalled(row, 15, slice(row.turn % 6, row.turn % 6 + 2)) for row in rows]
    assert total(noisy) == pytest.approx(total(rows), rel=0.02)


def test_a_disturbed_turn_keeps_what_its_quiet_rounds_say() -> None:
    """Every turn is marked, for two of its twelve rounds. Fails if marks throw away the ten that nothing hit."""
    rows = quiet()
    slow = [replace(row, round_s=[1.5 * s for s in row.round_s or ()]) if row.turn % 2 else row for row in rows]
    slow = [replace(row, decode_s=sum(row.round_s or ())) for row in slow]
    marked = [replace(stalled(row, 15, slice(4, 6)), disturbed=True, slow_rounds=2) for row in slow]
    assert steady_decode_s(marked) == pytest.approx([row.decode_s for row in slow], rel=0.05)


def test_a_disturbed_turn_counts_with_the_time_of_its_like() -> None:
    """Fails if the clocks of a turn that was marked weigh anything, even where none of its rounds is far above."""
    rows = quiet()
    noisy = [replace(stalled(row, 1.6), disturbed=True) if row.turn == 10 else row for row in rows]
    assert total(noisy) == pytest.approx(total(rows), rel=0.005)


def test_slower_throughout_is_slower() -> None:
    """Fails if a drafter that is really slow, in every round, is made as fast as another."""
    assert total([stalled(row, 3) for row in quiet()]) == pytest.approx(3 * total(quiet()))


def test_few_turns_and_odd_rows_are_taken_as_they_are() -> None:
    """Fails if a run of one turn, a turn without a round, an untimed one or a busy server's raises or changes."""
    empty = make_row(turn=1, matched=[], decode_s=1e-6, round_s=[])
    odd = [make_row(matched=[1]), empty, make_row(turn=2, matched=[1, 1], decode_s=2.0, backend="sglang")]
    assert steady_decode_s(odd) == [None, 1e-6, 2.0]
    assert steady_decode_s(quiet(1)) == pytest.approx([quiet(1)[0].decode_s])
    assert steady_decode_s([]) == []


def test_prefills_are_judged_by_their_tokens() -> None:
    """Fails if a long prefill is taken for a stalled one, or a stalled one for a long one."""
    tokens = [100, 200, 400, 800, 1600, 3200, 300]
    rows = [make_row(turn=i, matched=[1], new_tokens=t, prefill_s=0.1 + t / 1000) for i, t in enumerate(tokens)]
    assert steadied(rows) == rows
    rows[-1].prefill_s = 20 * 0.4
    assert [row.prefill_s for row in steadied(rows)] == pytest.approx([0.1 + t / 1000 for t in tokens])


def as_seen(rows: Sequence[TurnRow], how: str) -> list[TurnRow]:
    """The rows as they are where rounds are timed, or not, or as a server's client sees them."""
    if how == "timed":
        return list(rows)
    untimed = [replace(row, round_s=None) for row in rows]
    if how == "not timed":
        return untimed
    served = [replace(row, backend="sglang", concurrency=1, proposed_lengths=None) for row in untimed]
    chunks = [replace(row, chunk_gaps_s=old.round_s) for row, old in zip(served, rows, strict=True)]
    return chunks if how == "chunks" else [replace(row, rounds=None) for row in chunks]


HOW = ("timed", "not timed", "chunks", "rounds unknown")


def both_sides(rollouts: int = 5, turns: int = 20) -> list[TurnRow]:
    """Turns of plain decoding and of a drafter, with prefills."""
    calm = [*quiet(turns, drafter="none"), *quiet(turns)]
    for row in calm:
        row.k, row.rollout = (0 if row.drafter == "none" else 7), f"r{row.turn % rollouts}"
        row.prefill_s, row.draft_ingest_s, row.new_tokens = 0.4 + 0.01 * (row.turn % 3), 0.0, 300
    return calm


def disturbed(rows: Sequence[TurnRow], hit: str, turns: Sequence[int] = (3, 8)) -> list[TurnRow]:
    """The rows with turns of one side 22 to 42 times slower, and one of its prefills."""
    noisy = [stalled(row, 10 + 4 * row.turn) if row.drafter == hit and row.turn in turns else row for row in rows]
    return [replace(row, prefill_s=20.0) if row.drafter == hit and row.turn == turns[0] else row for row in noisy]


@pytest.mark.parametrize("hit", ["none", "ngram"])
@pytest.mark.parametrize("how", HOW)
def test_no_speed_up_moves_with_stalls(hit: str, how: str) -> None:
    """Fails if a tenth of the turns of either side, 10 to 50 times slower, moves a headline by 5 % or more."""
    calm = both_sides()
    before, after = (speedup(paired(as_seen(rows, how), "ngram")) for rows in (calm, disturbed(calm, hit)))
    assert after.as_timed is not None and before.as_timed == pytest.approx(before.pooled)
    assert abs(math.log(after.as_timed / (before.as_timed or 1))) > 0.5  # what the plain sums make of it
    for name in ("pooled", "macro", "turn_mean", "e2e"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=0.05), name


def test_stalls_of_both_sides_of_a_turn_are_not_compared() -> None:
    """Both sides of a turn stalled, each by its own factor. Fails if one of them passes for the turn's level."""
    calm = both_sides()
    factors = {("none", 7): 13.0, ("ngram", 7): 24.0}
    noisy = [stalled(row, factors.get((row.drafter, row.turn), 1.0)) for row in calm]
    for how in HOW:
        before, after = (speedup(paired(as_seen(rows, how), "ngram")).pooled for rows in (calm, noisy))
        assert after == pytest.approx(before, rel=0.01), how


@pytest.mark.parametrize("figure", ["pooled", "macro", "e2e"])
@pytest.mark.parametrize("rollouts", [5, 25])
def test_intervals_make_the_like_of_a_stall_anew(figure: str, rollouts: int) -> None:
    """Fails if an interval takes what stands for a stalled round for measured, or is that of another figure."""
    rows = disturbed(both_sides(rollouts, 2 * rollouts), "ngram")
    pairs = paired(rows, "ngram")
    clusters = [[pair for pair in pairs if pair[1].rollout == f"r{i}"] for i in range(rollouts)]
    by_hand = jackknife_interval(clusters, lambda some: getattr(speedup([p for own in some for p in own]), figure))
    found = getattr(speedup_intervals(pairs), figure)
    assert by_hand is not None and found.centre == pytest.approx(by_hand.centre)
    assert found.error == pytest.approx(by_hand.error, rel=1e-6 if rollouts == 5 else 0.1)
    assert math.log(getattr(speedup(pairs), figure)) == pytest.approx(found.centre)


def test_intervals_with_stalls_hold_the_quiet_value() -> None:
    """Fails if a planted stall moves an interval off what a quiet machine measures, or blows it up."""
    calm = both_sides()
    before, after = (speedup_intervals(paired(rows, "ngram")) for rows in (calm, disturbed(calm, "none")))
    quiet_value = speedup(paired(calm, "ngram"))
    for name in ("pooled", "macro", "e2e"):
        held = getattr(after, name)
        assert held.low < getattr(quiet_value, name) < held.high, name
        assert held.error < 5 * getattr(before, name).error, name
