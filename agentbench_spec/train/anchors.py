"""Which positions blocks start at, and how much each predicted position counts (spec dlite, section 5.2)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["block_weights", "sample_anchors", "valid_anchors"]


def valid_anchors(supervised: Tensor, k: int) -> Tensor:
    """Positions a with a and a + 1 supervised and 1 <= a <= T - 1 - k, for supervised [T] bool; ascending int64.

    Position 0 has no target state before it. T counts padding, so a text padded by k keeps the blocks at its end.
    """
    last = len(supervised) - 1 - k
    if last < 1:
        return torch.empty(0, dtype=torch.int64, device=supervised.device)
    both = supervised[: last + 1] & supervised[1 : last + 2]
    both = both.clone()
    both[0] = False
    return both.nonzero().flatten()


def sample_anchors(valid: Tensor, count: int | None, generator: torch.Generator) -> Tensor:
    """At most `count` of the positions `valid`, uniformly, without replacement, ascending; None: all of them."""
    if count is None or len(valid) <= count:
        return valid
    order = torch.randperm(len(valid), generator=generator)[:count]
    return valid[order.to(valid.device)].sort().values


def block_weights(supervised: Tensor, anchors: Tensor, decay: Tensor) -> Tensor:
    """Weight of position anchor + i [A, K]: decay [K], and 0 from the first unsupervised position on."""
    ahead = anchors[:, None] + torch.arange(1, len(decay) + 1, device=anchors.device)
    return supervised[ahead].to(decay.dtype).cumprod(1) * decay
