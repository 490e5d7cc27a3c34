"""What the shared prefill takes longer for the hidden states that drafters are given."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

import torch

from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Stopwatch

_TOKENS, _PASSES = 128, 5


@torch.inference_mode()
def taps_cost(target: Target, taps: Collection[int]) -> float:
    """Prefill seconds with taps over those without, less 1: medians of alternating passes, the first pair a rehearsal.

    Nothing is committed: the text of the engine's row stays what it was.
    """
    device = target.info.device
    tokens = min(_TOKENS, target.capacity - target.lengths[0])
    ids = torch.arange(tokens, device=device)[None] % target.info.vocab_size
    spent: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(1 + _PASSES):
        for tapped, own in spent.items():
            with Stopwatch(device) as watch:
                target.evaluate(0, [target.lengths[0]], ids, keep=1, taps=taps if tapped else ())
            own.append(watch.seconds)
    return median(spent[True][1:]) / median(spent[False][1:]) - 1
