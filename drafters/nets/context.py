"""Context keys and values of a block drafter: one slot per engine row, lengths as data, rollback by pointer.

The block's own keys are written behind the context, at positions the row's length does not count, so a block reads
one contiguous buffer, nothing is copied, and nothing of it is left behind. Axes as in cross.py; R engine rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from agentbench_spec.drafting import ContractError, Span

from .qwen3 import Geometry, grouped_attention

_BUCKET = 256
"""Attention on a device spans the longest row rounded up to this many slots."""

BEHIND = 1024
"""Positions that sliding layers keep beyond their window, at least: turns that are thrown away are rarely longer."""


class StaticAttention(Protocol):
    """How static rounds attend: over whole buffers, of which each query sees an interval; `TargetInfo.attention`."""

    def slots(self, least: int) -> int:
        """The size of a buffer that holds `least` slots."""

    def seen(self, first: Tensor | None, last: Tensor, slots: int) -> Any:
        """What queries see that look at slots first .. last of `slots`, [B, n] int64 each; first None: from 0 on."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Any) -> Tensor:
        """queries [B, Nq, n, d], keys, values [B, Nkv, slots, d] -> [B, Nq, n, d]."""


class RowLengths:
    """How many positions of each row are real: on the device, and on the host, which must not wait for the device.

    static: rounds are, so that they tell the host nothing; what it knows is where each row's last prefill ended.
    """

    def __init__(self, rows: int, device: torch.device, *, static: bool = False) -> None:
        self.on_device = torch.zeros(rows, dtype=torch.int64, device=device)
        self.static = static
        self._on_host = None if device.type == "cpu" else [0] * rows
        self._untold = False

    def advance(self, span: Span) -> None:
        """The span's first `count` positions are real now, later ones void; count 0: no change.

        A span on a device whose numbers the host was not told makes the longest row's bound its whole width.
        """
        rows, start, count = (part.to(self.on_device.device) for part in (span.rows, span.start, span.count))
        self.on_device[rows] = torch.where(count > 0, start + count, self.on_device[rows])
        if self._on_host is None:
            return
        if span.on_host is None:
            if not self.static:
                self._on_host, self._untold = [bound + span.input_ids.shape[1] for bound in self._on_host], True
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
    def bounds(self) -> list[int]:
        """Positions of each row; never less, and more only where a span came without the host's numbers."""
        if self._on_host is not None:
            return self._on_host
        lengths: list[int] = self.on_device.tolist()
        return lengths

    @property
    def longest(self) -> int:
        """The largest of the bounds."""
        return max(self.bounds)

    def exact(self) -> list[int]:
        """Positions of each row; waits for the device if a span came without the host's numbers."""
        if self._untold:
            self._on_host, self._untold = self.on_device.tolist(), False
        return self.bounds

    def check(self, position: Tensor, name: str) -> None:
        """Raise ContractError if an anchor does not follow its row's text, where that can be told without waiting."""
        if self.static:
            return
        if position.device.type == self.on_device.device.type == "cpu":
            check_anchors(position, self.on_device, name)


def told_width(span: Span, *, static: bool) -> int:
    """Positions of a span without those that are padding in every row, where the host can tell without waiting.

    static: rounds are; a span of theirs comes without the host's numbers, and its steps must not depend on them.
    """
    if span.count.device.type != "cpu" or (static and span.on_host is None):
        return span.input_ids.shape[1]
    return int(span.count.max())


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


