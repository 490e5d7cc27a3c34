"""Rows of drafters that chain one layer over pairs (feature of position i, token at i + 1): EAGLE-3 and MTP.

Draft KV entry i is made from the pair (feature i, token i + 1), so it depends on one token beyond its feature. A text
whose anchor sits at p has the features 0..p-1, of which the last has no certain partner yet: entries 0..p-2 are
committed, and entry p-1 is made by `propose` from the anchor it is given, and again by `observe` when the anchor
arrives. What is committed therefore never depends on a token that may still change.

Features cost more than KV (hidden_size against 2 * kv_heads * head_dim), so only the last `window` of them are kept,
in a ring of fixed size. Within the window a rollback is exact whatever follows. Further back, entry p-1 stays as it
is, which is exact as long as the same token follows; the engine sees to that by running the last shared token again.

Axes: B rows, n positions, k drafted, S tapped layers, H hidden, V vocabulary, Nkv heads, d head_dim, T slots.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError, ContractError, DraftSampler, Proposal, Span

from .context import RowLengths, StaticAttention, reach, told_width
from .qwen3 import Geometry, Rope, grouped_attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries [B, Nq, 1, d], keys, values [B, Nkv, 1, d]) -> mixed [B, Nq, 1, d], the new entry included."""

DEFAULT_WINDOW = 4096
"""Features kept per row: a continuation shorter than this can be thrown away and drafted again from its start."""

_SCRATCH = 16
"""Slots beyond the capacity for drafted entries; grown once if a longer chain is asked for."""


