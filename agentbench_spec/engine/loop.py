"""Speculative decoding of one turn. This file is the whole loop, for every method, the baseline included.

anchor ──► propose ──► verify ──► accept ──► observe ──┐
  ▲        k guesses   one target  longest   the drafter │
  │                    pass over   prefix    learns what │
  │                    k + 1       + 1       was kept    │
  └──────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.proposals import drafts_of
from agentbench_spec.engine.rounds import Limits, Round
from agentbench_spec.engine.sampling import RowSampler, pick, probabilities
from agentbench_spec.engine.spans import following, span_of
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.engine.verify import Verdict, accept_equal, accept_sampled, read_back, recorded, sound
from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.rows import StopReason


@dataclass(slots=True)
class Turn:
    """One row's turn: its prefill is done and its anchor, the first output token, is chosen."""

    position: int
    """Text position of the anchor."""
    output: list[int]
    """Emitted ids, the prefill token first; the last one is the anchor."""
    reference: Sequence[int] | None = None
    """Forced decoding: what the target "chooses", output[0] included."""
    rounds: list[Round] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def take(
        self, tokens: Sequence[int], proposed: int, limits: Limits, source: str | None = None, asked: int | None = None
    ) -> int:
        """Append the round's accepted drafts and next token, clipped; returns how many were kept."""
        kept = limits.clip(tokens[: self._room(limits)])
        self.output.extend(kept)
        self.position += len(kept)
        self.rounds.append(Round(proposed, len(tokens) - 1, len(kept), source, asked))
        self.end(limits)
        return len(kept)

    def end(self, limits: Limits) -> None:
        """Set the stop reason if the turn is over."""
        if self.output[-1] in limits.stop_ids:
            self.stop_reason = "stop"
        elif self.reference is not None and len(self.output) >= len(self.reference):
            self.stop_reason = "end_of_record"
        elif len(self.output) >= limits.max_new_tokens:
            self.stop_reason = "length"

    def _room(self, limits: Limits) -> int:
        cap = limits.max_new_tokens if self.reference is None else min(limits.max_new_tokens, len(self.reference))
        return cap - len(self.output)

    def ahead(self, n: int) -> Sequence[int]:
        """The next n tokens of the record, fewer at its end; none if the turn is not forced."""
        return self.reference[len(self.output) :][:n] if self.reference is not None else ()


@torch.inference_mode()
def decode(
    target: Target, drafter: Drafter, turns: Sequence[Turn | None], limits: Limits, sampler: RowSampler, clock: Clock
) -> None:
    """Decode every turn to its end, in place. turns[row] is the turn of each engine row; None: an idle row.

    Raises ContractError if the drafter's proposal breaks its contract, MeasurementError if only some turns are forced.
    """
    live = [turn for turn in turns if turn is not None]
    if len({turn.reference is None for turn in live}) > 1:
        raise MeasurementError("forced turns and free ones cannot share a batch")
    for begun in live:
        begun.end(limits)  # a turn may end on its prefill token: no round, no τ
    while any(turn.stop_reason is None for turn in live):
        step(target, drafter, turns, limits, sampler, clock)


@torch.inference_mode()
def step(
    target: Target, drafter: Drafter, turns: Sequence[Turn | None], limits: Limits, sampler: RowSampler, clock: Clock
) -> None:
    """One round of every turn that has not ended, in place; rows may be filled and emptied between two steps.

    turns: one for each of the first B engine rows, those the drafter is open for. Raises ContractError, NotFinite.
    """
    drafter.sampler = sampler
    k = limits.asked(drafter.spec.max_tokens)
    device = target.info.device
    decoding = [turn if turn is not None and turn.stop_reason is None else None for turn in turns]
    with clock.phase("draft"):
        anchor = torch.tensor([turn.output[-1] if turn else 0 for turn in decoding], device=device)
        position = torch.tensor([turn.position if turn else -1 for turn in decoding], device=device)
        drafts, probs, count, source = drafts_of(drafter, anchor, position, k, list(map(bool, decoding)), target)
    with clock.phase("verify"):
        start = [turn.position if turn else target.lengths[row] for row, turn in enumerate(decoding)]
        block = torch.cat([anchor[:, None], drafts], dim=1)  # [B, 1 + k]
        evaluated = target.evaluate(0, start, block, taps=drafter.spec.hidden_layers)
    with clock.phase("accept"):
        verdict = accept(evaluated.logits, drafts, probs, count, decoding, sampler, k)
        next_ids = following(drafts, verdict.matched, verdict.next_ids)
        outcome = read_back(next_ids, verdict.matched, count, sound(evaluated.logits))
        kept = [0] * len(turns)
        for row, turn in enumerate(decoding):
            if turn is not None:
                *tokens, matched, proposed, finite = outcome[row]
                target.check_finite(row, turn.position, finite, matched)
                kept[row] = turn.take(tokens[: matched + 1], proposed, limits, source[row] if source else None, k)
                target.commit(row, turn.position)
    with clock.phase("draft_append"):
        drafter.observe(span_of(drafter, range(len(turns)), start, kept, block, next_ids, evaluated))
    if limits.chooser is not None:
        limits.chooser.learn(k, [turn.rounds[-1] for turn in decoding if turn], clock.since_round_s())


def accept(
    logits: Tensor,
    drafts: Tensor,
    probs: Tensor | None,
    count: Tensor,
    decoding: Sequence[Turn | None],
    sampler: RowSampler,
    asked: int,
) -> Verdict:
    """The target's word on a round: equality with its own choice (greedy, forced), or rejection sampling.

    logits [B, k + 1, V]; drafts [B, k]; probs [B, k, V] or None; count [B]; asked: k before trimming, so that a row's
    random numbers do not depend on how many drafts the other rows of the round have.
    """
    k = drafts.shape[1]
    if any(turn is not None and turn.reference is not None for turn in decoding):
        record = recorded([turn.ahead(k + 1) if turn else () for turn in decoding], k + 1, logits.device)
        verdict = accept_equal(record, drafts, count)
        return Verdict(verdict.matched, verdict.next_ids.clamp_min(0))  # past the record's end: clipped by the turn
    if sampler.greedy:
        return accept_equal(logits.argmax(-1), drafts, count)
    p = probabilities(logits, sampler.sampling)
    uniform = sampler.uniform(asked + 1)
    matched, after = accept_sampled(p, drafts, probs, uniform[:, :k], count)
    return Verdict(matched, pick(after, uniform[:, asked]))
