"""One round, each step launched as it comes: the host may look at what is on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.proposals import Drafted, drafts_of
from agentbench_spec.engine.sampling import RowSampler, pick, probabilities
from agentbench_spec.engine.spans import Asked, Feed, Numbers, following, host_span, kept_of, span_of, stays_on_host
from agentbench_spec.engine.target import Evaluated, Target
from agentbench_spec.engine.verify import Verdict, accept_equal, accept_sampled, sound, to_read

Tokens = Sequence[Sequence[int]]
"""Tokens of each row."""


class PlainRound:
    """The steps of one round of B rows, in the order in which they are defined."""

    drafted: Drafted
    feed: Feed
    block: Tensor
    """[B, 1 + n] int64: the anchors and their drafts."""
    evaluated: Evaluated
    verdict: Verdict
    next_ids: Tensor
    """[B, 1 + n] int64: the token after each position of the block."""

    def __init__(self, target: Target, drafter: Drafter, asked: Asked, k: int, sampler: RowSampler) -> None:
        """k: the most drafts that are asked for."""
        self.target, self.drafter, self.asked, self.k, self.sampler = target, drafter, asked, k, sampler

    def draft(self) -> None:
        """Ask the drafter. Raises ContractError if its proposal breaks the contract."""
        self.drafter.sampler = self.sampler
        self.drafted, self.feed = drafts_of(self.drafter, self.asked, self.k, self.target)

    def verify(self) -> None:
        """Run anchors and drafts through the target."""
        self.block = torch.cat([self.feed.anchor[:, None], self.drafted.ids], dim=1)
        self.evaluated = self.target.evaluate(0, self.feed.start, self.block, taps=self.drafter.spec.hidden_layers)

    def accept(self) -> list[list[int]]:
        """The target's word, row by row: the token after each position fed, then matched, proposed, sound positions."""
        drafted, logits = self.drafted, self.evaluated.logits
        self.verdict = accept(logits, drafted, self.feed.record, self.sampler, self.k)
        self.next_ids = following(drafted.ids, self.verdict.matched, self.verdict.next_ids)
        outcome = to_read(self.next_ids, self.verdict.matched, drafted.count, sound(logits))
        return outcome.tolist()

    def observe(self, kept: Sequence[int], tokens: Tokens, after: Tokens) -> None:
        """Tell the drafter what became of it: how many positions count, their tokens, and the one after each."""
        rows, device = range(len(kept)), self.block.device
        if stays_on_host(self.drafter, device):
            self.drafter.observe(host_span(rows, self.feed.start, kept, tokens, after))
            return
        on_cpu = device.type == "cpu"
        counts = torch.tensor(kept) if on_cpu else kept_of(self.next_ids, self.verdict.matched, self.feed)
        everyone = Numbers(rows, torch.arange(len(kept), device=device))
        block, next_ids, evaluated = self.block, self.next_ids, self.evaluated
        start, count = self.feed.start, Numbers(kept, counts)
        self.drafter.observe(span_of(self.drafter, everyone, start, count, block, next_ids, evaluated, tokens))


def accept(logits: Tensor, drafted: Drafted, record: Tensor | None, sampler: RowSampler, asked: int) -> Verdict:
    """The target's word on a round: equality with its own choice (greedy, forced), or rejection sampling.

    logits [B, n + 1, V]; record [B, k + 1] of forced turns; asked: k before trimming, so that a row's random numbers do
    not depend on how many drafts the other rows of the round have.
    """
    drafts, count, n = drafted.ids, drafted.count, drafted.ids.shape[1]
    if record is not None:
        verdict = accept_equal(record[:, : n + 1], drafts, count)
        return Verdict(verdict.matched, verdict.next_ids.clamp_min(0))  # past the record's end: clipped by the turn
    if sampler.greedy:
        return accept_equal(logits.argmax(-1), drafts, count)
    p = probabilities(logits, sampler.sampling)
    uniform = sampler.uniform(asked + 1)
    matched, after = accept_sampled(p, drafts, drafted.probs, uniform[:, :n], count)
    return Verdict(matched, pick(after, uniform[:, asked]))
