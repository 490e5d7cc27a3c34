"""What a round costs at each K when warm: drafting so many tokens, and all else with as many verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from torch import Tensor, nn

from agentbench_spec.drafting import Drafter, Proposal, Span
from agentbench_spec.engine.adaptive import RoundCost, choices
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import RowSampler
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Times, clocks

_ROUNDS = 5
"""Rounds timed at each K."""


class Missing(Drafter):
    """A drafter that takes as long, but proposes k tokens whatever it finds, each of them another than it meant.

    So a round verifies k tokens, accepts none, and the text grows by one token whatever k is.
    """

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self._drafter, self._vocab_size, self.spec = drafter, vocab_size, drafter.spec

    def observe(self, span: Span) -> None:
        """As the drafter."""
        self._drafter.observe(span)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """What the drafter proposes, each id one further, filled up to k."""
        self._drafter.sampler = self.sampler
        ids = self._drafter.propose(anchor, position, k).ids
        return Proposal((nn.functional.pad(ids, (0, k - ids.shape[1])) + 1) % self._vocab_size)

    def truncate(self, row: int, length: int) -> int | None:
        """As the drafter."""
        return self._drafter.truncate(row, length)


def measure_round_costs(
    target: Target, drafter: Drafter, limits: Limits, prompt: Sequence[int], sampler: Callable[[], RowSampler]
) -> dict[int, RoundCost]:
    """Seconds of a round after `prompt`, by every K that may be chosen; empty if no turn has a round.

    sampler: random numbers, begun anew for each K. The drafter must be warm and its row empty, and is so again after.
    Raises what the drafter raises.
    """
    session = Session(target, {"": Missing(drafter, target.info.vocab_size)}, chunk_tokens=len(prompt))
    ((_, clock),) = clocks("attribution", target.info.device)
    costs = {}
    try:
        session.prefill(prompt, lambda logits: int(logits.argmax()))
        for why in session.failed.values():
            raise why
        for k in choices(limits.asked(drafter.spec.max_tokens)) if limits.max_new_tokens > 1 else ():
            few = replace(limits, k=k, max_new_tokens=min(_ROUNDS + 1, limits.max_new_tokens), stop_ids=frozenset())
            costs[k] = _cost(session.decode("", few, sampler(), clock(target.info.device))[1])
    finally:
        session.reset()
    return costs


def _cost(times: Times) -> RoundCost:
    drafts_s = (times.rounds_s or {})["draft"]
    rest_s = [round_s - draft_s for round_s, draft_s in zip(times.round_s, drafts_s, strict=True)]
    return RoundCost(median(drafts_s), median(rest_s))


def as_dict(costs: Mapping[int, RoundCost]) -> dict[str, Any]:
    """Plain values, for the manifest."""
    return {str(k): {"draft_s": round(c.draft_s, 6), "rest_s": round(c.rest_s, 6)} for k, c in costs.items()}
