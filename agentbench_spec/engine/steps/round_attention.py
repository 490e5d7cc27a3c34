"""How static rounds attend, target and drafters alike: what each query sees is data, so one graph serves all positions.

Every mask of a round is an interval: a query sees the slots from its first to its last one. *flex* reads only the
blocks that some query of the row sees, however many there are, and splits them over the processors of a GPU; *masked*
reads all slots and serves where there is no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Kind = Literal["flex", "masked"]

BLOCK = 128
"""Slots that are read, or left out, together."""

_SHAPES = 256
"""Shapes of attention that may be compiled in a process: one for each (rows, width, geometry) of a run."""

Seen = BlockMask | Tensor
"""What the queries of a step see, made once a step and used by all its layers."""


class RoundAttention:
    """Attention over buffers of fixed size, of which each query sees an interval."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def slots(self, least: int) -> int:
        """The size of a buffer that holds `least` slots: whole blocks."""
        return -(-least // BLOCK) * BLOCK

    def seen(self, first: Tensor | None, last: Tensor, slots: int) -> Seen:
        """What queries see that look at slots first .. last of `slots`, [B, n] int64 each; first None: from 0 on."""
        if self.kind == "masked":
            at = torch.arange(slots, device=last.device)
            seen = at <= last[..., None]
            return (seen if first is None else seen & (at >= first[..., None]))[:, None]
        return _used_blocks(first, last, slots)

    @staticmethod
    def attend(queries: Tensor, keys: Tensor, values: Tensor, seen: Seen, scale: float | None = None) -> Tensor:
        """Softmax attention of query-head groups: queries [B, Nq, n, d], keys, values [B, Nkv, T, d] -> [B, Nq, n, d].

        seen: of these B, n and T; scale: None: 1 / sqrt(d).
        """
        if isinstance(seen, BlockMask):
            fused = queries.is_cuda and not torch.compiler.is_compiling()  # inside a compiled body it is fused anyway
            attend: Any = _fused() if fused else flex_attention
            grouped = queries.shape[1] != keys.shape[1]
            mixed: Tensor = attend(queries, keys, values, block_mask=seen, scale=scale, enable_gqa=grouped)
            return mixed
        heads, n = queries.shape[1:3]
        groups = heads // keys.shape[1]
        folded = queries.reshape(len(queries), keys.shape[1], groups * n, -1)
        mask = seen.repeat(1, 1, groups, 1)
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        return mixed.reshape(len(queries), heads, n, -1)


def _used_blocks(first: Tensor | None, last: Tensor, slots: int) -> BlockMask:
    """A mask that lists, row by row, only the blocks from the first to the last slot that is seen."""
    rows, n = last.shape
    blocks, tiles = slots // BLOCK, -(-n // BLOCK)
    low = torch.zeros_like(last) if first is None else first
    begin = low.amin(1) // BLOCK
    used = (last.amax(1) // BLOCK + 1 - begin).to(torch.int32)
    listed = (begin[:, None] + torch.arange(blocks, device=last.device)).clamp_max(blocks - 1).to(torch.int32)

    def up_to(b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return kv <= last[b, q]

    def between(b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv <= last[b, q]) & (kv >= low[b, q])

    return BlockMask(
        seq_lengths=(n, slots),
        kv_num_blocks=used[:, None, None].expand(rows, 1, tiles).contiguous(),
        kv_indices=listed[:, None, None].expand(rows, 1, tiles, blocks).contiguous(),
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=None,
        q_indices=None,
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=up_to if first is None else between,
    )


@cache
def _fused() -> Callable[..., Any]:
    """FlexAttention as one kernel; uncompiled it would read all slots and keep all scores."""
    allow_shapes()
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)


def allow_shapes() -> None:
    """Let dynamo keep as many shapes of one function as a run may have; past its default of 8 it gives up."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _SHAPES)
