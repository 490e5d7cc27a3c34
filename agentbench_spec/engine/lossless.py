"""Is the output what plain decoding would have said? Near ties are told apart from bugs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentbench_spec.engine.target import Target
from agentbench_spec.results.rows import Divergence

TIE_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
"""Largest logit gap that rounding may flip, per dtype: one-token and k-token passes add in different orders."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A drafter's output against the baseline's."""

    kind: Divergence
    at: int | None = None
    """First output position that differs."""
    margin: float | None = None
    """Logit gap there between the target's top token and the worse of the two emitted."""


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """First index at which two outputs differ (one may also end early); None if they are equal."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return i
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def compare(
    target: Target, row: int, position: int, ours: Sequence[int], baseline: Sequence[int], tolerance: float
) -> Comparison:
    """Compare two greedy outputs whose first token sits at text position `position` of `row`.

    Where they differ, the target is run once more over the shared tokens to see how close the two choices were. A gap
    within `tolerance` is a tie; anything else, an early end included, is an error.
    """
    at = first_difference(ours, baseline)
    if at is None:
        return Comparison("none")
    if at == 0 or at >= min(len(ours), len(baseline)):
        return Comparison("error", at)
    margin = gap(_logits_after(target, row, position, baseline[:at]), ours[at], baseline[at])
    return Comparison("tie" if margin <= tolerance else "error", at, margin)


def gap(logits: Tensor, a: int, b: int) -> float:
    """Top logit minus the smaller of those of tokens a and b. logits [V]."""
    return float(logits.max() - torch.minimum(logits[a], logits[b]))


def _logits_after(target: Target, row: int, position: int, tokens: Sequence[int]) -> Tensor:
    """Logits [V] that follow `tokens`, whose first one sits at `position`; counts nothing."""
    fed = torch.tensor([list(tokens)], device=target.info.device)
    return target.evaluate(row, [position], fed, keep=1).logits[0, -1]