class Slots:
    """Keys and values of some layers: text positions from `base` on, room for a block behind them, one slot of trash.

    keys, values [R, l, Nkv, size + block + 1, d] in the net's dtype; position t of a row is in slot t - base. The last
    slot takes what padding would write and is never read. With `kept`, the oldest positions go when more than `size`
    have come, down to the newest `kept`; without, `size` is the capacity and base stays 0.
    """

    def __init__(
        self,
        geometry: Geometry,
        layers: int,
        *,
        lengths: RowLengths,
        size: int,
        block: int,
        kept: int | None,
        dtype: torch.dtype,
    ) -> None:
        device, rows = lengths.on_device.device, len(lengths.on_device)
        self.size, self.trash, self._kept, self._lengths = size, size + block, kept, lengths
        shape = (rows, layers, geometry.num_kv_heads, self.trash + 1, geometry.head_dim)
        # zeros, not empty: a masked key still meets a weight of 0, and 0 * NaN is NaN
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.base = torch.zeros(rows, dtype=torch.int64, device=device)
        self.first = [0] * rows
        """`base` on the host, where it is decided what to forget."""
        self.index = torch.arange(max(rows, self.trash + 1), device=device)

    @property
    def most(self) -> int:
        """Positions that a row holds at most; more than there are only where the lengths' bounds are too high."""
        return max(bound - first for bound, first in zip(self._lengths.bounds, self.first, strict=True))

    def append(self, rows: Tensor, start: Tensor, count: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys, values [B, l, Nkv, n, d] at start .. start + count - 1; the rest of n is padding.

        The lengths have advanced already.
        """
        if self._kept is not None and self.most > self.size:
            self._drop(self._kept)
        offset = torch.arange(keys.shape[3], device=keys.device)
        counted, slot = offset < count[:, None], self.slots_of(start, rows)[:, None] + offset
        if self._kept is not None:
            counted &= slot >= 0
        at = torch.where(counted, slot, self.trash)
        for buffer, new in ((self.keys, keys), (self.values, values)):
            buffer.permute(0, 3, 1, 2, 4)[rows[:, None], at] = new.permute(0, 3, 1, 2, 4)

    def slots_of(self, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """The slots of text positions [B, ...] of these rows, of all where None; below 0: forgotten."""
        if self._kept is None:
            return positions
        base = self.base if rows is None else self.base[rows]
        return positions - base.view(-1, *[1] * (positions.dim() - 1))

    def _drop(self, kept: int) -> None:
        """Forget all but the newest `kept` positions of every row."""
        base = torch.maximum(self.base, self._lengths.on_device - kept)
        source = (self.index[: self.size] + (base - self.base)[:, None]).clamp_(max=self.size - 1)
        for buffer in (self.keys, self.values):
            slots = source[:, None, None, :, None].expand(-1, *buffer.shape[1:3], -1, buffer.shape[4])
            buffer[:, :, :, : self.size] = buffer.gather(3, slots)
        self.base = base
        self.first = [max(own, n - kept) for own, n in zip(self.first, self._lengths.exact(), strict=True)]

    def void(self, row: int, start: int) -> None:
        """Positions >= start of `row` are void; what was forgotten before them stays so."""
        if start < self.first[row]:
            self.first[row] = start
            self.base[row].clamp_(max=start)

    def of_row(self, row: int) -> tuple[Tensor, Tensor]:
        """Keys and values [l, Nkv, n, d] of the n positions of `row` that are held; waits for the device."""
        held = int(self._lengths.on_device[row] - self.base[row])
        return self.keys[row, :, :, :held], self.values[row, :, :, :held]


class ContextCache:
    """Keys and values of every draft layer for every row.

    Layers that see all of the text keep all of it. Sliding ones keep the newest `behind` positions beyond what their
    window sees, at least: so far back a cut costs nothing, and their bytes are bounded however long the text is.
    In static rounds all layers keep all. `keys`, `values`, `index` and `trash` are those of the layers that do.
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
        behind: int = BEHIND,
        attention: StaticAttention | None = None,
    ) -> None:
        """sights: what a block sees, layer by layer; empty: everything in all of them. attention: of static rounds."""
        self.attention = attention
        self.sights = tuple(sights) or (Sight(),) * geometry.num_layers
        self.block = block
        self.lengths = RowLengths(rows, device, static=attention is not None)
        self._widest = max((sight.kept or 0 for sight in self.sights), default=0)
        kept = self._widest + behind
        size = kept + max(behind, _BUCKET)
        # where the whole text is shorter than what would be held of it, nothing is forgotten
        bounded = [attention is None and size < capacity and sight.kept is not None for sight in self.sights]
        slots = partial(Slots, geometry, lengths=self.lengths, block=block, dtype=dtype)
        whole = capacity if attention is None else attention.slots(capacity + block + 1) - block - 1
        full = slots(bounded.count(False), size=whole, kept=None)
        self.keys, self.values, self.index, self.trash = full.keys, full.values, full.index, full.trash
        self.held = [full, slots(bounded.count(True), size=size, kept=kept)] if any(bounded) else [full]
        """Those of the layers that keep all; then those of the others, if there are any."""
        self.places = [(own, bounded[:layer].count(own)) for layer, own in enumerate(bounded)]
        """Where each layer's keys and values are: which of `held`, and its number there."""
        layers = ([layer for layer, kind in enumerate(bounded) if kind is own] for own in (False, True))
        self._layers = [torch.tensor(own, dtype=torch.int64, device=device) for own in layers]

    def advance(self, span: Span) -> None:
        """The span's first `count` positions are real now, later ones void; to be said before they are appended."""
        for slots in self.held[1:]:
            told = span.on_host or (span.rows.tolist(), span.start.tolist(), span.count.tolist())
            for row, start, count in zip(*told[:3], strict=True):
                if count:
                    slots.void(row, start)
        self.lengths.advance(span)

    def append(self, rows: Tensor, start: Tensor, count: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys, values [B, L, Nkv, n, d] at start .. start + count - 1; the rest of n is padding."""
        if len(self.held) == 1:
            self.held[0].append(rows, start, count, keys, values)
            return
        for slots, layers in zip(self.held, self._layers, strict=True):
            slots.append(rows, start, count, keys.index_select(1, layers), values.index_select(1, layers))

    def truncate(self, row: int, length: int) -> int | None:
        """Positions >= length of `row` are void; returns the first that must be appended again, or None.

        That is so where a block that starts at the row's end sees positions that are forgotten.
        """
        self.lengths.truncate(row, length)
        for slots in self.held[1:]:
            slots.void(row, length)
            seen = max(self.lengths.exact()[row] - self._widest, 0)
            if slots.first[row] > seen:
                return seen
        return None

    def window(self, position: Tensor, width: int | None = None) -> BlockWindow:
        """What blocks that start at `position` [R] int64 see; a row at -1 is idle and sees what it has.

        width: rows of the block, at most those the cache was made for; None: as many.
        """
        return BlockWindow(self, torch.where(position < 0, self.lengths.on_device, position), width or self.block)

    def is_round(self, span: Span) -> bool:
        """True for a static round's span, which has all rows in order."""
        return self.attention is not None and span.on_host is None and len(span.rows) == len(self.keys)

    def of_row(self, row: int) -> tuple[Tensor, Tensor]:
        """Keys and values [l, Nkv, length, d] of `row` in the layers that keep all; waits for the device."""
        return self.held[0].of_row(row)

    def window_of_row(self, row: int) -> tuple[Tensor, Tensor] | None:
        """The same of the layers that do not, as much as their blocks can see; None if all layers do."""
        if len(self.held) == 1:
            return None
        keys, values = self.held[1].of_row(row)
        first = max(keys.shape[2] - self._widest, 0)
        return keys[:, :, first:], values[:, :, first:]

    def bytes_of(self, row: int) -> int:
        """Bytes of the keys and values that are held for `row`."""
        return sum(keys.nbytes + values.nbytes for keys, values in (slots.of_row(row) for slots in self.held))


class BlockWindow:
    """One round's view of a ContextCache: the memory a block attends to."""

    def __init__(self, cache: ContextCache, start: Tensor, width: int) -> None:
        self._cache = cache
        self.positions = start[:, None] + cache.index[:width]
        """[R, b] int64: text positions of the block's rows."""
        view = _View if cache.attention is None else partial(_StaticView, cache.attention)
        self._views = [view(slots, start, self.positions) for slots in cache.held]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Block queries [R, Nq, b, d] over the context and the block's own keys, values [R, Nkv, b, d]."""
        held, index = self._cache.places[layer]
        return self._views[held].attend(index, self._cache.sights[layer], queries, keys, values)


class _View:
    """A block over the slots of some layers. Positions are counted in slots: windows ask for differences only."""

    def __init__(self, slots: Slots, start: Tensor, positions: Tensor) -> None:
        """start [R]: where the block begins; positions [R, b]: of its rows."""
        self._slots, self._width = slots, positions.shape[1]
        self._start, self._queries = slots.slots_of(start), slots.slots_of(positions)
        self._extent, mask = self._reach()
        self._masks: dict[Sight, tuple[int, Tensor | None]] = {Sight(): (0, mask)}

    def attend(self, index: int, sight: Sight, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `BlockWindow.attend`, of the layer with number `index` here."""
        first, mask = self._seen(sight)
        seen_keys = self._placed(self._slots.keys[:, index], keys)[:, :, first:]
        seen_values = self._placed(self._slots.values[:, index], values)[:, :, first:]
        return grouped_attention(queries, seen_keys, seen_values, mask)

    def _reach(self) -> tuple[int, Tensor | None]:
        """How many slots to attend to, and which of them each row may see (None: all)."""
        start, width = self._start, self._width
        if start.device.type == "cpu":
            low, high = (int(bound) for bound in start.aminmax())
            if low == high:
                return high + width, None
            extent = high + width
        else:
            block = self._slots.trash - self._slots.size
            extent = reach(self._slots.most + block, self._slots.trash)
        return extent, (self._slots.index[:extent] < (start + width)[:, None])[:, None, None]

    def _seen(self, sight: Sight) -> tuple[int, Tensor | None]:
        """First slot a layer of this sight attends to, and which slots from there each row may see [R, 1, b, T]."""
        if sight not in self._masks:
            first, anchor = 0, self._start[:, None, None]
            if sight.window is not None and anchor.device.type == "cpu":
                first = max(int(anchor.min()) - sight.window, 0)
            slot, query = self._slots.index[first : self._extent], self._queries[:, :, None]
            seen = slot <= query if sight.causal else slot < anchor + self._width
            if sight.window is not None and sight.from_anchor:
                seen = seen & (slot >= anchor - sight.window)
            elif sight.window is not None:
                seen = seen & (slot > query - sight.window) & (slot < query + sight.window)
            self._masks[sight] = first, seen.expand(-1, self._width, -1)[:, None]
        return self._masks[sight]

    def _placed(self, buffer: Tensor, new: Tensor) -> Tensor:
        rows = self._slots.index[: len(new), None]
        buffer.transpose(1, 2)[rows, self._queries] = new.transpose(1, 2)
        return buffer[:, :, : self._extent]


class _StaticView(_View):
    """The same in a static round: all slots are at hand, and what each row sees of them is an interval."""

    def __init__(self, attention: StaticAttention, slots: Slots, start: Tensor, positions: Tensor) -> None:
        super().__init__(slots, start, positions)
        self._attention = attention
        self._intervals: dict[Sight, Any] = {}

    def attend(self, index: int, sight: Sight, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if sight not in self._intervals:
            self._intervals[sight] = self._attention.seen(*self._interval(sight), self._extent)
        seen_keys = self._placed(self._slots.keys[:, index], keys)
        seen_values = self._placed(self._slots.values[:, index], values)
        return self._attention.attend(queries, seen_keys, seen_values, self._intervals[sight])

    def _reach(self) -> tuple[int, Tensor | None]:
        return self._slots.trash + 1, None

    def _interval(self, sight: Sight) -> tuple[Tensor | None, Tensor]:
        """First and last slot that each row of the block sees, [R, b]; first None: from 0 on."""
        query, end = self._queries, (self._start[:, None] + self._width - 1).expand_as(self._queries)
        last = query if sight.causal else end
        if sight.window is None:
            return None, last
        if sight.from_anchor:
            return (self._start[:, None] - sight.window).clamp_min(0).expand_as(query), last
        return (query - sight.window + 1).clamp_min(0), torch.minimum(last, query + sight.window - 1)


class Committed:
    """The memory of committed tokens: their keys and values are kept, and each sees those up to its own position."""

    def __init__(
        self, cache: ContextCache, rows: Tensor, positions: Tensor, counted: Tensor, *, in_round: bool = False
    ) -> None:
        """rows [B], their lengths advanced; positions, counted [B, n]: text positions, and whether they count.

        in_round: the tokens are those of a static round.
        """
        self._cache, self._rows = cache, rows
        self._at = torch.where(counted, positions, cache.trash)
        self._attention = cache.attention if in_round else None
        if self._attention is not None:
            self._interval = self._attention.seen(None, positions, cache.trash + 1)
            return
        on_cpu = positions.device.type == "cpu"
        self._extent = int(positions.max()) + 1 if on_cpu else reach(cache.lengths.longest, cache.trash + 1)
        self._mask = (cache.index[: self._extent] <= positions[:, :, None])[:, None]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [B, Nq, n, d] over the text up to themselves; keys, values [B, Nkv, n, d] are written first."""
        seen_keys = self._placed(self._cache.keys[:, layer], keys)
        seen_values = self._placed(self._cache.values[:, layer], values)
        if self._attention is not None:
            return self._attention.attend(queries, seen_keys, seen_values, self._interval)
        return grouped_attention(queries, seen_keys, seen_values, self._mask)

    def _placed(self, buffer: Tensor, new: Tensor) -> Tensor:
        buffer.transpose(1, 2)[self._rows[:, None], self._at] = new.transpose(1, 2)
        return buffer if self._attention is not None else buffer[self._rows, :, : self._extent]
