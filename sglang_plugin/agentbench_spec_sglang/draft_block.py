"""The block of one round for the requests of a batch: eager, or replayed from one CUDA graph per batch size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from agentbench_spec_drafters.nets.dlite import BlockForward, DLiteNet
from torch import Tensor

from .slots import Slots

_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a round is drafted from, at addresses that graphs may keep."""

    slots: Tensor
    """[bs] int64: request slots."""
    real: Tensor
    """[bs, G] int64: the last tokens, anchor last."""
    query: Tensor
    """[bs, G + K, H]: real tokens and masks, embedded."""
    at: Tensor
    """[bs] int64: the anchors' positions."""

    def first(self, count: int) -> _Inputs:
        return _Inputs(self.slots[:count], self.real[:count], self.query[:count], self.at[:count])


class DraftBlock:
    """Drafts `tokens` tokens for any requests of a batch, from what `slots` keeps."""

    _static: _Inputs

    def __init__(self, net: DLiteNet, slots: Slots, tokens: int) -> None:
        self._net, self._slots, self._tokens = net, slots, tokens
        self._forward = BlockForward(net, device=slots.pivots.device, dtype=slots.pivots.dtype)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._sizes: list[int] = []

    @torch.no_grad()
    def __call__(self, slots: Tensor, anchors: Tensor, at: Tensor) -> Tensor:
        """Slots, anchors, the anchors' positions [bs] int64 -> drafts [bs, tokens] int64, valid until the next call."""
        real = torch.cat((self._slots.previous[slots], anchors[:, None]), 1)
        # the embedding is the target's: under tensor parallelism it talks to other ranks, so it stays out of the graph
        inputs = _Inputs(slots, real, self._net.queries(real, self._net.config.max_tokens), at)
        size = self._size_for(len(slots))
        return self._draft(inputs) if size is None else self._replay(size, inputs)

    def _size_for(self, count: int) -> int | None:
        found = bisect_left(self._sizes, count)
        return self._sizes[found] if found < len(self._sizes) else None

    def _draft(self, inputs: _Inputs) -> Tensor:
        states = self._forward(self._slots.pivots[inputs.slots], inputs.query, inputs.at)
        head = self._net.sequential_head
        return head.walk(states[:, : self._tokens], inputs.real, lambda logits: (logits.argmax(-1), None))[0]

    def _replay(self, size: int, inputs: _Inputs) -> Tensor:
        count, static = len(inputs.slots), self._static
        for name in ("slots", "real", "query", "at"):
            getattr(static, name)[:count].copy_(getattr(inputs, name))
        static.slots[count:size].zero_()  # the server's padding slot
        graph, drafts = self._graphs[size]
        graph.replay()
        return drafts[:count]

    @torch.no_grad()
    def capture(self, sizes: Sequence[int]) -> None:
        """Capture one graph per batch size, the largest first, so that the others fit into its memory."""
        device, config = self._slots.pivots.device, self._net.config
        most = max(sizes)
        real = torch.zeros(most, config.group, dtype=torch.int64, device=device)
        place = torch.zeros(most, dtype=torch.int64, device=device)
        query = self._net.queries(real, config.max_tokens).clone()
        self._static = _Inputs(place, real, query, torch.full_like(place, config.group))
        pool = torch.cuda.graph_pool_handle()
        for size in sorted(sizes, reverse=True):
            self._graphs[size] = self._captured(self._static.first(size), pool)
        self._sizes = sorted(sizes)

    def _captured(self, inputs: _Inputs, pool: Any) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                self._draft(inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            drafts = self._draft(inputs)
        return graph, drafts
