"""DLite's history-aware sibling (spec dlite, section 4): the same net with a window of fused states of the text.

It is the teacher of the published recipe and, by itself, the variant with sliding-window KV. Axes as in dlite.py; W
window, n positions of the text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .cross import Memory
from .dlite import DLiteConfig, DLiteNet, Layout
from .qwen3 import RMSNorm, Rope

HISTORY_TAPS = 3


def history_layers(depth: int) -> tuple[int, int, int]:
    """Target layers whose states are fused for a target of `depth` layers; the last one after the final norm."""
    return 0, depth // 2, depth - 1


class WindowNet(DLiteNet):
    """DLite with the fusion of text positions; positions are those of the text, not local ones."""

    def __init__(self, config: DLiteConfig) -> None:
        super().__init__(config)
        h = config.geometry.hidden_size
        self.history_fuse = nn.Linear(HISTORY_TAPS * h, h, bias=False)
        self.history_norm = RMSNorm(h, config.geometry.rms_norm_eps)

    def fuse(self, hidden: Tensor) -> Tensor:
        """States hidden [B, n, 3, H] of `history_layers` -> fused features [B, n, H]."""
        return self.history_norm(self.history_fuse(hidden.flatten(2)))  # type: ignore[no-any-return]

    def history(self, fused: Tensor, rope: Rope) -> list[tuple[Tensor, Tensor]]:
        """Fused features [B, n, H] -> keys, values [B, Nkv, n, d] of every layer."""
        return [layer.self_attn.keys_values(fused, rope) for layer in self.each_layer()]

    def places(self, anchor_position: Tensor) -> Layout:
        """Text positions for anchors at anchor_position [B] int64 >= 1."""
        config = self.config
        query = anchor_position[:, None] + torch.arange(
            1 - config.group, config.max_tokens + 1, device=anchor_position.device
        )
        context = (anchor_position - 1)[:, None].expand(-1, len(config.target_layer_ids))
        return Layout(context, query.clamp(min=0), query[:, : config.group] >= 0)

    def block_with(self, memory: Memory, slots: Tensor, query: Tensor, rope: Rope) -> Tensor:
        """As `block`, over a memory that holds the window: final normed states of the masks [B, K, H]."""
        query_rope = rope[0][:, :, slots.shape[1] :], rope[1][:, :, slots.shape[1] :]
        states = self.run(query, query_rope, memory, context=(slots, rope))
        return self.norm(states[:, -self.config.max_tokens :])  # type: ignore[no-any-return]
