"""What disturbs a turn: order and place, stalls that are planted, and turns decoded again for them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from replaykit import Ids, by_drafter, replayed, replayer, three_turns
from torch import Tensor

from agentbench_spec.drafting import Proposal
from agentbench_spec.results.rows import NOISE_FIELDS
from agentbench_spec.runs.attempts import Patience
from agentbench_spec.runs.contention import Noise
from agentbench_spec.runs.order import balanced_order
from agentbench_spec.testing import PlainDrafter

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_every_place_and_every_neighbour_equally_often(count: int) -> None:
    """Fails if, over whole squares, a decoder stands more often at one place, or after one other, than elsewhere."""
    names = [f"d{i}" for i in range(count)]
    turns = [balanced_order(names, i, seed=0) for i in range(4 * count)]
    places = Counter((place, name) for turn in turns for place, name in enumerate(turn))
    after = Counter(pair for turn in turns for pair in pairwise(turn))
    assert set(places.values()) == {4} and len(places) == count**2
    assert len(after) == count * (count - 1) and set(after.values()) == ({4} if count > 1 else set())


@pytest.mark.parametrize("start", [0, 3, 11])
def test_any_stretch_of_a_run_is_about_balanced(start: int) -> None:
    """Fails if a resumed run, or one of one-turn rollouts, has a decoder first much more often than another."""
    firsts = Counter(balanced_order("abcdefg", start + i, seed=5)[0] for i in range(35))
    assert len(firsts) == 7 and max(firsts.values()) - min(firsts.values()) <= 4


def test_order_hangs_on_the_seed_and_not_on_the_turn_in_its_rollout() -> None:
    """Fails if two runs of one seed differ, if the seed changes nothing, or if turn 0 always begins alike."""
    orders = [[balanced_order("abcd", i, seed) for i in range(40)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert {orders[0][i][0] for i in range(0, 40, 4)} == set("abcd")


def test_one_turn_rollouts_begin_with_different_decoders() -> None:
    """Fails if plain decoding runs first in every one-turn rollout, straight after the prefill."""
    replays = replayer({"a": PlainDrafter(), "b": PlainDrafter()}, max_turns=1)
    rows = [row for i in range(12) for turn in replays.replay(three_turns(f"r{i}"), i) for row in turn.rows]
    places = Counter((row.drafter, row.order) for row in rows)
    assert set(places.values()) == {4} and len(places) == 9


STARTS = [len(Ids().prompt(three_turns(), point)) for point in three_turns().decode_points()]
"""Text position of the first output token of each turn."""


class Sleepy(PlainDrafter):
    """Sleeps at some text positions, so many times in all, as on a machine that others use."""

    spec = replace(PlainDrafter.spec, name="sleepy")

    def __init__(self, *positions: int, times: int = 1):
        self.positions, self.times = positions, times

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        if self.times and int(position) in self.positions:
            self.times -= 1
            time.sleep(0.5)
        return super().propose(anchor, position, k)


def test_a_stalled_turn_is_decoded_again_by_all() -> None:
    """Fails if a stall stays in the clocks, if only one drafter is timed anew, or if counts or outputs change."""
    turns = replayed(replayer({"sleepy": Sleepy(STARTS[1] + 5)}, repeats=3), three_turns())
    rows, plain = by_drafter(turns, "sleepy"), by_drafter(turns, "none")
    hit = rows[1]
    assert [row.attempts for row in rows] == [row.attempts for row in plain] and (hit.attempts or 0) > 1
    assert hit.attempts_s is not None and hit.attempts_s[0] > 0.5 and hit.attempt == plain[1].attempt != 0
    assert hit.decode_s == hit.attempts_s[hit.attempt or 0] < 0.5
    assert all(row.identical and row.rounds == 11 and len(row.round_s or ()) == 11 for row in rows)
    calm = replayed(replayer({"sleepy": PlainDrafter()}), three_turns())
    assert [row.output_ids for row in by_drafter(calm, "sleepy")] == [row.output_ids for row in rows]


def test_what_stays_disturbed_is_marked() -> None:
    """Fails if a turn is decoded for ever, or one that was stalled each time passes for measured."""
    turns = replayed(replayer({"sleepy": Sleepy(STARTS[1] + 5, times=99)}, repeats=2), three_turns())
    rows = by_drafter(turns, "sleepy")
    assert (rows[1].attempts, rows[1].disturbed) == (3, True) and rows[1].slow_rounds
    assert min(rows[1].attempts_s or [0]) > 0.5 and rows[1].tau == 1.0


def test_repeats_that_do_not_help_are_given_up_and_tried_again_later() -> None:
    """Fails if a machine that is busy throughout makes every turn of a run three times as long, or if one that was busy
    for a while never decodes a turn again."""
    patience, allowed = Patience(), []
    for _ in range(20):
        allowed.append(patience.allows())
        patience.learn(2, 2)
    assert [turn for turn, again in enumerate(allowed) if again] == [0, 1, 2, 10, 18]
    patience.learn(2, 1)  # one drafter less
    assert patience.allows()
    for turn in ((1, 1), (1, 1), (0, 0), (1, 1), (1, 1)):
        patience.learn(*turn)
    assert patience.allows()


def test_without_repeats_a_stall_is_only_marked() -> None:
    """Fails if `measure.repeats = 0` decodes a turn again, or hides what happened."""
    rows = by_drafter(replayed(replayer({"sleepy": Sleepy(STARTS[1] + 5)}), three_turns()), "sleepy")
    assert (rows[1].attempts, rows[1].disturbed) == (1, True)


def test_a_turn_that_stalled_from_end_to_end_is_seen_by_the_turns_before() -> None:
    """Fails if rounds are compared only within their turn, where all of them are slow."""
    sleepy = Sleepy(*range(STARTS[1], STARTS[1] + 12), times=0)
    slow = replayer({"sleepy": sleepy}, repeats=3)
    list(slow.replay(three_turns("r0"), 0))
    sleepy.times = 11
    hit = by_drafter(list(slow.replay(three_turns("r1"), 3)), "sleepy")[1]
    assert hit.attempts_s is not None and hit.attempts_s[0] > 5 and (hit.decode_s or 9) < 5


class Breaks(Sleepy):
    """Fails when it is asked again after a stall."""

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        if not self.times and int(position) == STARTS[1]:
            raise RuntimeError("broken the second time")
        return super().propose(anchor, position, k)


def test_a_drafter_that_fails_when_asked_again_costs_its_own_rows() -> None:
    """Fails if a drafter that breaks in a repeat takes its first decoding, the others, or the run with it."""
    turns = replayed(replayer({"breaks": Breaks(STARTS[1] + 5)}, repeats=2), three_turns())
    assert [(row.status, row.disturbed) for row in by_drafter(turns, "breaks")][1:] == [("ok", True), ("error", None)]
    assert [(row.status, row.identical) for row in by_drafter(turns, "none")] == [("ok", True)] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_what_others_took_is_in_the_rows() -> None:
    """Fails if a row does not say what the kernel knows, or claims to know of a GPU that is not there."""
    (row, *_) = by_drafter(replayed(replayer(), three_turns()), "none")
    assert row.waiting_s is not None and row.steal_s is not None
    assert row.gpu_clock_mhz is None and row.gpu_throttle is None
    with Noise(CPU) as noise:
        time.sleep(0.01)
    assert set(noise.fields) == set(NOISE_FIELDS)
