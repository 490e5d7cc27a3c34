"""Capturing the rounds of a drafter before the first clock: every step they may take, on a text of no meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal
from agentbench_spec.engine.loop import Turn, step
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import RowSampler
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.steps.static_target import width_for
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock

_PROMPT_TOKENS = 24


class Guesses(Drafter):
    """Stands for any look-up in a round in which it guesses so many tokens."""

    host_only = True

    def __init__(self, like: DrafterSpec, tokens: int) -> None:
        self.spec, self._tokens = replace(like, name=f"{like.name} guessing {tokens}"), tokens

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Token 0, again and again."""
        return Proposal(torch.zeros(len(anchor), min(self._tokens, k), dtype=torch.int64))


def capture(
    target: Target, drafter: Drafter, limits: Limits, sampler: Callable[[], RowSampler], *, rows: int, forced: bool
) -> None:
    """Capture every step of the drafter's rounds; its first `rows` rows must be empty, and are so again after.

    limits, sampler: of the run; forced: its turns emit a record. Raises what the drafter, or the capture, raises.
    """
    assert target.static is not None
    for each in _standing_for(drafter, limits):
        prompt = [7 * i % target.info.vocab_size for i in range(min(_PROMPT_TOKENS, target.capacity // 2))]
        sessions = [Session(target, {"": each}, row=row, chunk_tokens=len(prompt)) for row in range(rows)]
        try:
            anchors = [session.prefill(prompt, lambda logits: logits.argmax()).anchor for session in sessions]
            for session in sessions:
                for why in session.failed.values():
                    raise why
            for _ in _paths(each):
                for stage in ("warming", "capturing"):
                    with target.static.graphs.stage(stage):
                        _round(target, each, limits, sampler(), anchors, len(prompt), forced=forced)
        finally:
            for session in sessions:
                session.reset()


def _standing_for(drafter: Drafter, limits: Limits) -> Iterator[Drafter]:
    """The drafter itself; for one that works on the host, one for each width its guesses may be padded to."""
    if not drafter.host_only:
        yield drafter
        return
    k = limits.asked(drafter.spec.max_tokens)
    for tokens in sorted({min(width_for(n + 1) - 1, k) for n in range(k + 1)}, reverse=True):
        yield Guesses(drafter.spec, tokens)


def _paths(drafter: Drafter) -> Iterator[None]:
    """Each of the ways that a round of the drafter can go, taken while it is given."""
    several: Any = drafter
    try:
        for path in getattr(drafter, "paths", (None,)):
            several.forced_path = path
            yield
    finally:
        several.forced_path = None


@torch.inference_mode()
def _round(
    target: Target,
    drafter: Drafter,
    limits: Limits,
    sampler: RowSampler,
    anchors: list[int],
    position: int,
    *,
    forced: bool,
) -> None:
    """One round of every row, thrown away."""
    few = replace(limits, max_new_tokens=limits.k + 2)
    turns = [Turn(position, [anchor], [anchor] * (limits.k + 2) if forced else None) for anchor in anchors]
    step(target, drafter, turns, few, sampler, Clock(target.info.device))
    for row in range(len(turns)):
        drafter.truncate(row, position)
        target.truncate(row, position)
