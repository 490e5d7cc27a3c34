"""Attention windows of a target: which of its layers see only the newest positions, and the masks that say so.

The cache keeps every position of every layer, since a turn may be cut back to any of them; a layer with a window reads
only those that a query can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agentbench_spec.engine.attention import causal_mask
from agentbench_spec.engine.cache import SlotCache

SLIDING = "sliding_attention"
"""A layer type with a window, as transformers names it in `config.layer_types`."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The one window length of a target, and which layers have it."""

    tokens: int
    """Positions a query sees in such a layer, its own included."""
    by_layer: bool
    """Layers differ, by `config.layer_types`; else every layer has the window."""

    @classmethod
    def of(cls, config: Any) -> Windows | None:
        """What a model's text config says; None if every layer sees the whole text."""
        tokens, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
        slides = SLIDING in types if types else getattr(config, "use_sliding_window", True) is not False
        return cls(int(tokens), by_layer=bool(types)) if tokens and slides else None

    def masks(
        self, full: Tensor | None, cache: SlotCache, at_start: Tensor, start: Sequence[int], n: int, groups: int
    ) -> Any:
        """What the model takes as its attention mask where `full` is that of a layer that sees everything.

        at_start, start [B]: first position fed of each row, on the device and on the host; n positions are fed, and
        `cache` is aimed at them. A sliding mask covers the positions from the first on that any query sees.
        """
        extent, sliding = cache.window.extent, full
        if extent > self.tokens:
            first = max(min(start) + 1 - self.tokens, 0) // cache.granule * cache.granule
            sliding = causal_mask(
                at_start, n, extent, groups, cache.layers[0].keys.dtype, first=first, window=self.tokens
            )
        return {"full_attention": full, SLIDING: sliding} if self.by_layer else sliding
