"""Speculative decoding of one turn. This file is the whole loop, for every method, the baseline included.

anchor ──► propose ──► verify ──► accept ──► observe ──┐
  ▲        k guesses   one target  longest   the drafter │
  │                    pass over   prefix    learns what │
  │                    k + 1       + 1       was kept    │
  └──────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, Span
from agentbench_spec.engine.proposals import Drafted, drafts_of
from agentbench_spec.engine.rounds import Limits, Turn
from agentbench_spec.engine.sampling import RowSampler, pick, probabilities
from agentbench_spec.engine.spans import Asked, Feed, Numbers, following, host_span, kept_of, span_of, stays_on_host
from agentbench_spec.engine.target import Evaluated, Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.engine.verify import Verdict, accept_equal, accept_sampled, read_back, sound
from agentbench_spec.errors import MeasurementError

__all__ = ["Turn", "accept", "decode", "step"]


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    turns: Sequence[Turn | None],
    limits: Limits,
    sampler: RowSampler,
    clock: Clock,
    after_round: Callable[[], None] = lambda: None,
) -> None:
    """Decode every turn to its end, in place. turns[row] is the turn of each engine row; None: an idle row.

    after_round: hears that a round is over, inside the clock. Raises what it raises, ContractError if the drafter's
    proposal breaks its contract, MeasurementError if only some turns are forced.
    """
    live = [turn for turn in turns if turn is not None]
    if len({turn.reference is None for turn in live}) > 1:
        raise MeasurementError("forced turns and free ones cannot share a batch")
    for begun in live:
        begun.end(limits)  # a turn may end on its prefill token: no round, no τ
    while any(turn.stop_reason is None for turn in live):
        step(target, drafter, turns, limits, sampler, clock)
        after_round()


@torch.inference_mode()
def step(
    target: Target, drafter: Drafter, turns: Sequence[Turn | None], limits: Limits, sampler: RowSampler, clock: Clock
) -> None:
    """One round of every turn that has not ended, in place; rows may be filled and emptied between two steps.

    turns: one for each of the first B engine rows, those the drafter is open for. Raises ContractError, NotFinite.
    """
    drafter.sampler = sampler
    k = limits.asked(drafter.spec.max_tokens)
    decoding = [turn if turn is not None and turn.stop_reason is None else None for turn in turns]
    with clock.phase("draft"):
        drafted, feed = drafts_of(drafter, _asked(decoding, target, limits, k), k, target)
    with clock.phase("verify"):
        block = torch.cat([feed.anchor[:, None], drafted.ids], dim=1)  # [B, 1 + k]
        evaluated = target.evaluate(0, feed.start, block, taps=drafter.spec.hidden_layers)
    with clock.phase("accept"):
        verdict = accept(evaluated.logits, drafted, feed.record, sampler, k)
        next_ids = following(drafted.ids, verdict.matched, verdict.next_ids)
        outcome = read_back(next_ids, verdict.matched, drafted.count, sound(evaluated.logits))
        kept = [0] * len(turns)
        for row, turn in enumerate(decoding):
            if turn is not None:
                *tokens, matched, proposed, finite = outcome[row]
                target.check_finite(row, turn.position, finite, matched)
                source = drafted.source[row] if drafted.source else None
                kept[row] = turn.take(tokens[: matched + 1], proposed, limits, source, k)
                target.commit(row, turn.position)
    with clock.phase("draft_append"):
        drafter.observe(_span(drafter, feed, decoding, kept, block, next_ids, verdict, evaluated))
    if limits.chooser is not None:
        limits.chooser.learn(k, [turn.rounds[-1] for turn in decoding if turn], clock.since_round_s())


def _span(
    drafter: Drafter,
    feed: Feed,
    decoding: Sequence[Turn | None],
    kept: Sequence[int],
    block: Tensor,
    next_ids: Tensor,
    verdict: Verdict,
    evaluated: Evaluated,
) -> Span:
    """What became of the round, where the drafter works; its counts are made on the device, not copied there."""
    tokens = [turn.output[-1 - kept[row] : -1] if turn else [] for row, turn in enumerate(decoding)]
    rows, device = range(len(kept)), block.device
    if device.type == "cpu":
        counts = torch.tensor(kept)
    elif stays_on_host(drafter, device):
        after = [turn.output[len(turn.output) - kept[row] :] if turn else [] for row, turn in enumerate(decoding)]
        return host_span(rows, feed.start, kept, tokens, after)
    else:
        counts = kept_of(next_ids, verdict.matched, feed)
    everyone = Numbers(rows, torch.arange(len(kept), device=device))
    return span_of(drafter, everyone, feed.start, Numbers(kept, counts), block, next_ids, evaluated, tokens)


def _asked(decoding: Sequence[Turn | None], target: Target, limits: Limits, k: int) -> Asked:
    forced = any(turn is not None and turn.reference is not None for turn in decoding)
    return Asked(
        anchors=[turn.output[-1] if turn else 0 for turn in decoding],
        positions=[turn.position if turn else -1 for turn in decoding],
        starts=[turn.position if turn else target.lengths[row] for row, turn in enumerate(decoding)],
        rooms=[turn.room(limits) if turn else 0 for turn in decoding],
        ahead=[turn.ahead(k + 1) if turn else () for turn in decoding] if forced else None,
        stop_ids=tuple(limits.stop_ids),
    )


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
