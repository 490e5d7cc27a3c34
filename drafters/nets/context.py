"""Context keys and values of a block drafter: one slot per engine row, lengths as data, rollback by pointer.

The block's own keys are written behind the context, at positions the row's length does not count, so a block reads
one contiguous buffer, nothing is copied, and nothing of it is left behind. Axes as in cross.py; R engine rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agentbench_spec.drafting import ContractError, Span

from .qwen3 import Geometry, grouped_attention

_BUCKET = 256
"""Attention on a device spans the longest row rounded up to this many slots."""


class RowLengths:
    """How many positions of each row are real: on the device, and on the host, which must not wait for the device."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.on_device = torch.zeros(rows, dtype=torch.int64, device=device)
        self._on_host = None if device.type == "cpu" else [0] * rows

    def advance(self, span: Span) -> None:
        """The span's first `count` positions are real now, later ones void; count 0: no change.

        A span on a device whose numbers the host was not told makes the longest row's bound its whole width.
        """
        rows, start, count = (part.to(self.on_device.device) for part in (span.rows, span.start, span.count))
        self.on_device[rows] = torch.where(count > 0, start + count, self.on_device[rows])
        if self._on_host is None:
            return
        if span.on_host is None:
            self._on_host = [bound + span.input_ids.shape[1] for bound in self._on_host]
            return
        for row, first, committed, _ in zip(*span.on_host, strict=True):
            if committed:
                self._on_host[row] = first + committed

    def truncate(self, row: int, length: int) -> None:
        """Positions >= length of `row` are void."""
        self.on_device[row].clamp_(max=length)
        if self._on_host is not None:
            self._on_host[row] = min(self._on_host[row], length)

    @property
    def longest(self) -> int:
        """Positions of the longest row; never less, and more only where a span came without the host's numbers."""
        return int(self.on_device.max()) if self._on_host is None else max(self._on_host)

    def check(self, position: Tensor, name: str) -> None:
        """Raise ContractError if an anchor does not follow its row's text, where that can be told without waiting."""
        if position.device.type == self.on_device.device.type == "cpu":
            check_anchors(position, self.on_device, name)


def told_width(span: Span) -> int:
    """Positions of a span without those that are padding in every row, where the host can tell without waiting."""
    return int(span.count.max()) if span.count.device.type == "cpu" else span.input_ids.shape[1]


