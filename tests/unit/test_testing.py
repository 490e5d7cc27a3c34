"""The doubles must be what they claim, or every test built on them says nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from agentbench_spec.errors import MeasurementError
from agentbench_spec.testing import (
    PlainDrafter,
    ScriptedDrafter,
    every,
    greedy_text,
    play_turns,
    toy_model,
    toy_target,
    toy_turns,
)


@pytest.mark.parametrize(("vocab", "least"), [(64, 20), (8, 5)])
def test_greedy_text_of_the_toy_target_is_varied(vocab: int, least: int) -> None:
    """Fails if the weights degenerate: on one repeating token, every drafter looks perfect."""
    target = toy_target(vocab=vocab)
    for prompt in toy_turns(vocab=vocab):
        assert len(set(greedy_text(target, prompt, 60)[len(prompt) :])) >= least


def test_toy_weights_are_repeatable_and_leave_the_global_generator_alone() -> None:
    """Fails if toy weights come from global randomness, which would couple tests to their order."""
    before = torch.random.get_rng_state()
    first, second = toy_model(seed=3), toy_model(seed=3)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(toy_model(seed=4).lm_head.weight, first.lm_head.weight)


def test_greedy_text_equals_stock_generate() -> None:
    """Fails if the engine's cache or attention changes what the stock model says."""
    model, prompt = toy_model(), toy_turns()[1]
    stock = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0].tolist()
    assert greedy_text(toy_target(), prompt, 20) == stock


def test_greedy_text_refuses_an_empty_prompt() -> None:
    """Fails if an empty prompt is run as if it said something."""
    with pytest.raises(MeasurementError, match="at least one"):
        greedy_text(toy_target(), [], 1)


def test_toy_turns_grow_and_rewrite_history() -> None:
    """Fails if the turns stop exercising what agents do: growth, and prompts that are no extension of the last."""
    turns = toy_turns()
    extends = [after[: len(before)] == before for before, after in pairwise(turns)]
    assert extends == [True, False, True, False]
    assert [len(t) for t in turns] == sorted(len(t) for t in turns)
    assert turns == toy_turns()


def test_scripted_drafter_gives_exact_accept_counts() -> None:
    """Fails if an error pattern is off by one: at k = 4 and errors at multiples of 5, the counts are known."""
    target = toy_target()
    prompt = toy_turns()[0][:20]
    text = greedy_text(target, prompt, 40)
    drafter = ScriptedDrafter([text], errs=every(5))
    drafter.open(target.info, rows=1, capacity=target.capacity)
    [played] = play_turns(target, {"scripted": drafter}, [prompt], k=4, max_new_tokens=21)
    turn = played.turns["scripted"]
    # anchor at 20: guesses 21..24 stand and 25 is the bonus; anchor at 25: 26..29 stand, 30 is the bonus; ...
    assert [(r.proposed, r.matched, r.emitted) for r in turn.rounds] == [(4, 4, 5)] * 4
    assert turn.output == text[20:41]
    drafter = ScriptedDrafter([text], errs=every(4))
    drafter.open(target.info, rows=1, capacity=target.capacity)
    [played] = play_turns(target, {"scripted": drafter}, [prompt], k=4, max_new_tokens=13)
    # anchor at 20: the guess for 24 is wrong, so 3 stand and the target corrects it
    assert [r.matched for r in played.turns["scripted"].rounds] == [3, 3, 3]


def test_play_turns_prefills_only_what_is_new() -> None:
    """Fails if a session re-runs text it holds, or keeps text that a later prompt rewrote."""
    target, turns = toy_target(), toy_turns()
    plain = PlainDrafter()
    warm = play_turns(target, {"plain": plain}, turns, k=0, max_new_tokens=6, chunk_tokens=7)
    cold = play_turns(target, {"plain": plain}, turns, k=0, max_new_tokens=6, cold=True)
    assert [p.turns["plain"].output for p in warm] == [p.turns["plain"].output for p in cold]
    assert [p.prefill.new_tokens for p in cold] == [len(t) for t in turns]
    # kept: the common prefix but one token (its follower is new); turn 4 rewrites token 11
    assert [p.prefill.reused_tokens for p in warm] == [0, 20, 34, 52, 10]
