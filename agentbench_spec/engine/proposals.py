"""What a drafter proposes, made fit for the target: the contract checked, padding dropped.

Each function looks at shapes, and at values only where the host has them: asking a GPU for one costs a sync.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, Proposal
from agentbench_spec.engine.spans import Asked, Feed, Numbers, sent, stays_on_host
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ContractError

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts of a round as the target can be fed them, n <= k columns."""

    ids: Tensor
    """[B, n] int64; 0 where they do not count."""
    probs: Tensor | None
    """[B, n, V], or None: point masses."""
    count: Tensor
    """[B] int64; 0 in an idle row."""
    source: Sequence[str] | None
    """Who guessed, row by row; None: the drafter has no parts."""


def drafts_of(drafter: Drafter, asked: Asked, k: int, target: Target) -> tuple[Drafted, Feed]:
    """One call of propose, and the round's numbers on the target's device, copied there once.

    A drafter that works on the host guesses first, so that its guesses are in that copy. Raises ContractError naming
    the clause that is broken.
    """
    device = target.info.device
    if not stays_on_host(drafter, device):
        look_ahead = getattr(drafter, "look_ahead", None)
        feed = asked.feed(device, k, look_ahead(asked.anchors, asked.positions, k) if look_ahead else ())
        drafter.carried = feed.more
        return proposed(drafter, feed, k, target), feed
    guessed = proposed(drafter, asked.feed(CPU, k), k, target)
    feed = asked.feed(device, k, (guessed.ids.flatten().tolist(), guessed.count.tolist()))
    ids, count = feed.more
    probs = None if guessed.probs is None else guessed.probs.to(device)
    return Drafted(ids.view(guessed.ids.shape), probs, count, guessed.source), feed


def proposed(drafter: Drafter, feed: Feed, k: int, target: Target, *, values: bool = True) -> Drafted:
    """One call of propose, where `feed` is. values: those of the host may be looked at, as no captured step may.

    Raises ContractError naming the clause that is broken.
    """
    proposal = drafter.propose(feed.anchor, feed.position, k)
    checked(proposal, drafter, len(feed.live), k, target, values=values)
    if proposal.ids.device != feed.anchor.device:
        raise ContractError(
            f"drafter {drafter.spec.name!r} proposed ids on {proposal.ids.device}: the anchor is on "
            f"{feed.anchor.device}, and ids must be where it is"
        )
    ids, probs, count = trimmed(proposal, feed.live, values=values)
    if values:
        in_vocabulary(ids, drafter, target)
    return Drafted(ids, probs, count, proposal.source)


def checked(
    proposal: Proposal, drafter: Drafter, rows: int, k: int, target: Target, *, values: bool = True
) -> Proposal:
    """The proposal, if its shapes and dtypes keep the contract (values on a device would cost a sync).

    values: those of the host are looked at, too. Raises ContractError naming the clause that is broken.
    """
    if not isinstance(proposal, Proposal):
        raise ContractError(
            f"drafter {drafter.spec.name!r}: propose returned {type(proposal).__name__}, not a Proposal"
        )
    for kept, clause in _clauses(proposal, rows, k, target.info.vocab_size, values):
        if not kept:
            ids = proposal.ids
            raise ContractError(f"drafter {drafter.spec.name!r} proposed ids {tuple(ids.shape)} {ids.dtype}: {clause}")
    return proposal


def _clauses(proposal: Proposal, rows: int, k: int, vocab_size: int, values: bool) -> Iterator[tuple[bool, str]]:
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
        yield values or count.device == ids.device, "in a static round count must be where the ids are"
        if values and count.device.type == "cpu":
            within = int(count.min()) >= 0 and int(count.max()) <= ids.shape[1]
            yield within, "it counts tokens that are not among its ids"


def trimmed(proposal: Proposal, live: Numbers, *, values: bool = True) -> tuple[Tensor, Tensor | None, Tensor]:
    """(ids [B, n], probs [B, n, V] or None, count [B]) without the columns no live row counts, if the host knows them.

    live: 1 where a turn decodes, else 0; values: False to leave shapes as they are. Verifying padding costs target
    time; asking a device for its counts would cost a sync. Ids that do not count become 0: whatever a drafter leaves
    there, idle rows included, the target must be able to run.
    """
    ids, probs, count = proposal.ids, proposal.probs, proposal.count
    if count is None:
        count = live.on_device * ids.shape[1]
    elif values and count.device.type == "cpu":
        known = count * torch.tensor(live)
        width = int(known.max())
        ids, probs = ids[:, :width], None if probs is None else probs[:, :width]
        count = known if ids.device.type == "cpu" else sent([known.tolist()], ids.device)[0]
    else:
        count = count.clamp(0, ids.shape[1]) * live.on_device
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
