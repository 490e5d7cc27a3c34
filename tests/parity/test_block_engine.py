"""Whole golden traces through the engine: prefill, propose, verify, accept, observe, stop rules and caps included.

Two rules of the engine differ from the published loops on purpose, and only cost rounds that emit nothing: a turn
that ends on its prefill token has no round, and no round is run when only the anchor is left to emit. So the engine's
rounds must be the first of the recorded ones, and what is left over must be such a round.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from golden_block import DATA, SETS, all_cases, committed_text, make_drafter, recorded
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentbench_spec.drafting import Drafter, Proposal, Span, TargetInfo
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler, Sampling, generator
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock

CPU = torch.device("cpu")


class Recording(Drafter):
    """Passes everything through and notes what each round proposed and what the target was fed."""

    def __init__(self, inner: Drafter) -> None:
        self._inner, self.spec = inner, inner.spec
        self.proposed: list[list[int]] = []
        self.verified: list[list[int]] = []

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self._inner.open(target, rows=rows, capacity=capacity)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self._inner.sampler = self.sampler
        proposal = self._inner.propose(anchor, position, k)
        self.proposed.append(proposal.ids[0].tolist())
        return proposal

    def observe(self, span: Span) -> None:
        if len(self.verified) < len(self.proposed):
            self.verified.append(span.input_ids[0].tolist())
        self._inner.observe(span)

    def truncate(self, row: int, length: int) -> None:
        self._inner.truncate(row, length)

    def state_bytes(self, row: int) -> int:
        return self._inner.state_bytes(row)


@cache
def engine(rows: int) -> Target:
    model = AutoModelForCausalLM.from_pretrained(DATA / "target", dtype=torch.float32).eval()
    return Target(model, name="golden", capacity=400, rows=rows)


def sampler(rows: int, sampling: Sampling = GREEDY) -> RowSampler:
    return RowSampler(sampling, [generator(CPU, "parity", row) for row in range(rows)])


def play(drafter: Drafter, case: dict[str, Any], *, chunk: int = 512) -> tuple[Recording, Turn]:
    """One case through a session of the engine."""
    target = engine(1)
    recording = Recording(drafter)
    recording.open(target.info, rows=1, capacity=target.capacity)
    session = Session(target, {"draft": recording}, chunk_tokens=chunk)
    picks = committed_text(case)[0][len(case["prompt_ids"]) :] if "first_pick" in case else None
    session.prefill(case["prompt_ids"], lambda logits: picks[0] if picks else int(logits.argmax()))
    assert session.failed == {}
    k = case["verify_block_size"] - 1 if "verify_block_size" in case else 64
    limits = Limits(k, case["max_new_tokens"], frozenset(case["stop_token_ids"] or ()))
    turn, _, _ = session.decode("draft", limits, sampler(1), Clock(CPU), picks)
    return recording, turn


def check(name: str, case: dict[str, Any], recording: Recording, turn: Turn) -> None:
    """Compare a played case with its record."""
    golden, prompt = case["rounds"], len(case["prompt_ids"])
    count = len(turn.rounds)
    assert turn.output == case["output_ids"][prompt:]
    assert recording.proposed == [
        drafted[: len(ours)] for ours, drafted in zip(recording.proposed, golden["draft_tokens"], strict=False)
    ]
    assert recording.verified == golden["verify_input_ids"][:count]
    for index, done in enumerate(turn.rounds):
        if golden["next_token"][index] is None:  # DeepSpec cuts its count at an accepted stop token; ours is raw
            assert done.matched >= golden["accepted_draft"][index]
        else:
            assert done.matched + 1 == case["accept_lengths"][index]
    for start in golden["start"][count:]:
        only_anchor_left = start == prompt + case["max_new_tokens"] - 1
        assert only_anchor_left or (turn.stop_reason == "stop" and count == 0)


@pytest.mark.parametrize("name", SETS)
def test_every_case_plays_through_the_engine_as_recorded(name: str) -> None:
    """Fails if output, drafted tokens, verify inputs or accepted lengths of any case differ from the official loop."""
    for case in all_cases(name):
        recording, turn = play(make_drafter(name, case), case)
        check(name, case, recording, turn)


@pytest.mark.parametrize("name", ["dflash-zlab", "dspark-gated", "dlite-g3"])
def test_four_rows_in_one_engine_play_as_recorded(name: str) -> None:
    """Fails if rows that finish at different times, and idle ones, disturb each other."""
    cases = [case for case in recorded(name)["cases"] if case["tag"] in ("len2", "len17", "len96", "len200")]
    target = engine(4)
    drafter = make_drafter(name)
    drafter.open(target.info, rows=4, capacity=target.capacity)
    turns: list[Turn | None] = []
    for row, case in enumerate(cases):
        session = Session(target, {"draft": drafter}, row=row, chunk_tokens=30)
        done = session.prefill(case["prompt_ids"], lambda logits: int(logits.argmax()))
        turns.append(Turn(position=done.context_tokens, output=[done.anchor]))
    decode(target, drafter, turns, Limits(64, 48), sampler(4), Clock(CPU))
    for turn, case in zip(turns, cases, strict=True):
        prompt = len(case["prompt_ids"])
        assert turn is not None and turn.output == case["output_ids"][prompt : prompt + 48]


@pytest.mark.parametrize("name", ["dflash", "dflash-zlab", "dspark-rnn", "dlite-g2"])
def test_sampled_decoding_runs_and_hands_over_distributions(name: str) -> None:
    """Fails if drawing at temperature 1 breaks a shape, or a published default hands over the wrong kind of draft."""
    case = recorded(name)["cases"][5]
    drafter = make_drafter(name)
    target = engine(1)
    drafter.open(target.info, rows=1, capacity=target.capacity)
    session = Session(target, {"draft": drafter})
    session.prefill(case["prompt_ids"], lambda logits: int(logits.argmax()))
    turn, _, _ = session.decode("draft", Limits(7, 20), sampler(1, Sampling(1.0)), Clock(CPU))
    assert len(turn.output) == 20
    drafter.sampler = sampler(1, Sampling(1.0))
    session.prefill(case["prompt_ids"], lambda logits: int(logits.argmax()))
    proposal = drafter.propose(torch.tensor([turn.output[0]]), torch.tensor([len(case["prompt_ids"])]), 7)
    assert (proposal.probs is None) == (name in ("dflash-zlab", "dlite-g2"))


@pytest.mark.parametrize("name", ["dflash", "dspark-rnn", "dlite-g1", "dlite-g3"])
def test_a_turn_decoded_twice_from_one_prefill_is_the_same(name: str) -> None:
    """Fails if a thrown-away pass, as the second clock takes one, leaves the drafter elsewhere than it started."""
    case = recorded(name)["cases"][7]
    target, drafter = engine(1), make_drafter(name)
    drafter.open(target.info, rows=1, capacity=target.capacity)
    session = Session(target, {"draft": drafter})
    session.prefill(case["prompt_ids"], lambda logits: int(logits.argmax()))
    passes = [session.decode("draft", Limits(7, 40), sampler(1), Clock(CPU))[0] for _ in range(2)]
    assert passes[0].rounds == passes[1].rounds
    assert passes[0].output == passes[1].output == case["output_ids"][len(case["prompt_ids"]) :][:40]
