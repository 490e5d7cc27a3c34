"""What a drafter answers when asked, and how two answers differ, in words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
"""Largest difference between two ways of reaching one state, per target dtype (drafts' probabilities are float32)."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One row's valid proposal."""

    ids: list[int]
    probs: Tensor | None
    """[len(ids), V], or None for a point mass."""


Answer = Guess | str
"""A guess, or the error with which the drafter refused an anchor it had not been told of."""

View = list[tuple[str, Answer]]
"""(what was asked, the answer) of several questions to one row."""


def difference(ours: Answer, theirs: Answer, tolerance: float) -> str | None:
    """How two answers differ, in words; None if they agree. Ids drawn from agreeing probabilities may differ where
    the tolerance is not tight: a draw can fall on either side of a boundary."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return None if isinstance(ours, str) and isinstance(theirs, str) else f"got {ours}, expected {theirs}"
    for i in range(min(len(ours.ids), len(theirs.ids))):
        if (ours.probs is None) != (theirs.probs is None):
            return "one proposal has probabilities, the other is a point mass"
        if ours.probs is not None and theirs.probs is not None:
            apart = (ours.probs[i] - theirs.probs[i]).abs()
            if not float(apart.max()) <= tolerance:
                token = int(apart.argmax())
                mine, other = float(ours.probs[i, token]), float(theirs.probs[i, token])
                gap = f"probabilities of draft {i + 1} differ by {float(apart.max()):.2g}"
                return f"{gap} (token {token}: {mine:.3g}, expected {other:.3g})"
            if ours.ids[i] != theirs.ids[i] and tolerance > TOLERANCE[torch.float64]:
                return None
        if ours.ids[i] != theirs.ids[i]:
            break
    return None if ours.ids == theirs.ids else f"proposed {ours.ids}, expected {theirs.ids}"