class PairNet(Protocol):
    """What the rows need of a net."""

    geometry: Geometry
    feature_size: int
    """Width of a fused feature."""
    target_ids: Tensor | None
    """[V_d] int64: target id of each draft id; None: the same."""

    def rope(self, positions: Tensor) -> Rope:
        """positions [B, n] -> rotations for keys and queries."""

    def fuse(self, hidden: Tensor) -> Tensor:
        """Span.hidden [B, n, S, H] -> fused features [B, n, feature_size]."""

    def pair(self, features: Tensor, token_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, n, feature_size], the tokens after them [B, n], the features' positions [B, n] -> K, V.

        Returns keys and values [B, n, Nkv, d].
        """

    def step(
        self, token_ids: Tensor, hidden: Tensor, position: Tensor, rope: Rope, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """One row per sequence: tokens [B], hidden [B, feature_size], the entry's position [B] and its rope.

        Returns the hidden of the next step and logits [B, V_d].
        """


class PairRows:
    """Committed pairs of some rows: a one-layer KV, the newest features, and the chain that drafts from them."""

    def __init__(
        self,
        name: str,
        net: PairNet,
        *,
        rows: int,
        capacity: int,
        window: int,
        dtype: torch.dtype,
        device: torch.device,
        attention: StaticAttention | None = None,
    ) -> None:
        """name: the drafter, for errors; window: features kept per row, in tokens; attention: of static rounds."""
        self._name, self._static = name, attention
        self.net, self._capacity, self._device = net, capacity, device
        self._width = self._slots(capacity + _SCRATCH + 1) - 1
        heads, d = net.geometry.num_kv_heads, net.geometry.head_dim
        # Each buffer has one slot more than it can hold: what must not be kept is written there and never read.
        self._keys = torch.zeros(rows, heads, self._width + 1, d, dtype=dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        self._ring = FeatureRing(name, rows=rows, window=min(window, capacity), width=net.feature_size, like=self._keys)
        self._lengths = RowLengths(rows, device, static=attention is not None)
        self._all_rows = torch.arange(rows, device=device)

    def observe(self, span: Span) -> None:
        """Commit the counted positions of `span` (scope "all"): their features, and the entries they complete."""
        if span.hidden is None:
            raise ContractError("a chain drafter needs Span.hidden of every position (scope 'all'); the span has none")
        n = max(told_width(span, static=self._static is not None), 1)
        rows, start, count = (part.to(self._device) for part in (span.rows, span.start, span.count))
        offset = torch.arange(n, device=self._device)
        counted = offset < count[:, None]
        position = start[:, None] + offset
        features = self.net.fuse(span.hidden[:, :n])
        before, kept = self._ring.before(rows, start)
        keys, values = self.net.pair(
            torch.cat((before[:, None], features[:, :-1]), 1),
            span.input_ids[:, :n].masked_fill(~counted, 0),
            (position - 1).clamp_min(0),
        )
        slot = torch.where(counted & (kept[:, None] | (offset > 0)), position - 1, self._width)
        self._keys[rows[:, None], :, slot] = keys
        self._values[rows[:, None], :, slot] = values
        self._ring.keep(rows, start, count, features)
        self._lengths.advance(span)

    def propose(
        self, anchor: Tensor, position: Tensor, k: int, sampler: DraftSampler, stop_ids: Tensor | None = None
    ) -> Proposal:
        """Chain k tokens from the last feature of each row; entries go to slots that do not count.

        stop_ids [m] int64: a row's proposal ends with the first of these it drafts.
        """
        self._lengths.check(position, self._name)
        first = (position - 1).clamp_min(0)
        hidden, kept = self._ring.before(self._all_rows, position)
        at = first[:, None] + torch.arange(k, device=self._device)
        cos, sin = (torch.split(part, 1, 2) for part in self.net.rope(at))
        self._reserve(k)
        slots = torch.where(kept[:, None], at, self._width)  # without its feature, the entry there must stay
        attend_at = self._attention(position, slots)
        token, ids, probs = anchor.clamp_min(0), [], []
        for j in range(k):
            hidden, logits = self.net.step(token, hidden, at[:, j], (cos[j], sin[j]), attend_at(j))
            token, distribution = pick(logits, self.net.target_ids, self.net.geometry.vocab_size, sampler)
            ids.append(token)
            probs.append(distribution)
        drafted = torch.stack(ids, 1) if ids else anchor.new_empty((len(anchor), 0))
        full = torch.stack([p for p in probs if p is not None], 1) if probs and probs[0] is not None else None
        return Proposal(ids=drafted, probs=full, count=self._count(drafted, kept, stop_ids))

    def _attention(self, position: Tensor, slots: Tensor) -> Callable[[int], Attend]:
        """Attention of each step j of a chain: writes its entries to slots [B, k], then looks at all up to them."""
        if (static := self._static) is not None:
            last = (position - 1).clamp_min(0)[:, None]
            return lambda step: partial(self._attend_static, static, slots[:, step], last + step)
        if position.device.type == "cpu" and not self._ring.lost:
            shortest, longest = (int(bound) for bound in position.aminmax())
            if shortest == longest > 0:
                return lambda step: partial(self._attend_level, longest - 1 + step)
        extent, masks = self._masks(position, slots.shape[1])
        return lambda step: partial(self._attend_ragged, slots[:, step], extent, masks[step])

    def _attend_level(self, slot: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Rows of equal length: no mask, one slot more with every step."""
        self._keys[:, :, slot], self._values[:, :, slot] = keys[:, :, 0], values[:, :, 0]
        return grouped_attention(queries, self._keys[:, :, : slot + 1], self._values[:, :, : slot + 1])

    def _attend_ragged(
        self, slots: Tensor, extent: int, mask: Tensor, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        self._keys[self._all_rows, :, slots], self._values[self._all_rows, :, slots] = keys[:, :, 0], values[:, :, 0]
        return grouped_attention(queries, self._keys[:, :, :extent], self._values[:, :, :extent], mask)

    def _attend_static(
        self, attention: StaticAttention, slots: Tensor, last: Tensor, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        self._keys[self._all_rows, :, slots], self._values[self._all_rows, :, slots] = keys[:, :, 0], values[:, :, 0]
        return attention.attend(queries, self._keys, self._values, attention.seen(None, last, self._width + 1))

    def _masks(self, position: Tensor, k: int) -> tuple[int, Tensor]:
        """Slots to attend to, and what each row may see of them at each step: masks [k, B, 1, 1, T]."""
        longest = int(position.max()) if position.device.type == "cpu" else self._lengths.longest
        extent = reach(longest + k, self._width)
        last = (position - 1).clamp_min(0) + torch.arange(k, device=position.device)[:, None]
        unseen = torch.arange(extent, device=position.device) > last[..., None]
        mask = torch.zeros(unseen.shape, dtype=self._keys.dtype, device=position.device)
        return extent, mask.masked_fill_(unseen, -torch.inf)[:, :, None, None]

    def _reserve(self, k: int) -> None:
        missing = self._slots(self._capacity + k + 1) - 1 - self._width
        if missing > 0:
            spill, self._width = self._width, self._width + missing
            for cache in (self._keys, self._values):
                cache[:, :, spill] = 0
            more = self._keys.new_zeros(*self._keys.shape[:2], missing, self._keys.shape[3])
            self._keys, self._values = torch.cat((self._keys, more), 2), torch.cat((self._values, more), 2)

    def _slots(self, least: int) -> int:
        return least if self._static is None else self._static.slots(least)

    def _count(self, drafted: Tensor, kept: Tensor, stop_ids: Tensor | None) -> Tensor | None:
        k = drafted.shape[1]
        count = None
        if stop_ids is not None and k:
            stops = (drafted[..., None] == stop_ids).any(-1)  # isin may sort, and then waits for the device
            count = torch.where(stops.any(1), stops.int().argmax(1) + 1, k)
        if self._ring.lost or self._static is not None:  # a captured step must always look
            count = torch.where(kept, k if count is None else count, 0)
        return count

    def truncate(self, row: int, length: int) -> None:
        """Forget positions >= length of `row`."""
        if length >= int(self._lengths.on_device[row]):
            return
        self._lengths.truncate(row, length)
        self._ring.cut(row, length)

    def state_bytes(self, row: int) -> int:
        """Bytes of K/V that `row` holds; the ring of features does not grow with the text."""
        heads, d = self.net.geometry.num_kv_heads, self.net.geometry.head_dim
        return int(self._lengths.on_device[row]) * 2 * heads * d * self._keys.element_size()

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """What `row` knows: keys, values [Nkv, length - 1, d] of whole pairs, and the last feature [feature_size]."""
        length = int(self._lengths.on_device[row])
        whole = max(length - 1, 0)
        state = {"keys": self._keys[row, :, :whole], "values": self._values[row, :, :whole]}
        return {**state, "feature": self._ring.newest(row, length)} if length else state


class FeatureRing:
    """The newest fused features of each row, by position, in a ring of fixed size."""

    def __init__(self, name: str, *, rows: int, window: int, width: int, like: Tensor) -> None:
        """name: the drafter, for errors; window: features kept per row; width: their size; like: dtype and device."""
        if window < 1:
            raise ConfigError(f"{name}: window is {window}; it must hold at least the newest feature")
        self._window = window
        self._features = like.new_zeros(rows, window + 1, width)
        self._at = torch.full((rows, window + 1), -1, dtype=torch.int64, device=like.device)
        self.lost: set[int] = set()
        """Rows that were ever cut back to a position whose feature was gone."""

    def before(self, rows: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """The feature one before each position [B, width], and whether it is still there [B] bool."""
        slot = (position - 1).clamp_min(0) % self._window
        return self._features[rows, slot], (self._at[rows, slot] == position - 1) & (position > 0)

    def keep(self, rows: Tensor, start: Tensor, count: Tensor, features: Tensor) -> None:
        """Store features [B, n, width] of positions start .. start + count - 1, the newest where not all fit."""
        offset = torch.arange(features.shape[1], device=start.device)
        position = start[:, None] + offset
        stays = (offset < count[:, None]) & (offset >= count[:, None] - self._window)
        slot = torch.where(stays, position % self._window, self._window)
        self._features[rows[:, None], slot] = features.to(self._features.dtype)
        self._at[rows[:, None], slot] = position

    def cut(self, row: int, length: int) -> None:
        """Note whether the feature before `length`, to which `row` was cut back, is gone."""
        if length and int(self._at[row, (length - 1) % self._window]) != length - 1:
            self.lost.add(row)

    def newest(self, row: int, length: int) -> Tensor:
        """The feature [width] of the last of `length` positions."""
        return self._features[row, (length - 1) % self._window]


def pick(
    logits: Tensor, target_ids: Tensor | None, vocab_size: int, sampler: DraftSampler
) -> tuple[Tensor, Tensor | None]:
    """Draft logits [B, V_d] -> target ids [B] and what they were drawn from, over the target's vocabulary.

    target_ids [V_d]: target id of each draft id; None: the same.
    """
    if sampler.greedy:
        best = logits.argmax(-1)
        return (best if target_ids is None else target_ids[best]), None
    if target_ids is None:
        return sampler.draw(logits)
    full = logits.new_full((len(logits), vocab_size), -torch.inf)
    return sampler.draw(full.index_copy_(1, target_ids, logits))
