"""The attention function our targets use, registered through transformers' own extension point.

Keys and values arrive as views into the SlotCache, so grouped-query attention must not expand them: the G query
heads that share one key/value head are folded into the query length instead.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface

from agentbench_spec.engine.cpu.split_attention import Split, split_attention
from agentbench_spec.engine.steps.round_attention import RoundAttention, Seen
from agentbench_spec.errors import ConfigError

NAME = "agentbench_slots"
"""Value for `config._attn_implementation`."""

_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Seen | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    split: Split | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of new positions over a slot cache.

    query [B, Hq, n, D]; key, value [B, Hkv, T, D]; attention_mask [B, 1, G * n, S] additive in query dtype, G = Hq /
    Hkv, over the last S <= T positions, as `causal_mask` makes it (None: every position may be seen), or what
    `RoundAttention.seen` makes for a static round; split: how long contexts are split on a CPU. Returns
    ([B, n, Hq, D], None).

    Raises ConfigError for a variant that this function does not compute (soft cap, sinks), and for a layer whose
    window the text has outgrown without a mask that says so.
    """
    window = kwargs.get("sliding_window")
    if window is not None and attention_mask is None and window < key.shape[2]:
        raise ConfigError(
            f"this target's attention slides over a window of {window} tokens, which its config does not say in a way "
            f"the engine reads (sliding_window, layer_types); the text has reached {key.shape[2]}"
        )
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ConfigError(f"this target's attention needs {name!r}, which the engine does not compute")
    if isinstance(attention_mask, BlockMask) or (attention_mask is not None and attention_mask.dtype == torch.bool):
        return RoundAttention.attend(query, key, value, attention_mask, scaling).transpose(1, 2), None
    if attention_mask is not None and (seen := attention_mask.shape[-1]) < key.shape[2]:
        key, value = key[:, :, -seen:], value[:, :, -seen:]
    batch, query_heads, n, width = query.shape
    kv_heads = key.shape[1]
    folded = query.reshape(batch, kv_heads, query_heads // kv_heads * n, width)
    if split is not None and batch == 1 and split.applies(n, key.shape[2]):
        parted = split_attention(folded, key, value, attention_mask, split.parts, scaling)
        return parted.reshape(batch, query_heads, n, width).transpose(1, 2), None
    out = torch.nn.functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=attention_mask, scale=scaling, dropout_p=dropout
    )
    # reshape: kernels answer in different layouts, and in some of CUDA's the heads cannot be told apart by a view
    return out.reshape(batch, query_heads, n, width).transpose(1, 2), None


def causal_mask(
    start: Tensor, n: int, extent: int, groups: int, dtype: torch.dtype, *, first: int = 0, window: int | None = None
) -> Tensor:
    """Additive mask for queries at positions start .. start + n - 1 over cache positions first .. extent - 1.

    start [B] int64; window: positions a query sees, its own included (None: all up to it). Returns
    [B, 1, groups * n, extent - first] dtype: 0 where a position may be seen, -inf elsewhere, the n rows repeated once
    per query head of a group, in `slot_attention`'s folded order.
    """
    at = start[:, None, None] + torch.arange(n, device=start.device)[:, None]  # [B, n, 1]
    position = torch.arange(first, extent, device=start.device)
    seen = position <= at  # [B, n, extent - first]
    if window is not None:
        seen &= position > at - window
    mask = torch.zeros(seen.shape, dtype=dtype, device=start.device).masked_fill_(~seen, float("-inf"))
    return mask.repeat(1, groups, 1)[:, None]


def register(split: Split | None = None) -> str:
    """Make `slot_attention` known to transformers, splitting long contexts so; returns the name to select it by.

    Safe to call twice.
    """
    if split is None:
        AttentionInterface.register(NAME, slot_attention)
        return NAME
    name = f"{NAME}_{split.parts}_{split.one_from}_{split.block_from}"
    AttentionInterface.register(name, partial(slot_attention, split=split))
    return name