def reach(positions: int, most: int) -> int:
    """Slots to attend to on a device so that `positions` of them are in it: few different kernel shapes occur."""
    return min(-(-positions // _BUCKET) * _BUCKET, most)


def check_anchors(position: Tensor, expected: Tensor, name: str) -> None:
    """Raise ContractError unless every anchor sits where it is expected: position, expected [R] on the CPU.

    A gap would be attended to as if it were context: correct text, poor acceptance, no other sign. Position -1 is an
    idle row; expected -1: the position before was cut off.
    """
    wrong = ((position >= 0) & (position != expected)).nonzero().flatten().tolist()
    if wrong:
        row, have = wrong[0], int(expected[wrong[0]])
        seen = f"{have} positions were observed" if have >= 0 else "the one before was cut off and not fed again"
        raise ContractError(f"{name}: the anchor of row {row} is at {int(position[row])}, but {seen}")


class Sight(NamedTuple):
    """What the rows of a block see in one layer: a row j of a block at position a, and a text position t."""

    window: int | None = None
    """Positions a row sees, its own included: (a + j) - t < window; None: all."""
    causal: bool = False
    """Rows of the block see no later rows."""
    from_anchor: bool = False
    """The window is measured for the whole block: a - t <= window, and every row of the block is seen."""

    @property
    def kept(self) -> int | None:
        """Context positions that later blocks can still see; None: all."""
        return self.window if self.window is None or self.from_anchor else self.window - 1


class ContextCache:
    """Keys and values of every draft layer for every row.

    keys, values [R, L, Nkv, capacity + block + 1, d] in the net's dtype: `capacity` context positions, room for a
    block behind them, and one last slot that takes what padding would write and is never read.
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        rows: int,
        capacity: int,
        block: int,
        device: torch.device,
        dtype: torch.dtype,
        sights: Sequence[Sight] = (),
    ) -> None:
        """sights: what a block sees, layer by layer; empty: everything in all of them."""
        self.sights = tuple(sights) or (Sight(),) * geometry.num_layers
        self.block = block
        self.trash = capacity + block
        shape = (rows, geometry.num_layers, geometry.num_kv_heads, self.trash + 1, geometry.head_dim)
        # zeros, not empty: a masked key still meets a weight of 0, and 0 * NaN is NaN
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.lengths = RowLengths(rows, device)
        self.index = torch.arange(max(rows, self.trash + 1), device=device)

    def append(self, rows: Tensor, start: Tensor, count: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys, values [B, L, Nkv, n, d] at start .. start + count - 1; the rest of n is padding."""
        offset = torch.arange(keys.shape[3], device=keys.device)
        at = torch.where(offset < count[:, None], start[:, None] + offset, self.trash)
        for buffer, new in ((self.keys, keys), (self.values, values)):
            buffer.permute(0, 3, 1, 2, 4)[rows[:, None], at] = new.permute(0, 3, 1, 2, 4)

    def window(self, position: Tensor, width: int | None = None) -> BlockWindow:
        """What blocks that start at `position` [R] int64 see; a row at -1 is idle and sees what it has.

        width: rows of the block, at most those the cache was made for; None: as many.
        """
        start, width = torch.where(position < 0, self.lengths.on_device, position), width or self.block
        return BlockWindow(self, start, width, *self._extent(start, width))

    def _extent(self, start: Tensor, width: int) -> tuple[int, Tensor | None]:
        """How many slots to attend to, and which of them each row may see (None: all)."""
        if start.device.type == "cpu":
            low, high = (int(bound) for bound in start.aminmax())
            extent = high + width
            if low == high:
                return extent, None
        else:
            extent = reach(self.lengths.longest + self.block, self.trash)
        return extent, (self.index[:extent] < (start + width)[:, None])[:, None, None]

    def of_row(self, row: int) -> tuple[Tensor, Tensor]:
        """Keys and values [L, Nkv, length, d] of the positions of `row` that count; waits for the device."""
        length = int(self.lengths.on_device[row])
        return self.keys[row, :, :, :length], self.values[row, :, :, :length]

    def bytes_of(self, row: int) -> int:
        """Bytes of the keys and values that blocks of `row` can still see.

        Sliding layers keep the rest only so that a turn can be thrown away.
        """
        length, (keys, values) = int(self.lengths.on_device[row]), self.of_row(row)
        seen = sum(length if sight.kept is None else min(length, sight.kept) for sight in self.sights)
        return (keys.nbytes + values.nbytes) * seen // max(length * len(self.sights), 1)


class BlockWindow:
    """One round's view of a ContextCache: the memory a block attends to."""

    def __init__(self, cache: ContextCache, start: Tensor, width: int, extent: int, mask: Tensor | None) -> None:
        self._cache, self._extent, self._start = cache, extent, start
        self._masks: dict[Sight, tuple[int, Tensor | None]] = {Sight(): (0, mask)}
        self._width = width
        self.positions = start[:, None] + cache.index[:width]
        """[R, b] int64: text positions of the block's rows."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Block queries [R, Nq, b, d] over the context and the block's own keys, values [R, Nkv, b, d]."""
        first, mask = self._seen(self._cache.sights[layer])
        seen_keys = self._placed(self._cache.keys[:, layer], keys)[:, :, first:]
        seen_values = self._placed(self._cache.values[:, layer], values)[:, :, first:]
        return grouped_attention(queries, seen_keys, seen_values, mask)

    def _seen(self, sight: Sight) -> tuple[int, Tensor | None]:
        """First slot a layer of this sight attends to, and which slots from there each row may see [R, 1, b, T]."""
        if sight not in self._masks:
            first, anchor = 0, self._start[:, None, None]
            if sight.window is not None and anchor.device.type == "cpu":
                first = max(int(anchor.min()) - sight.window, 0)
            slot, query = self._cache.index[first : self._extent], self.positions[:, :, None]
            seen = slot <= query if sight.causal else slot < anchor + self._width
            if sight.window is not None and sight.from_anchor:
                seen = seen & (slot >= anchor - sight.window)
            elif sight.window is not None:
                seen = seen & (slot > query - sight.window) & (slot < query + sight.window)
            self._masks[sight] = first, seen.expand(-1, self._width, -1)[:, None]
        return self._masks[sight]

    def _placed(self, buffer: Tensor, new: Tensor) -> Tensor:
        rows = self._cache.index[: len(new), None]
        buffer.transpose(1, 2)[rows, self.positions] = new.transpose(1, 2)
        return buffer[:, :, : self._extent]


class Committed:
    """The memory of committed tokens: their keys and values are kept, and each sees those up to its own position."""

    def __init__(self, cache: ContextCache, rows: Tensor, positions: Tensor, counted: Tensor) -> None:
        """rows [B], their lengths advanced; positions, counted [B, n]: text positions, and whether they count."""
        self._cache, self._rows = cache, rows
        self._at = torch.where(counted, positions, cache.trash)
        on_cpu = positions.device.type == "cpu"
        self._extent = int(positions.max()) + 1 if on_cpu else reach(cache.lengths.longest, cache.trash + 1)
        self._mask = (cache.index[: self._extent] <= positions[:, :, None])[:, None]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [B, Nq, n, d] over the text up to themselves; keys, values [B, Nkv, n, d] are written first."""
        seen_keys = self._placed(self._cache.keys[:, layer], keys)
        return grouped_attention(queries, seen_keys, self._placed(self._cache.values[:, layer], values), self._mask)

    def _placed(self, buffer: Tensor, new: Tensor) -> Tensor:
        buffer.transpose(1, 2)[self._rows[:, None], self._at] = new.transpose(1, 2)
        return buffer[self._rows, :, : self._extent]
