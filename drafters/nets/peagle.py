"""The P-EAGLE net: an EAGLE-3 head, usually of several layers, whose steps after the first are mask rows of one pass.

Row p holds the feature of position p and the token at p + 1; a mask row holds the mask token and a learned state in
the features' place. Attention is causal, so no committed row ever looks at a mask row.
Source: spec newer-drafters, section 4. Axes as in eagle3.py.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import TargetInfo

from .cross import Memory
from .eagle3 import Eagle3Layer, Eagle3Net
from .eagle3_layouts import Eagle3Config, Eagle3Shape
from .qwen3 import Attention, Layer, Rope


class PEagleNet(Eagle3Net):
    """Parameters of a P-EAGLE head, and its one pass over rows."""

    def __init__(self, shape: Eagle3Shape, config: Eagle3Config) -> None:
        super().__init__(shape, config)
        for _ in range(1, shape.geometry.num_layers):
            layer = Layer(shape.geometry)
            layer.self_attn = Attention(shape.geometry, qk_norm=shape.qk_norm)
            self.layers.append(layer)
        self.mask_hidden = nn.Parameter(torch.empty(shape.mask_hidden or 0))

    def prepare(self, target: TargetInfo) -> None:
        """After loading: settle tables and vocabulary, join projections, and fuse the mask state once."""
        self.settle(target)
        for layer in cast(list[Layer], list(self.layers)):
            layer.self_attn.join()
            layer.mlp.join()
        self.mask_feature = self.fuse(self.mask_hidden.detach().view(1, 1, self.taps, -1))[0, 0]

    def run(self, token_ids: Tensor, features: Tensor, rope: Rope, memory: Memory) -> Tensor:
        """token_ids [B, n], features [B, n, H] -> states [B, n, H] before the final norm."""
        first = cast(Eagle3Layer, self.layers[0])
        normed = first.hidden_norm(features)
        x = normed if self.config.norm_before_residual else features
        x = self._layer_over(0, x, torch.cat((first.input_layernorm(self.embed(token_ids)), normed), -1), rope, memory)
        for index, layer in enumerate(cast(list[Layer], list(self.layers)[1:]), 1):
            x = self._layer_over(index, x, layer.input_layernorm(x), rope, memory)
        return x

    def _layer_over(self, index: int, x: Tensor, normed: Tensor, rope: Rope, memory: Memory) -> Tensor:
        """Residual x [B, n, H] and the attention's input -> the layer's output [B, n, H]."""
        layer = cast(Layer, self.layers[index])
        keys, values = layer.self_attn.keys_values(normed, rope)
        x = x + layer.self_attn.output(memory.attend(index, layer.self_attn.queries(normed, rope), keys, values))
        return x + layer.mlp(layer.post_attention_layernorm(x))  # type: ignore[no-any-return]

    def logits(self, states: Tensor) -> Tensor:
        """States before the final norm [..., H] -> draft logits [..., V_d]."""
        return self.lm_head(self.norm(states))  # type: ignore[no-any-return]
