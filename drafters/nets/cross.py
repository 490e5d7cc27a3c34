"""The backbone that DFlash, DSpark and DLite share: a few query rows that see themselves and a projected context.

Every layer projects the same context features to its own keys and values; the context is never updated and passes no
input norm. Attention inside the block is bidirectional. Axes as in qwen3.py; b query rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from .qwen3 import Geometry, Layer, RMSNorm, Rope, frozen_linear, joined, rms_norm, rotate


class Memory(Protocol):
    """Holds the context keys and values that query rows attend to."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [B, Nq, b, d] over the context and their own keys, values [B, Nkv, b, d] -> [B, Nq, b, d]."""
        ...


class CrossNet(nn.Module):
    """Layers and final norm; subclasses add what turns inputs into features and states into tokens."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.layers = nn.ModuleList(Layer(geometry) for _ in range(geometry.num_layers))
        self.context_kv_proj: nn.Module | None = None
        self.norm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)

    def each_layer(self) -> Iterator[Layer]:
        """The decoder layers, in order."""
        return cast(Iterator[Layer], iter(self.layers))

    def prepare(self) -> None:
        """Join the projections that always run together; call once, after the weights are in.

        The published names go with it. Without this call the net computes the same, piece by piece.
        """
        attentions = [layer.self_attn for layer in self.each_layer()]
        self.context_kv_proj = joined([p for a in attentions for p in (a.k_proj, a.v_proj)])
        parts = self.context_kv_proj.weight.detach().chunk(len(attentions))
        for layer, part in zip(self.each_layer(), parts, strict=True):
            layer.self_attn.join(frozen_linear(part))
            layer.mlp.join()

    def context_keys_values(self, features: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Context features [B, n, H] -> keys, values [B, L, Nkv, n, d] of every layer; from one product if prepared."""
        if self.context_kv_proj is None:
            each = [layer.self_attn.keys_values(features, rope) for layer in self.each_layer()]
            return torch.stack([keys for keys, _ in each], 1), torch.stack([values for _, values in each], 1)
        geometry = self.geometry
        both = self.context_kv_proj(features)
        both = both.view(*features.shape[:2], geometry.num_layers, 2, geometry.num_kv_heads, geometry.head_dim)
        keys, values = both.permute(3, 0, 2, 4, 1, 5).unbind(0)
        gains = torch.stack([cast(RMSNorm, layer.self_attn.k_norm).weight for layer in self.each_layer()])
        cos, sin = rope
        keys = rms_norm(keys, gains[:, None, None], geometry.rms_norm_eps)
        return rotate(keys, (cos[:, None], sin[:, None])), values

    def run(self, x: Tensor, rope: Rope, memory: Memory) -> Tensor:
        """Query rows x [B, b, H] through all layers -> [B, b, H], before the final norm."""
        for index, layer in enumerate(self.each_layer()):
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            keys, values = attention.keys_values(normed, rope)
            x = layer.finish(x, memory.attend(index, attention.queries(normed, rope), keys, values))
        return x
