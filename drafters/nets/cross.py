"""The backbone that DFlash, DSpark and DLite share: a few query rows that see themselves and a projected context.

Every layer projects the same context features to its own keys and values; the context is never updated and passes no
input norm. Attention inside the block is bidirectional. Axes as in qwen3.py; b query rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .qwen3 import Geometry, Layer, RMSNorm, Rope, lay_end_to_end, rms_norm, rotate, split_heads


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
        self.norm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)

    def each_layer(self) -> Iterator[Layer]:
        """The decoder layers, in order."""
        return cast(Iterator[Layer], iter(self.layers))

    def prepare(self) -> None:
        """Join the projections that always run together; call once, after the weights are in."""
        attentions = [layer.self_attn for layer in self.each_layer()]
        self._kv_weight = lay_end_to_end([p for a in attentions for p in (a.k_proj, a.v_proj)])
        norms = torch.stack([cast(RMSNorm, a.k_norm).weight.detach() for a in attentions])
        self._k_norms = norms[:, None, None, :]
        for layer in self.each_layer():
            layer.mlp.join()

    def context_keys_values(self, features: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Context features [B, n, H] -> keys, values [B, L, Nkv, n, d] of every layer, from one product."""
        geometry = self.geometry
        both = F.linear(features, self._kv_weight)
        both = both.view(*features.shape[:2], geometry.num_layers, 2, geometry.num_kv_heads, geometry.head_dim)
        keys, values = both.permute(3, 0, 2, 4, 1, 5).unbind(0)
        cos, sin = rope
        keys = rotate(rms_norm(keys, self._k_norms, geometry.rms_norm_eps), (cos[:, None], sin[:, None]))
        return keys, values

    def run(self, x: Tensor, rope: Rope, memory: Memory) -> Tensor:
        """Query rows x [B, b, H] through all layers -> [B, b, H], before the final norm."""
        weights = self._kv_weight.view(len(self.layers), -1, x.shape[-1])
        for index, layer in enumerate(self.each_layer()):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            keys, values = (
                split_heads(part, attention.head_dim) for part in F.linear(normed, weights[index]).chunk(2, -1)
            )
            keys = rotate(attention.k_norm(keys), rope)
            x = layer.finish(x, memory.attend(index, attention.queries(normed, rope), keys, values))
        return x
