"""Continuous batching: rows filled and emptied while others decode, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from agentbench_spec.drafting import Drafter, DrafterSpec, SequenceDrafter
from agentbench_spec.engine.batching import Pass, Request, Server, row_bytes, rows_that_fit
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.testing import PlainDrafter, greedy_text, play_turns, toy_target, toy_turns


class Repeat(SequenceDrafter):
    """Proposes what followed the last use of the anchor."""

    spec = DrafterSpec(name="repeat")

    def propose_one(self, row: int, text: Sequence[int], k: int) -> Sequence[int]:
        before = [i for i, token in enumerate(text[:-1]) if token == text[-1]]
        return text[before[-1] + 1 :][:k] if before else []


def conversations(count: int = 7, turns: int = 1) -> list[list[Request]]:
    """Rollouts of `turns` turns with prompts of different length."""
    return [
        [Request(f"r{i}", turn, prompt) for turn, prompt in enumerate(toy_turns(seed=i, turns=turns))]
        for i in range(count)
    ]


def serve(drafter: Drafter, rows: int, work: Sequence[Sequence[Request]], limits: Limits) -> Pass:
    target = toy_target(rows=4)
    drafter.open(target.info, rows=rows, capacity=target.capacity)
    return Server(target, drafter, limits, rows=rows, chunk_tokens=16).serve(work)


def alone(request: Request, limits: Limits) -> list[int]:
    """The turn decoded on its own, token by token, clipped at the first stop token."""
    text = greedy_text(toy_target(), request.prompt, limits.max_new_tokens)[len(request.prompt) :]
    stops = [i for i, token in enumerate(text) if token in limits.stop_ids]
    return text[: stops[0] + 1] if stops else text


LIMITS = Limits(k=3, max_new_tokens=24, stop_ids=frozenset(range(6)))
"""Stop tokens that end the rollouts' turns at different lengths."""


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("make", [PlainDrafter, Repeat])
def test_every_turn_comes_out_as_if_it_were_alone(make: type[Drafter], rows: int) -> None:
    """Fails if a row that is filled or emptied disturbs its neighbours, or a turn is lost or served twice."""
    work = conversations()
    done = serve(make(), rows, work, LIMITS)
    found = {served.request.id: served.turn.output for served in done.served}
    assert len(done.served) == len(work)
    assert found == {own[0].id: alone(own[0], LIMITS) for own in work}
    assert len({len(output) for output in found.values()}) > 3


def test_rows_work_at_once_and_none_idles_while_work_waits() -> None:
    """Fails if a row waits for the whole batch to end (static batching), or tokens are counted twice."""
    work = conversations()
    plain = Limits(k=0, max_new_tokens=24, stop_ids=LIMITS.stop_ids)
    one, four = (serve(PlainDrafter(), rows, work, plain) for rows in (1, 4))
    lengths = [len(served.turn.output) - 1 for served in one.served]
    assert one.emitted == four.emitted == len(one.steps) == sum(lengths)
    # greedy list scheduling: each next turn goes to the row that is free first
    ends = [0] * 4
    for length in lengths:
        ends[ends.index(min(ends))] += length
    assert len(four.steps) == max(ends) < len(one.steps) / 2
    assert {busy for _, _, busy in one.steps} == {1}
    assert four.steps[0][2] == 4 and all(tokens == busy for _, tokens, busy in four.steps)


def test_turns_of_a_rollout_keep_their_prefix() -> None:
    """Fails if a later turn is prefilled from scratch, or its drafter lost what it had seen."""
    work = conversations(count=5, turns=4)
    limits = Limits(k=3, max_new_tokens=10)
    done = serve(Repeat(), 2, work, limits)
    for own in work:
        drafter = Repeat()
        target = toy_target()
        drafter.open(target.info, rows=1, capacity=target.capacity)
        played = play_turns(target, {"d": drafter}, [r.prompt for r in own], k=3, max_new_tokens=10, chunk_tokens=16)
        for request, expected in zip(own, played, strict=True):
            (served,) = [s for s in done.served if s.request.id == request.id]
            assert served.turn.output == expected.turns["d"].output
            assert served.turn.rounds == expected.turns["d"].rounds
            assert served.prefill.new_tokens == expected.prefill.new_tokens


def test_what_does_not_fit_is_counted_and_the_rest_served() -> None:
    """Fails if one long prompt ends the pass, or vanishes from it."""
    long = [Request("long", 0, [7] * 500)]
    done = serve(PlainDrafter(), 2, [*conversations(2), long, []], LIMITS)
    assert len(done.served) == 2 and done.left_out == {"oversized": 1}


def test_a_turn_that_ends_on_its_prefill_token_takes_no_round() -> None:
    """Fails if such a turn blocks its row or is decoded all the same."""
    work = conversations(3)
    ends = frozenset(range(64))
    done = serve(PlainDrafter(), 2, work, Limits(k=0, max_new_tokens=24, stop_ids=ends))
    assert [len(served.turn.output) for served in done.served] == [1, 1, 1] and not done.steps


class Breaks(PlainDrafter):
    def observe(self, span: object) -> None:
        raise ValueError("out of notes")


def test_a_drafter_that_fails_over_a_prompt_voids_the_pass() -> None:
    """Fails if the pass goes on without the drafter it is about."""
    with pytest.raises(MeasurementError, match="out of notes"):
        serve(Breaks(), 2, conversations(2), LIMITS)


def test_memory_guard_says_what_it_takes() -> None:
    """Fails if rows are allocated that do not fit, or the reader is not told how much they need."""
    config = toy_target().info.config
    need = row_bytes(config, torch.float32, capacity=512, k=7)
    assert need == (2 * 4 * 2 * 8 * 512 + 8 * 64) * 4
    fit, notes = rows_that_fit([1, 2, 4, 8], 1_000_000_000, 2_500_000_000)
    assert fit == [1, 2] and len(notes) == 2
    assert "4 rows x 1,000 MB = 4.0 GB" in notes[0] and "2.5 GB are free" in notes[0]
    assert rows_that_fit([64], need, None) == ([64], [])
    with pytest.raises(ConfigError, match="engine has 4 rows"):
        serve(PlainDrafter(), 8, [], LIMITS)
