"""Rows of drafters that chain one layer over pairs (feature of position i, token at i + 1): EAGLE-3 and MTP.

Draft KV entry i is made from the pair (feature i, token i + 1), so it depends on one token beyond its feature. A text
whose anchor sits at p has the features 0..p-1, of which the last has no certain partner yet: entries 0..p-2 are
committed, and entry p-1 is made by `propose` from the anchor it is given, and again by `observe` when the anchor
arrives. What is committed therefore never depends on a token that may still change, and nothing is stale after a
rollback that keeps feature p-1. Features cost more than KV (hidden_size against 2 * kv_heads * head_dim), so only the
last `window` of them are kept, in a ring. A rollback further than that recovers the token-free part of entry p-1 from
the entry itself where the net allows it (`PairNet.unpair`).

Axes: B rows, n positions, k drafted, S tapped layers, H hidden, V vocabulary, Nkv heads, d head_dim, T slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from agentbench_spec.drafting import ContractError, DraftSampler, Proposal, Span

from .qwen3 import Geometry, Rope, grouped_attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries [B, Nq, 1, d], keys, values [B, Nkv, 1, d]) -> mixed [B, Nq, 1, d], the new entry included."""

Entries = tuple[Tensor, Tensor, Tensor | None]
"""Keys and values [B, n, Nkv, d] and, where keys are normed per head, the factor applied [B, n, Nkv, 1]."""

_BUCKET = 64
"""On CPU, attention spans the longest row rounded up to this many slots."""

_SCRATCH = 16
"""Slots beyond the capacity for drafted entries; grown once if a longer chain is asked for."""


class PairNet(Protocol):
    """What the rows need of a net."""

    geometry: Geometry
    feature_size: int
    """Width of a fused feature."""
    seed_size: int
    """Width of the token-free part of an entry."""
    invertible: bool
    """True if `unpair` exists, so that a window of features is enough."""
    target_ids: Tensor | None
    """[V_d] int64: target id of each draft id; None: the same."""

    def rope(self, positions: Tensor) -> Rope:
        """positions [B, n] -> rotations for keys and queries."""

    def fuse(self, hidden: Tensor) -> Tensor:
        """Span.hidden [B, n, S, H] -> fused features [B, n, feature_size]."""

    def seed(self, features: Tensor) -> Tensor:
        """Fused features [..., feature_size] -> token-free parts of their entries [..., seed_size]."""

    def pair(self, seeds: Tensor, token_ids: Tensor, rope: Rope) -> Entries:
        """seeds [B, n, seed_size], the tokens after them [B, n], rope of the feature positions -> their entries."""

    def unpair(self, entries: Entries, token_ids: Tensor, rope: Rope) -> Tensor:
        """The seeds [B, n, seed_size] `pair` was given, recovered from what it returned."""

    def step(self, token_ids: Tensor, hidden: Tensor, rope: Rope, attend: Attend) -> tuple[Tensor, Tensor]:
        """One row per sequence: tokens [B], hidden [B, feature_size] -> (hidden of the next step, logits [B, V_d])."""


