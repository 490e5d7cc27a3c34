"""Field cases 11 and 12: the target as its own drafter, and draft state that is kept between turns."""

from __future__ import annotations

import pytest
import torch
from toy_drafters import Bigram, Chain, SelfDraft

from agentbench_spec.drafting import Drafter, Span
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.engine.spans import span_of
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.testing import Played, greedy_text, play_turns, row_sampler, toy_target, toy_turns

K = 4


def begun(target: Target, drafter: Drafter, prompts: list[list[int]]) -> list[Turn | None]:
    """All rows prefilled, each with its own prompt, and their anchors chosen greedily."""
    turns: list[Turn | None] = []
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        evaluated = target.evaluate(row, [0], ids, taps=drafter.spec.hidden_layers)
        target.commit(row, len(prompt))
        anchor = int(evaluated.logits[0, -1].argmax())
        after = torch.tensor([[*prompt[1:], anchor]])
        drafter.observe(span_of(drafter, [row], [0], [len(prompt)], ids, after, evaluated))
        turns.append(Turn(position=len(prompt), output=[anchor]))
    return turns


@pytest.mark.parametrize("rows", [1, 4])
def test_the_target_as_its_own_drafter_is_accepted_whole(rows: int) -> None:
    """Field case 11: fails if positions, KV or counts of a row go astray, alone (100 %) or in a ragged batch (94 %)."""
    target = toy_target(rows=rows)
    drafter = SelfDraft(toy_target(rows=rows))
    drafter.open(target.info, rows=rows, capacity=target.capacity)
    prompts = [prompt[row:] for row, prompt in enumerate(toy_turns()[:rows])]
    turns = begun(target, drafter, prompts)
    caps = Limits(k=K, max_new_tokens=24)  # 1 + 4 x 5 tokens, then a clipped round of 3
    decode(target, drafter, turns, caps, row_sampler(target, GREEDY, 0), Clock(target.info.device))
    for prompt, turn in zip(prompts, turns, strict=True):
        assert turn is not None
        assert [(r.matched, r.emitted) for r in turn.rounds] == [(K, K + 1)] * 4 + [(K, 3)]
        assert turn.output == greedy_text(toy_target(), prompt, 24)[len(prompt) :]


class Counting:
    """Counts the positions that were shown to it, in a look-up or in a network drafter."""

    shown_tokens = 0

    def observe(self, span: Span) -> None:
        self.shown_tokens += int(span.count.sum())
        super().observe(span)  # type: ignore[misc]


class CountingBigram(Counting, Bigram):
    pass


class CountingChain(Counting, Chain):
    pass


def play_counted(make: type[Drafter], cold: bool) -> tuple[list[Played], list[int]]:
    """Three turns, and how many positions the drafter was shown before the decoding of each."""
    played, ingested = [], []
    for turns in range(1, 4):
        target, drafter = toy_target(), make()
        drafter.open(target.info, rows=1, capacity=target.capacity)
        played = play_turns(target, {"counting": drafter}, toy_turns()[:turns], k=K, cold=cold)
        decoded = sum(r.emitted for turn in played for r in turn.turns["counting"].rounds)
        ingested.append(drafter.shown_tokens - decoded)
    return played, [after - before for before, after in zip([0, *ingested], ingested, strict=False)]


@pytest.mark.parametrize("make", [CountingBigram, CountingChain])
def test_a_kept_prefix_is_not_ingested_again(make: type[Drafter]) -> None:
    """Field case 12: fails if a drafter is shown text that it holds, misses text that it lacks, or if it matters to τ.

    Prompts of 21, 39 and 53 tokens; the third drops the last four tokens of the second.
    """
    warm, warm_tokens = play_counted(make, cold=False)
    cold, cold_tokens = play_counted(make, cold=True)
    assert warm_tokens == [21, 39 - 20, 53 - 34]
    assert cold_tokens == [21, 39, 53]
    assert [t.prefill.new_tokens for t in warm] == warm_tokens
    assert all(turn.prefill.ingest_s["counting"] > 0 for turn in warm)
    for kept, reset in zip(warm, cold, strict=True):
        assert kept.turns["counting"].rounds == reset.turns["counting"].rounds
        assert kept.turns["counting"].output == reset.turns["counting"].output
