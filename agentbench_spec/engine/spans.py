"""What a drafter gets to see of an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, Span
from agentbench_spec.engine.target import Evaluated


def following(drafts: Tensor, matched: Tensor, next_ids: Tensor) -> Tensor:
    """The token after each position of a verified block, [B, k + 1]: drafts, and the target's own one at `matched`.

    drafts [B, k]; matched, next_ids [B]. What stands behind `matched` does not count.
    """
    padded = torch.cat([drafts, drafts.new_zeros(len(drafts), 1)], dim=1)
    return padded.scatter(1, matched[:, None], next_ids[:, None])


def span_of(
    drafter: Drafter,
    rows: Collection[int],
    start: Sequence[int],
    count: Sequence[int],
    input_ids: Tensor,
    next_ids: Tensor,
    evaluated: Evaluated,
) -> Span:
    """What a drafter gets to see of one evaluation: the counts, and the states its spec asks for.

    input_ids, next_ids [B, n]; rows, start, count: B values each.
    """
    device = input_ids.device
    counts = torch.tensor(count, device=device)
    hidden = None
    if drafter.spec.hidden_scope != "none":
        states = [evaluated.states[layer] for layer in drafter.spec.hidden_layers]
        if drafter.spec.hidden_scope == "last":
            row, last = torch.arange(len(count), device=device), (counts - 1).clamp_min(0)
            states = [state[row, last][:, None] for state in states]
        hidden = torch.stack(states, dim=2)
    return Span(
        rows=torch.tensor(list(rows), device=device),
        start=torch.tensor(start, device=device),
        count=counts,
        input_ids=input_ids,
        next_ids=next_ids,
        hidden=hidden,
    )
