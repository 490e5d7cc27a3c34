"""What a drafter proposes, made fit for the target: the contract checked, padding dropped.

Each function looks at shapes, and at values only where the host has them: asking a GPU for one costs a sync.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, Proposal
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ContractError


def drafts_of(
    drafter: Drafter, anchor: Tensor, position: Tensor, k: int, live: Sequence[bool], target: Target
) -> tuple[Tensor, Tensor | None, Tensor, Sequence[str] | None]:
    """One call of propose: (ids [B, n], probs [B, n, V] or None, count [B], source of each row or None), n <= k.

    anchor, position [B]; live: which rows decode. Raises ContractError naming the clause that is broken.
    """
    proposal = checked(drafter.propose(anchor, position, k), drafter, len(live), k, target)
    ids, probs, count = trimmed(proposal, live)
    in_vocabulary(ids, drafter, target)
    return ids, probs, count, proposal.source


def checked(proposal: Proposal, drafter: Drafter, rows: int, k: int, target: Target) -> Proposal:
    """The proposal, if its shapes and dtypes keep the contract (values on a device would cost a sync).

    Raises ContractError naming the clause that is broken.
    """
    if not isinstance(proposal, Proposal):
        raise ContractError(
            f"drafter {drafter.spec.name!r}: propose returned {type(proposal).__name__}, not a Proposal"
        )
    for kept, clause in _clauses(proposal, rows, k, target.info.vocab_size):
        if not kept:
            ids = proposal.ids
            raise ContractError(f"drafter {drafter.spec.name!r} proposed ids {tuple(ids.shape)} {ids.dtype}: {clause}")
    return proposal


def _clauses(proposal: Proposal, rows: int, k: int, vocab_size: int) -> Iterator[tuple[bool, str]]:
    """(is it kept, in words) for each clause; a later one may rely on the earlier ones."""
    ids, probs, count = proposal.ids, proposal.probs, proposal.count
    yield ids.dtype == torch.int64, "ids must be int64"
    fits = ids.ndim == 2 and ids.shape[0] == rows and ids.shape[1] <= k
    yield fits, f"ids must be [B, n]: B = {rows} rows, n <= {k} tokens"
    if probs is not None:
        fits = tuple(probs.shape) == (*ids.shape, vocab_size)
        yield fits, "probs must be [B, k, V] like ids and the target's vocabulary"
        exact = probs.dtype in (torch.float32, torch.float64)
        yield exact, "probs must be float32 (or float64): rounded ones are not what was drawn from"
    if proposal.source is not None:
        yield len(proposal.source) == rows, f"source must name {rows} rows"
    if count is not None:
        yield tuple(count.shape) == (rows,), f"count must be [{rows}]"
        yield not count.is_floating_point(), "count must be whole numbers"
        if count.device.type == "cpu":
            within = int(count.min()) >= 0 and int(count.max()) <= ids.shape[1]
            yield within, "it counts tokens that are not among its ids"


def trimmed(proposal: Proposal, live: Sequence[bool]) -> tuple[Tensor, Tensor | None, Tensor]:
    """(ids [B, k], probs [B, k, V] or None, count [B]) without the columns no live row counts, if the host knows them.

    Verifying padding costs target time; asking a device for its counts would cost a sync. Ids that do not count become
    0: whatever a drafter leaves there, idle rows included, the target must be able to run.
    """
    ids, probs, count = proposal.ids, proposal.probs, proposal.count
    if count is None:
        count = torch.full((len(ids),), ids.shape[1])
    if count.device.type == "cpu":
        count = count * torch.tensor(live)
        width = int(count.max())
        ids, probs = ids[:, :width], None if probs is None else probs[:, :width]
        count = count.to(ids.device)
    else:
        count = count.clamp(0, ids.shape[1]) * torch.tensor(live, device=ids.device)
    counted = torch.arange(ids.shape[1], device=ids.device) < count[:, None]
    return ids.masked_fill(~counted, 0), probs, count


def in_vocabulary(drafts: Tensor, drafter: Drafter, target: Target) -> None:
    """Raise ContractError if a draft that counts is no token of the target; checked on a CPU only, see `checked`."""
    if drafts.device.type != "cpu" or not drafts.numel():
        return
    low, high = (int(end) for end in drafts.aminmax())
    if low < 0 or high >= target.info.vocab_size:
        worst = low if low < 0 else high
        raise ContractError(
            f"drafter {drafter.spec.name!r} proposed token {worst}: ids must be in the target's vocabulary, "
            f"0..{target.info.vocab_size - 1}"
        )
