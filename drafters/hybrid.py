"""Look-up first, another drafter otherwise: copies where the text repeats itself, guesses where it does not.

Which part guesses is decided from committed text alone, before anything is drawn, so the output stays exact at any
temperature: copied tokens are point masses, the other part's keep the distribution they were drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import (
    ConfigError,
    Drafter,
    DrafterSpec,
    DraftSampler,
    Proposal,
    SequenceDrafter,
    Span,
    TargetInfo,
)


class HybridDrafter(Drafter):
    """Two drafters over the same rows; the other one runs only in rounds in which some row's look-up passes."""

    paths = ("both", "look-up")
    """The ways a round can go, each captured on its own where rounds are."""
    path = "both"
    """That of the round for which `look_ahead` was asked last."""
    forced_path: str | None = None
    """Set to capture a path whatever the text says."""

    def __init__(self, lookup: SequenceDrafter, other: Drafter, min_match: int) -> None:
        self._lookup, self._other, self._min_match = lookup, other, min_match
        self._source: list[str] = []
        self.static, self._in_place = other.static, False
        self.spec = _spec_of(lookup.spec, other.spec)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Open both parts. Raises ConfigError as they do."""
        self._in_place = target.attention is not None
        for part in self._parts:
            part.open(target, rows=rows, capacity=capacity)
        self.spec = _spec_of(self._lookup.spec, self._other.spec)
        self.notes = [note for part in self._parts for note in part.notes]

    def observe(self, span: Span) -> None:
        """Both parts learn every committed position, whoever guessed it."""
        if not self._in_place or span.on_host is not None:
            self._lookup.observe(span)
        self._other.observe(span)

    def observe_on_host(self, span: Span) -> None:
        """The look-up's part where `observe` is a captured step, which is not told what the host knows."""
        self._lookup.observe(span)

    def look_ahead(self, anchor: Sequence[int], position: Sequence[int], k: int) -> Sequence[Sequence[int]]:
        """Look up on the host; which rows copy, how much, and what, row by row."""
        anchors, positions = torch.tensor(anchor), torch.tensor(position)
        copies = [match >= self._min_match for match in self._lookup.match_lengths(anchors, positions)]
        copied = self._lookup.propose(anchors, positions, k)
        others = any(at >= 0 and not own for own, at in zip(copies, position, strict=True))
        self._source[:] = [(self._lookup if own else self._other).spec.name for own in copies]
        self.path = self.forced_path or ("both" if others and k else "look-up")
        ids = nn.functional.pad(copied.ids, (0, k - copied.ids.shape[1] if self._in_place else 0))
        return [int(own) for own in copies], _counts(copied).tolist(), ids.flatten().tolist()

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Copy for rows whose match is long enough; for the rest ask the other part, if there is a rest."""
        carried, self.carried = self.carried, ()
        if not carried:  # nobody looked ahead: this is not a round of the engine
            found = self.look_ahead(anchor.tolist(), position.tolist(), k)
            carried = [torch.tensor(part, dtype=torch.int64, device=anchor.device) for part in found]
        source = self._source if self._in_place else list(self._source)  # a captured step gives the list as it is then
        copies, counts, ids = carried[0] > 0, carried[1], carried[2].view(len(anchor), -1)
        # Asked for nothing it still hears that a round begins, which a drafter may have to know.
        guessed = self._ask_other(anchor, position, k if self.path == "both" else 0)
        if self.path != "both":
            return Proposal(ids, count=counts * copies, source=source)
        return _merged(Proposal(ids, count=counts), guessed, copies, source)

    def _ask_other(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        sampler: DraftSampler | None = getattr(self, "sampler", None)
        if sampler is not None:
            self._other.sampler = sampler
        most = self._other.spec.max_tokens
        return self._other.propose(anchor, position, k if most is None else min(k, most))

    def truncate(self, row: int, length: int) -> int | None:
        """Forget positions >= length in both parts; both are shown again what either asks for."""
        asked = [part.truncate(row, length) for part in self._parts]
        return min((start for start in asked if start is not None), default=None)

    def state_bytes(self, row: int) -> int:
        """Bytes of both parts: the look-up's host memory and what the other one holds."""
        return sum(part.state_bytes(row) for part in self._parts)

    def networks(self) -> Sequence[nn.Module]:
        """The other part's networks."""
        return self._other.networks()

    def snapshot(self, row: int) -> Mapping[str, Tensor] | None:
        """What the other part knows; the look-up is compared by what it proposes."""
        return self._other.snapshot(row)

    @property
    def _parts(self) -> tuple[Drafter, Drafter]:
        return self._lookup, self._other


def _spec_of(lookup: DrafterSpec, other: DrafterSpec) -> DrafterSpec:
    """What the pair needs and can do; as many tokens as the part that can propose more."""
    unlimited = lookup.max_tokens is None or other.max_tokens is None
    return replace(
        other,
        name="hybrid",
        max_tokens=None if unlimited else max(lookup.max_tokens or 0, other.max_tokens or 0),
        history_free=lookup.history_free and other.history_free,
        fused_ingest=lookup.fused_ingest or other.fused_ingest,
        version=f"{lookup.name} {lookup.version} + {other.name} {other.version}",
    )


def _counts(proposal: Proposal) -> Tensor:
    """[B] int64: the tokens that count in each row."""
    ids, count = proposal.ids, proposal.count
    return torch.full((len(ids),), ids.shape[1], device=ids.device) if count is None else count


def _merged(copied: Proposal, guessed: Proposal, copies: Tensor, source: Sequence[str]) -> Proposal:
    """Row by row the one proposal or the other; copies [B] bool: the rows that take the first."""
    width = max(copied.ids.shape[1], guessed.ids.shape[1])
    own, its = (nn.functional.pad(p.ids, (0, width - p.ids.shape[1])) for p in (copied, guessed))
    on_device = copies.to(own.device)
    counts = _counts(guessed)
    count = torch.where(copies.to(counts.device), _counts(copied).to(counts.device), counts)
    ids = torch.where(on_device[:, None], own, its)
    if guessed.probs is None:
        return Proposal(ids, count=count, source=source)
    drawn = nn.functional.pad(guessed.probs, (0, 0, 0, width - guessed.ids.shape[1]))
    point = torch.zeros_like(drawn).scatter_(2, own[..., None], 1.0)
    return Proposal(ids, torch.where(on_device[:, None, None], point, drawn), count, source)


def make(parts: Sequence[Drafter], *, min_match: int = 2) -> HybridDrafter:
    """A hybrid of a look-up drafter and any other: hybrid=suffix+dlite.

    min_match: tokens of the text's end that must have occurred before for the look-up to guess; a row with a shorter
    match is left to the other part.
    Raises ConfigError if the first part is no look-up, or min_match is below 1.
    """
    if len(parts) != 2:
        raise ConfigError(f"drafter hybrid: {len(parts)} parts; write hybrid=LOOKUP+OTHER, such as hybrid=suffix+dlite")
    lookup, other = parts
    if not isinstance(lookup, SequenceDrafter) or type(lookup).match_one is SequenceDrafter.match_one:
        raise ConfigError(
            f"drafter hybrid: {lookup.spec.name!r} looks nothing up (a SequenceDrafter with match_one does); name a "
            "look-up first: hybrid=suffix+OTHER"
        )
    if min_match < 1:
        raise ConfigError(f"drafter hybrid: min_match is {min_match}; it must be at least 1")
    return HybridDrafter(lookup, other, min_match)
