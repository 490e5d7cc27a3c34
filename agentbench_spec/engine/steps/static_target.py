"""The target in static rounds: positions are data, keys and values are written by index, one body fits all rounds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentbench_spec.engine.spans import Board
from agentbench_spec.engine.steps.graphs import Graphs
from agentbench_spec.engine.steps.round_attention import RoundAttention, allow_shapes
from agentbench_spec.engine.windows import SLIDING

if TYPE_CHECKING:
    from agentbench_spec.engine.target import Evaluated, Target

WIDTHS = (1, 2, 4, 8, 16)
"""Positions that the target is fed in a static round; beyond them every power of two."""


def width_for(positions: int) -> int:
    """The least width that so many positions fit into."""
    return next((width for width in WIDTHS if width >= positions), 1 << (positions - 1).bit_length())


@dataclass(slots=True)
class Static:
    """What makes the rounds of a target static, and holds what is captured of them."""

    attention: RoundAttention
    graphs: Graphs
    board: Board
    compiler: Any = None
    """How the target's body is compiled: a backend of torch.compile; None: not at all."""
    _bodies: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def evaluate(self, target: Target, start: Tensor, input_ids: Tensor, taps: Collection[int]) -> Evaluated:
        """As `Target.evaluate` on the first B rows, for starts [B] int64 that only the device knows."""
        rows, n = input_ids.shape
        positions = start[:, None] + torch.arange(n, device=start.device)
        target.cache.aim_at(positions)
        body = self._body if self.compiler is None else self._compiled(rows, n, tuple(taps))
        return target.evaluated(lambda: body(target, input_ids, positions), taps)

    def _body(self, target: Target, input_ids: Tensor, positions: Tensor) -> Tensor:
        slots = target.cache.capacity
        mask: Any = self.attention.seen(None, positions, slots)
        if target.windows is not None:
            newest = self.attention.seen(positions - (target.windows.tokens - 1), positions, slots)
            mask = {"full_attention": mask, SLIDING: newest} if target.windows.by_layer else newest
        logits: Tensor = target.model(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, cache=target.cache, use_cache=True
        ).logits
        return logits

    def _compiled(self, *shape: Any) -> Any:
        if shape not in self._bodies:
            allow_shapes()
            self._bodies[shape] = torch.compile(self._body, fullgraph=True, dynamic=False, backend=self.compiler)
        return self._bodies[shape]
