"""What crosses to the device for a round, in one copy, and what a drafter gets to see of it.

Each copy of a Python list to a GPU stops the host until it is done, and a CUDA graph may hold none. So the numbers of
a round travel together, from pinned memory, and nobody waits for them; the round's one read-back ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, Span

if TYPE_CHECKING:
    from agentbench_spec.engine.target import Evaluated

NO_TOKEN = -1
"""Stands behind a record's last token, and fills up stop ids; no token equals it."""

_STOP_IDS = 8
"""Static rounds send a multiple of so many stop ids."""


def sent(parts: Iterable[Sequence[int]], device: torch.device) -> tuple[Tensor, ...]:
    """Lists of whole numbers as tensors [len] int64 on `device`, in one copy that the host does not wait for."""
    lists = list(parts)
    pinned = device.type == "cuda"
    together = _together(lists, pinned=pinned)
    return torch.split(together.to(device, non_blocking=pinned), [len(part) for part in lists])


class Board:
    """Where the numbers of static rounds lie: each round's are copied over those of the last one of its layout."""

    def __init__(self, device: torch.device):
        self.device = device
        self._stop_ids = 0
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def sent(self, parts: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
        """As the function `sent`, at the same addresses whenever the lists have the same lengths."""
        layout = tuple(map(len, parts))
        together = _together(parts, pinned=self.device.type == "cuda")
        if layout not in self._kept:
            self._kept[layout] = torch.zeros(sum(layout), dtype=torch.int64, device=self.device)
        return torch.split(self._kept[layout].copy_(together, non_blocking=True), list(layout))

    def filled(self, stop_ids: Sequence[int]) -> list[int]:
        """Stop ids as a list whose length depends on the longest such list alone."""
        self._stop_ids = max(self._stop_ids, -(-len(stop_ids) // _STOP_IDS) * _STOP_IDS, _STOP_IDS)
        return _filled(stop_ids, self._stop_ids)


def _together(parts: Iterable[Sequence[int]], *, pinned: bool) -> Tensor:
    return torch.tensor(list(chain.from_iterable(parts)), dtype=torch.int64, pin_memory=pinned)


class Numbers(list[int]):
    """One whole number a row, and the same [B] int64 on the device."""

    def __init__(self, numbers: Iterable[int], on_device: Tensor):
        super().__init__(numbers)
        self.on_device = on_device


def on_device(device: torch.device, *parts: Sequence[int]) -> list[Numbers]:
    """Lists of one whole number a row, on `device` too; those that are not there yet are copied together."""
    missing = [part for part in parts if not isinstance(part, Numbers)]
    copied = iter(sent(missing, device) if missing else ())
    return [part if isinstance(part, Numbers) else Numbers(part, next(copied)) for part in parts]


@dataclass(frozen=True, slots=True)
class Feed:
    """A round's numbers on one device, B rows."""

    anchor: Tensor
    """[B] int64; 0 in an idle row."""
    position: Tensor
    """[B] int64: of the anchor; -1 in an idle row."""
    start: Numbers
    """Where the target is fed: the anchor's position, and an idle row's length."""
    live: Numbers
    """1 where a turn decodes, else 0."""
    record: Tensor | None
    """[B, k + 1] int64: what a forced turn goes on with; None: the turns are free."""
    room: Tensor
    """[B] int64: tokens that the turn may still emit; empty on a CPU, where the host's own count serves."""
    stop_ids: Tensor
    """[S] int64: the tokens that end a turn; empty on a CPU likewise."""
    more: Sequence[Tensor] = ()
    """Further lists that were sent along."""
    layout: tuple[int, ...] = ()
    """Numbers of each list that was sent; feeds of one board with equal layouts lie at the same addresses."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the host knows of B rows when a round begins."""

    anchors: Sequence[int]
    positions: Sequence[int]
    starts: Sequence[int]
    rooms: Sequence[int]
    ahead: Sequence[Sequence[int]] | None
    """The next tokens of each forced turn's record, fewer at its end; None: the turns are free."""
    stop_ids: Sequence[int]

    def feed(
        self, device: torch.device, k: int, more: Sequence[Sequence[int]] = (), board: Board | None = None
    ) -> Feed:
        """These numbers on `device`, and `more` lists with them. k: most drafts of the round; board: of static ones."""
        live = [int(position >= 0) for position in self.positions]
        parts = [self.anchors, self.positions, self.starts, live]
        if self.ahead is not None:
            parts.append([token for row in self.ahead for token in _filled(row, k + 1)])
        ends_there = device.type != "cpu" or board is not None
        if ends_there:
            parts += [self.rooms, self.stop_ids if board is None else board.filled(self.stop_ids)]
        parts += more
        anchor, position, start, live_there, *rest = sent(parts, device) if board is None else board.sent(parts)
        rows, unused = len(live), anchor[:0]
        record = None if self.ahead is None else rest.pop(0).view(rows, k + 1)
        room, stop_ids = (rest.pop(0), rest.pop(0)) if ends_there else (unused, unused)
        begun, decoding = Numbers(self.starts, start), Numbers(live, live_there)
        layout = tuple(map(len, parts))
        return Feed(anchor, position, begun, decoding, record, room, stop_ids, rest, layout)


def _filled(tokens: Sequence[int], n: int) -> list[int]:
    return [*tokens[:n], *[NO_TOKEN] * (n - len(tokens))]


def kept_of(next_ids: Tensor, matched: Tensor, feed: Feed) -> Tensor:
    """How many tokens of a round each turn keeps, [B] int64, counted on a device as `Turn.take` counts on the host.

    next_ids [B, n]: the token after each position fed; matched [B].
    """
    kept = torch.minimum(matched + 1, feed.room)
    if not len(feed.stop_ids):
        return kept
    stops = (next_ids[..., None] == feed.stop_ids).any(-1)
    first = torch.where(stops.any(1), stops.to(torch.int8).argmax(1) + 1, next_ids.shape[1])
    return torch.minimum(kept, first)


def following(drafts: Tensor, matched: Tensor, next_ids: Tensor) -> Tensor:
    """The token after each position of a verified block, [B, k + 1]: drafts, and the target's own one at `matched`.

    drafts [B, k]; matched, next_ids [B]. What stands behind `matched` does not count.
    """
    padded = torch.cat([drafts, drafts.new_zeros(len(drafts), 1)], dim=1)
    return padded.scatter(1, matched[:, None], next_ids[:, None])


def stays_on_host(drafter: Drafter, device: torch.device) -> bool:
    """True if the drafter works on the host although the target, on `device`, does not."""
    return device.type != "cpu" and getattr(drafter, "host_only", False)


def span_of(
    drafter: Drafter,
    rows: Sequence[int],
    start: Sequence[int],
    count: Sequence[int],
    input_ids: Tensor,
    next_ids: Tensor,
    evaluated: Evaluated,
    tokens: Sequence[Sequence[int]] | None = None,
) -> Span:
    """What a drafter gets to see of one evaluation: the counts, and the states its spec asks for.

    input_ids, next_ids [B, n]; rows, start, count: B values each, those given as Numbers are not copied to the device
    again; tokens: the committed ones of input_ids, where the host has them.
    """
    there = on_device(input_ids.device, rows, start, count)
    row_ids, starts, counts = (part.on_device for part in there)
    hidden = None
    if drafter.spec.hidden_scope != "none":
        states = [evaluated.states[layer] for layer in drafter.spec.hidden_layers]
        if drafter.spec.hidden_scope == "last":
            row, last = torch.arange(len(count), device=input_ids.device), (counts - 1).clamp_min(0)
            states = [state[row, last][:, None] for state in states]
        hidden = torch.stack(states, dim=2)
    known = None if tokens is None else (rows, start, count, tokens)
    return Span(row_ids, starts, counts, input_ids, next_ids, hidden, known)


def host_span(
    rows: Sequence[int],
    start: Sequence[int],
    count: Sequence[int],
    tokens: Sequence[Sequence[int]],
    followers: Sequence[Sequence[int]],
) -> Span:
    """The span of a drafter that works on the host, on the CPU whatever the target's device.

    tokens, followers: the committed tokens of each row, and the one after each.
    """
    n = max(map(len, tokens))
    fed, after = (torch.tensor([[*row, *[0] * (n - len(row))] for row in part]) for part in (tokens, followers))
    row_ids, starts, counts = (torch.tensor(list(part)) for part in (rows, start, count))
    return Span(row_ids, starts, counts, fed, after, on_host=(rows, start, count, tokens))
