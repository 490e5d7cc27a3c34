"""What the shared prefill takes longer for the hidden states that drafters are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from statistics import median

import torch

from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Stopwatch
from agentbench_spec.results.clock_checks import TapsCost

_TOKENS = 64
_FURTHEST_TOKENS = 4096
"""The longest context before a chunk; the others are none and half of it."""
_BLOCKS, _ENOUGH_S = 4, 5.0
"""A block is a pair in either order at each context; at most so many, and none more after so many seconds."""
_MISSED = 0.025
"""Probability of a true cost beyond either end of the interval."""


def taps_cost(target: Target, taps: Collection[int]) -> TapsCost:
    """Cost of `taps` for a chunk at three contexts of row 0, whose text stays what it was."""
    device, before = target.info.device, target.lengths[0]
    room = target.capacity - before
    ids = torch.arange(min(_TOKENS, room), device=device)[None] % target.info.vocab_size
    furthest = min(room - ids.shape[1], _FURTHEST_TOKENS)

    def prefill_s(tapped: bool, start: int) -> float:
        target.commit(0, start)  # what the context holds does not change how long reading it takes
        with Stopwatch(device) as watch:
            target.evaluate(0, [start], ids, keep=1, taps=taps if tapped else ())
        target.truncate(0, before)
        return watch.seconds

    return cost_of_pairs(prefill_s, [before, before + furthest // 2, before + furthest])


def cost_of_pairs(prefill_s: Callable[[bool, int], float], starts: Sequence[int]) -> TapsCost:
    """Cost over pairs of a chunk with taps and the same one without, in balanced order, after a rehearsal.

    prefill_s: (with taps?, tokens before the chunk) -> seconds; starts: at least three such contexts.
    """
    for start in starts:
        for tapped in (True, False):
            prefill_s(tapped, start)
    logs: list[float] = []
    spent_s = 0.0
    for _ in range(_BLOCKS):
        for order in range(2):
            for place, start in enumerate(starts):
                tapped_first = (order + place) % 2 == 0
                seconds = {tapped: prefill_s(tapped, start) for tapped in (tapped_first, not tapped_first)}
                logs.append(math.log(seconds[True] / seconds[False]))
                spent_s += sum(seconds.values())
        if spent_s > _ENOUGH_S:
            break
    centre, low, high = signed_rank(logs)
    return TapsCost(math.expm1(centre), math.expm1(low), math.expm1(high), len(logs))


def signed_rank(values: Sequence[float]) -> tuple[float, float, float]:
    """Centre of at least six values and its 95 % interval, by ranks: a few stalls hardly move them.

    The median of the means of any two values (Hodges and Lehmann), and the ends that Wilcoxon's signed-rank test gives.
    """
    means = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    ways = [1]  # in which the ranks of the positive values sum to 0, 1, ...
    for rank in range(1, len(values) + 1):
        none = [0] * rank
        ways = [a + b for a, b in zip(ways + none, none + ways, strict=True)]
    cut, below = 0, ways[0]
    while below + ways[cut + 1] <= _MISSED * 2 ** len(values):
        cut += 1
        below += ways[cut]
    return median(means), means[cut], means[-1 - cut]
