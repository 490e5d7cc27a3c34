"""Clocks: what a phase took is attributed to it, once, and the rest is shown. Sleeps are lower bounds only."""

from __future__ import annotations

import time

import pytest
import torch

from agentbench_spec.drafting import DrafterSpec
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.timing import PHASES, Clock, HostClock, Stopwatch, clocks, phase_cost_s, resolve_mode
from agentbench_spec.testing import (
    PlainDrafter,
    ScriptedDrafter,
    every,
    greedy_text,
    row_sampler,
    toy_target,
    toy_turns,
)

CPU = torch.device("cpu")


def test_phases_and_other_sum_to_the_total() -> None:
    """Fails if time is counted twice, or if time outside every phase disappears."""
    clock = HostClock(CPU)
    clock.begin()
    for seconds in (0.004, 0.002):
        with clock.phase("verify"):
            time.sleep(seconds)
        time.sleep(0.003)
    times = clock.end()
    assert times.rounds_s is not None and times.phases_s is not None and times.other_s is not None
    assert list(times.rounds_s) == list(PHASES)
    assert [len(times.rounds_s[name]) for name in PHASES] == [0, 2, 0, 0]
    assert times.rounds_s["verify"][0] >= 0.004 and times.rounds_s["verify"][1] >= 0.002
    assert times.other_s >= 0.006
    assert sum(times.phases_s.values()) + times.other_s == pytest.approx(times.total_s, abs=1e-12)


def test_a_phase_that_raises_is_still_closed() -> None:
    """Fails if an error inside a phase loses its time or is swallowed."""
    clock = HostClock(CPU)
    clock.begin()
    with pytest.raises(ZeroDivisionError), clock.phase("draft"):
        raise ZeroDivisionError
    rounds_s = clock.end().rounds_s
    assert rounds_s is not None and len(rounds_s["draft"]) == 1


def test_the_wall_clock_has_no_phases() -> None:
    """Fails if wall time is given phases it never took: null, not 0."""
    clock = Clock(CPU)
    clock.begin()
    with clock.phase("draft"):
        time.sleep(0.002)
    times = clock.end()
    assert times.total_s >= 0.002
    assert (times.rounds_s, times.phases_s, times.other_s) == (None, None, None)


class SlowDrafter(ScriptedDrafter):
    """Right by script, but slow to propose and slower to learn."""

    spec = DrafterSpec(name="slow", history_free=True)

    def propose(self, anchor, position, k):  # type: ignore[no-untyped-def]
        time.sleep(0.003)
        return super().propose(anchor, position, k)

    def observe(self, span):  # type: ignore[no-untyped-def]
        time.sleep(0.006)


@pytest.mark.parametrize("slow", [True, False])
def test_a_decoded_turn_has_one_entry_per_round_and_phase(slow: bool) -> None:
    """Fails if a phase is skipped, entered twice, or pays for its neighbour."""
    target, prompt = toy_target(), toy_turns()[0]
    text = greedy_text(target, prompt, 30)
    drafter = (SlowDrafter if slow else ScriptedDrafter)([text], errs=every(4))
    drafter.open(target.info, rows=1, capacity=512)
    session = Session(target, {"d": drafter})
    session.prefill(prompt, lambda logits: int(logits.argmax()))
    turn, times, _ = session.decode("d", Limits(3, 14), row_sampler(target, GREEDY), HostClock(CPU))
    assert turn.output == text[len(prompt) :][:14]
    assert times.rounds_s is not None and times.phases_s is not None and times.other_s is not None
    assert {name: len(spent) for name, spent in times.rounds_s.items()} == dict.fromkeys(PHASES, len(turn.rounds))
    assert times.other_s >= 0
    assert sum(times.phases_s.values()) + times.other_s == pytest.approx(times.total_s, abs=1e-9)
    if slow:
        assert min(times.rounds_s["draft"]) >= 0.003 and min(times.rounds_s["draft_append"]) >= 0.006


def test_a_turn_without_rounds_has_no_phases_entered() -> None:
    """Fails if a turn that ends on its prefill token is charged a round."""
    target = toy_target()
    clock = HostClock(CPU)
    clock.begin()
    turn = Turn(position=0, output=[3])
    decode(target, PlainDrafter(), [turn], Limits(4, 9, frozenset([3])), row_sampler(target, GREEDY), clock)
    assert clock.end().rounds_s == {name: [] for name in PHASES}


def test_passes_of_each_mode() -> None:
    """Fails if a mode measures twice what one pass gives, or takes a speed-up from the attribution clock."""
    assert clocks("host", CPU) == [(True, HostClock)]
    assert clocks("wall", CPU) == [(True, Clock)]
    assert clocks("attribution", CPU) == [(False, HostClock)]
    assert clocks("both", CPU) == [(True, Clock), (False, HostClock)]
    assert resolve_mode("auto", CPU) == "host" and resolve_mode("auto", torch.device("cuda")) == "both"
    assert resolve_mode("wall", torch.device("cuda")) == "wall"


def test_stopwatch_and_phase_cost() -> None:
    """Fails if a stopwatch misses what ran inside, or if the clock's own cost is not a small positive number."""
    with Stopwatch(CPU) as watch:
        time.sleep(0.004)
    assert watch.seconds >= 0.004
    assert 0 < phase_cost_s(CPU, repeats=200) < 1e-3
