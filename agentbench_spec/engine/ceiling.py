"""How sure the target is of its own words: the ceiling of what exact acceptance can reach at temperature 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentbench_spec.engine.target import Target

_CHUNK = 64
"""Tokens run at once: the logits of a long output would fill the memory."""


@torch.inference_mode()
def mean_maximum(target: Target, row: int, position: int, output: Sequence[int]) -> float | None:
    """Mean over output[1:] of the target's largest probability at T = 1; None if nothing follows the first token.

    A draft that is a point mass is accepted with the probability that the target gives it, at most the largest one.
    position: of output[0] in the text of `row`, which ends there and is left as it is.
    """
    fed = list(output[:-1])
    total = 0.0
    try:
        for start in range(0, len(fed), _CHUNK):
            ids = torch.tensor([fed[start : start + _CHUNK]], device=target.info.device)
            logits = target.evaluate(row, [position + start], ids).logits[0]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            total += float((logits.amax(-1) - logits.logsumexp(-1)).exp().sum())
            target.commit(row, position + start + ids.shape[1])
    finally:
        target.truncate(row, position)
    return total / len(fed) if fed else None