class PairRows:
    """Committed pairs of some rows: a one-layer KV, the newest features, and the chain that drafts from them."""

    def __init__(
        self, net: PairNet, *, rows: int, capacity: int, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        """window: features kept per row; None, or more than the capacity: all of them."""
        self.net, self._capacity, self._device = net, capacity, device
        self._width = capacity + _SCRATCH
        self._window = min(window or capacity, capacity)
        self._grows = self._window == capacity and not net.invertible
        heads, d = net.geometry.num_kv_heads, net.geometry.head_dim
        # Each buffer has one slot more than it can hold: what must not be kept is written there and never read.
        self._keys = torch.zeros(rows, heads, self._width + 1, d, dtype=dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        self._factors = torch.zeros(rows, self._width + 1, heads, 1, dtype=torch.float32, device=device)
        self._tokens = torch.zeros(rows, self._width + 1, dtype=torch.int32, device=device)
        self._features = torch.zeros(rows, self._window + 1, net.feature_size, dtype=dtype, device=device)
        self._feature_at = torch.full((rows, self._window + 1), -1, dtype=torch.int64, device=device)
        self._tails = torch.zeros(rows, net.seed_size, dtype=dtype, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._all_rows = torch.arange(rows, device=device)
        self._lost: set[int] = set()
        self._has_factors = False

    def observe(self, span: Span) -> None:
        """Commit the counted positions of `span` (scope "all"): their features, and the entries they complete."""
        if span.hidden is None:
            raise ContractError("a chain drafter needs Span.hidden of every position (scope 'all'); the span has none")
        n = span.input_ids.shape[1]
        offset = torch.arange(n, device=self._device)
        counted = offset < span.count[:, None]
        position = span.start[:, None] + offset
        features = self.net.fuse(span.hidden)
        seeds = self._pair_seeds(span, features)
        tokens = span.input_ids.masked_fill(~counted, 0)
        entries = self.net.pair(seeds, tokens, self.net.rope((position - 1).clamp_min(0)))
        self._write(span.rows, torch.where(counted & (position > 0), position - 1, self._width), entries, tokens)
        self._keep_features(span, features, position, counted)
        self._lengths[span.rows] = torch.where(span.count > 0, span.start + span.count, self._lengths[span.rows])

    def _pair_seeds(self, span: Span, features: Tensor) -> Tensor:
        """Seeds of positions start-1 .. start+n-2: the feature before the span pairs with the span's first token."""
        before, at = span.start - 1, span.start.sub(1).clamp_min(0) % self._window
        seeds = self.net.seed(torch.cat((self._features[span.rows, at][:, None], features[:, :-1]), 1))
        if not self._lost:
            return seeds
        kept = self._feature_at[span.rows, at] == before
        first = torch.where(kept[:, None], seeds[:, 0], self._tails[span.rows])
        return torch.cat((first[:, None], seeds[:, 1:]), 1)

    def _write(self, rows: Tensor, slot: Tensor, entries: Entries, tokens: Tensor) -> None:
        keys, values, factors = entries
        at = rows[:, None]
        self._keys[at, :, slot] = keys
        self._values[at, :, slot] = values
        self._tokens[at, slot] = tokens.to(torch.int32)
        if factors is not None:
            self._has_factors = True
            self._factors[at, slot] = factors.float()

    def _keep_features(self, span: Span, features: Tensor, position: Tensor, counted: Tensor) -> None:
        newest = position >= (span.start + span.count - self._window)[:, None]
        slot = torch.where(counted & newest, position % self._window, self._window)
        self._features[span.rows[:, None], slot] = features.to(self._features.dtype)
        self._feature_at[span.rows[:, None], slot] = position

    def propose(
        self, anchor: Tensor, position: Tensor, k: int, sampler: DraftSampler, stop_ids: Tensor | None = None
    ) -> Proposal:
        """Chain k tokens from the last feature of each row; entries go to slots that do not count.

        stop_ids [m] int64: a row's proposal ends with the first of these it drafts.
        """
        first = (position - 1).clamp_min(0)
        hidden = self._features[self._all_rows, first % self._window]
        attend_at = self._attention(first, k)
        cos, sin = self.net.rope(first[:, None] + torch.arange(k, device=self._device))
        slots = torch.where(position[:, None] > 0, first[:, None] + torch.arange(k, device=self._device), self._width)
        token, ids, probs = anchor.clamp_min(0), [], []
        for j in range(k):
            rope = (cos[:, :, j : j + 1], sin[:, :, j : j + 1])
            hidden, logits = self.net.step(token, hidden, rope, attend_at(j, slots[:, j]))
            token, distribution = self._pick(logits, sampler)
            ids.append(token)
            probs.append(distribution)
        drafted = torch.stack(ids, 1) if ids else anchor.new_empty((len(anchor), 0))
        full = torch.stack([p for p in probs if p is not None], 1) if probs and probs[0] is not None else None
        return Proposal(ids=drafted, probs=full, count=self._count(drafted, position, stop_ids))

    def _attention(self, first: Tensor, k: int) -> Callable[[int, Tensor], Attend]:
        """Attention of each step of a chain: writes the step's entry, then looks at every slot up to it."""
        self._reserve(k)
        if len(first) == 1 and first.device.type == "cpu":
            extent, mask = int(first), None
        else:
            extent, mask = self._masks(first, k)

        def at(step: int, slot: Tensor) -> Attend:
            upto = extent + step + 1 if mask is None else extent
            seen = None if mask is None else mask[step]

            def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                self._keys[self._all_rows, :, slot] = keys[:, :, 0]
                self._values[self._all_rows, :, slot] = values[:, :, 0]
                return grouped_attention(queries, self._keys[:, :, :upto], self._values[:, :, :upto], seen)

            return attend

        return at

    def _masks(self, first: Tensor, k: int) -> tuple[int, Tensor]:
        extent = self._width
        if first.device.type == "cpu":
            longest = int(first.max()) + k
            extent = min(self._width, -(-longest // _BUCKET) * _BUCKET)
        last = first + torch.arange(k, device=first.device)[:, None]
        hidden = torch.arange(extent, device=first.device) > last[..., None]
        mask = torch.zeros(hidden.shape, dtype=self._keys.dtype, device=first.device).masked_fill_(hidden, -torch.inf)
        return extent, mask[:, :, None, None]

    def _reserve(self, k: int) -> None:
        missing = self._capacity + k - self._width
        if missing > 0:
            spill, self._width = self._width, self._width + missing
            for name, axis in (("_keys", 2), ("_values", 2), ("_factors", 1), ("_tokens", 1)):
                old: Tensor = getattr(self, name)
                old.narrow(axis, spill, 1).zero_()
                more = old.new_zeros([missing if i == axis else size for i, size in enumerate(old.shape)])
                setattr(self, name, torch.cat((old, more), axis))

    def _pick(self, logits: Tensor, sampler: DraftSampler) -> tuple[Tensor, Tensor | None]:
        """Draft logits [B, V_d] -> target ids [B] and the distribution over the target's vocabulary."""
        ids = self.net.target_ids
        if sampler.greedy:
            best = logits.argmax(-1)
            return (best if ids is None else ids[best]), None
        if ids is None:
            return sampler.draw(logits)
        full = logits.new_full((len(logits), self.net.geometry.vocab_size), -torch.inf)
        return sampler.draw(full.index_copy_(1, ids, logits))

    def _count(self, drafted: Tensor, position: Tensor, stop_ids: Tensor | None) -> Tensor | None:
        k = drafted.shape[1]
        count = None
        if stop_ids is not None and k:
            stops = torch.isin(drafted, stop_ids)
            count = torch.where(stops.any(1), stops.int().argmax(1) + 1, k)
        if self._lost:
            first = (position - 1).clamp_min(0)
            kept = self._feature_at[self._all_rows, first % self._window] == position - 1
            count = torch.where(kept, k if count is None else count, 0)
        return count

    def truncate(self, row: int, length: int) -> None:
        """Forget positions >= length. Beyond the window, keep what entry length-1 holds of its feature."""
        if length >= int(self._lengths[row]):
            return
        self._lengths[row] = length
        at = length - 1
        if length == 0 or int(self._feature_at[row, at % self._window]) == at:
            return
        self._lost.add(row)
        keys, values = self._keys[row, :, at][None, None], self._values[row, :, at][None, None]
        factors = self._factors[row, at][None, None] if self._has_factors else None
        old = self._tokens[row, at].long().view(1, 1)
        rope = self.net.rope(torch.full((1, 1), at, device=self._device))
        self._tails[row] = self.net.unpair((keys, values, factors), old, rope)[0, 0]

    def state_bytes(self, row: int) -> int:
        """Bytes of `row` that grow with its text; the ring of a net that can do without is of fixed size."""
        heads, d = self.net.geometry.num_kv_heads, self.net.geometry.head_dim
        each = 2 * heads * d * self._keys.element_size() + self._tokens.element_size()
        if self._has_factors:
            each += heads * self._factors.element_size()
        if self._grows:
            each += self.net.feature_size * self._features.element_size()
        return int(self._lengths[row]) * each
