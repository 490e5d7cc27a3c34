"""Speculative decoding of one turn. This file is the whole loop, for every method, the baseline included.

What each step does is in steps/plain_round.py; steps/static_round.py does the same so that a CUDA graph can hold it.

anchor ──► propose ──► verify ──► accept ──► observe ──┐
  ▲        k guesses   one target  longest   the drafter │
  │                    pass over   prefix    learns what │
  │                    k + 1       + 1       was kept    │
  └──────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.rounds import Limits, Turn
from agentbench_spec.engine.sampling import RowSampler
from agentbench_spec.engine.spans import Asked
from agentbench_spec.engine.steps.plain_round import PlainRound, Tokens
from agentbench_spec.engine.steps.static_round import StaticRound
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import MeasurementError

__all__ = ["Turn", "decode", "step"]


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
    k = limits.asked(drafter.spec.max_tokens)
    decoding = [turn if turn is not None and turn.stop_reason is None else None for turn in turns]
    kind = PlainRound if target.static is None else StaticRound
    this = kind(target, drafter, _asked(decoding, target, limits, k), k, sampler)
    with clock.phase("draft"):
        this.draft()
    with clock.phase("verify"):
        this.verify()
    with clock.phase("accept"):
        outcome, kept = this.accept(), [0] * len(turns)
        for row, turn in enumerate(decoding):
            if turn is not None:
                *tokens, matched, proposed, finite = outcome[row]
                target.check_finite(row, turn.position, finite, matched)
                source = this.drafted.source[row] if this.drafted.source else None
                kept[row] = turn.take(tokens[: matched + 1], proposed, limits, source, k)
                target.commit(row, turn.position)
    with clock.phase("draft_append"):
        this.observe(kept, *_said(decoding, kept))
    if limits.chooser is not None:
        limits.chooser.learn(k, [turn.rounds[-1] for turn in decoding if turn], clock.since_round_s())


def _said(decoding: Sequence[Turn | None], kept: Sequence[int]) -> tuple[Tokens, Tokens]:
    """What each row committed, and the token after each of these."""
    rows = list(zip(decoding, kept, strict=True))
    tokens = [turn.output[-1 - count : -1] if turn else [] for turn, count in rows]
    return tokens, [turn.output[len(turn.output) - count :] if turn else [] for turn, count in rows]


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
