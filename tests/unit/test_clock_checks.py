"""What a run's clocks say of themselves: the second plain drafter, and the place in the order."""

from __future__ import annotations

import random

import pytest
from rowkit import make_row

from agentbench_spec.results.clock_checks import clock_lines, clock_warnings, null_speedup, place_effect
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import notes, summarise
from agentbench_spec.runs.order import balanced_order

NAMES = ("none", "none-again", "ngram")


def rows(rollouts: int = 6, turns: int = 6, *, again: float = 1.0, first: float = 1.0) -> list[TurnRow]:
    """Turns with 3 % noise; again: what the second plain drafter takes longer; first: what who runs first does."""
    rng, found = random.Random(0), []
    for number in range(rollouts * turns):
        level = rng.uniform(0.8, 1.25)
        for place, name in enumerate(balanced_order(NAMES, number, 0)):
            step_s = 0.04 * level * {"none-again": again, "ngram": 1.5}.get(name, 1.0) * rng.uniform(0.97, 1.03)
            spent_s = [step_s * (first if place == 0 else 1.0)] * 10
            at = {"order": place, "decode_s": sum(spent_s), "round_s": spent_s}
            found.append(make_row(f"r{number // turns}", number % turns, name, [0] * 10, context_tokens=100, **at))
    return found


def test_nothing_at_all_reads_as_one() -> None:
    """Fails if a run without a fault is warned of, or the card does not say what it measured."""
    null = null_speedup(rows())
    assert null is not None and null.value == pytest.approx(1, abs=0.02) and not null.excludes_one
    assert clock_warnings(rows()) == []
    assert len(clock_lines(rows())) == 2 and "plain decoding against itself reads" in clock_lines(rows())[0]


def test_a_biased_null_is_warned_of() -> None:
    """Fails if a second plain drafter that is 8 % slower passes without a word below the table."""
    null = null_speedup(rows(again=1.08))
    assert null is not None and null.excludes_one and null.value == pytest.approx(1 / 1.08, abs=0.02)
    assert any("not 1" in line for line in notes(summarise(rows(again=1.08))))


def test_a_planted_effect_of_place_is_measured() -> None:
    """Fails if what running first costs is missed, found where there is none, or mixed up with the drafters' speed."""
    planted, absent = place_effect(rows(first=1.1)), place_effect(rows())
    assert planted is not None and planted.value == pytest.approx(1.1, abs=0.02) and planted.excludes_one
    assert absent is not None and absent.value == pytest.approx(1, abs=0.02) and not absent.excludes_one


def test_too_little_is_said_to_be() -> None:
    """Fails if one turn gives an effect of place, one rollout an interval, or a server's rows a line."""
    assert place_effect(rows(1, 1)) is None and "not enough" in clock_lines(rows(1, 1))[-1]
    one = place_effect(rows(1, 6))
    assert one is not None and one.interval is None
    served = rows()
    for row in served:
        row.order = None
    assert clock_lines(served) == [] and null_speedup([row for row in rows() if row.drafter != "none-again"]) is None


def test_stalls_are_told_and_plain_decoding_has_no_draft() -> None:
    """Fails if the plain ratio is hidden where it is another, disturbed turns go uncounted, or none drafts."""
    found = rows()
    hit = [row for row in found if row.drafter == "none" and row.turn in (2, 4)]
    for row in hit:
        row.round_s = [30 * s for s in row.round_s or ()]
        row.decode_s, row.disturbed = sum(row.round_s), row.turn == 4
        row.draft_s = row.draft_append_s = 0.001
    calm, noisy = (next(d for d in summarise(r).drafters if d.drafter == "ngram") for r in (rows(), found))
    assert calm.speedup.pooled is not None and noisy.speedup.pooled == pytest.approx(calm.speedup.pooled, rel=0.05)
    assert (noisy.speedup.as_timed or 0) > 5 * (noisy.speedup.pooled or 9)
    said = notes(summarise(found))
    assert any("plain ratio of sums" in line for line in said)
    assert "none: clocks of 6 turns left out: disturbed in every attempt" in said
    assert summarise(found).drafters[0].draft_share is None


def test_a_stall_beside_other_requests_is_told() -> None:
    """Such a server's seconds stay as they are. Fails if its speed-up moves with a stall and nobody says so."""
    found = rows()
    for row in found:
        row.backend, row.concurrency, row.client, row.order = "sglang", 4, "generate", None
        row.chunk_gaps_s, row.round_s = row.round_s, None
    assert clock_warnings(found) == []
    hit = next(row for row in found if row.drafter == "none")
    hit.chunk_gaps_s = [40 * s for s in hit.chunk_gaps_s or ()]
    hit.decode_s = sum(hit.chunk_gaps_s)
    said = clock_warnings(found)
    assert any(line.startswith("ngram: its speed-up") and "doubtful" in line for line in said)
    for row in found:
        row.concurrency = 1
    assert not any("doubtful" in line for line in clock_warnings(found))
    for row in found:
        row.chunk_gaps_s = row.rounds = row.matched_lengths = None
    assert any("cannot be told" in line for line in clock_warnings(found))
