"""The backbone that DFlash, DSpark and DLite share: a few query rows that see themselves and a projected context.

Every layer projects the same context features to its own keys and values; the context is never updated and passes no
input norm. Attention inside the block is bidirectional. Axes as in qwen3.py; b query rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from .qwen3 import Geometry, Layer, RMSNorm, Rope


class Memory(Protocol):
    """What query rows attend to besides themselves."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [B, Nq, b, d] over the memory and the new keys, values [B, Nkv, b, d] -> [B, Nq, b, d]."""
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
        """Join the projections that always run together; call at most once, after the weights are in.

        The published names go with it. Without this call the net computes the same, piece by piece.
        """
        for layer in self.each_layer():
            layer.self_attn.join()
            layer.mlp.join()

    def run(self, x: Tensor, rope: Rope, memory: Memory, *, context: tuple[Tensor, Rope] | None = None) -> Tensor:
        """Query rows x [B, b, H] through all layers -> [B, b, H], before the final norm.

        context: features [B, c, H] that every layer projects together with x, in front of it, and the rope of both.
        """
        for index, layer in enumerate(self.each_layer()):
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            seen, seen_rope = (normed, rope) if context is None else (torch.cat((context[0], normed), 1), context[1])
            keys, values = attention.keys_values(seen, seen_rope)
            x = layer.finish(x, memory.attend(index, attention.queries(normed, rope), keys, values))
        return x
