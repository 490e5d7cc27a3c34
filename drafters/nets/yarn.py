"""YaRN for drafters that share the target's positions: the scaling the run put on the target, on their own base.

Source: YaRN, arXiv 2309.00071, with the defaults transformers uses; a test compares both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.drafting import DrafterSpec

__all__ = ["Yarn", "stretched", "target_yarn"]


@dataclass(frozen=True, slots=True)
class Yarn:
    """A static rope scaling."""

    factor: float
    original: int
    """Window in tokens before scaling."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """What cosine and sine are multiplied by; None: 0.1 ln(factor) + 1."""

    @property
    def magnitude(self) -> float:
        """The factor on cosine and sine."""
        return 0.1 * math.log(self.factor) + 1.0 if self.attention_factor is None else self.attention_factor

    def inverse_frequency(self, plain: Tensor, base: float) -> Tensor:
        """plain [d/2] float32, base ** (-2i/d): slow dimensions are stretched, fast ones kept, a ramp between."""
        half = plain.shape[0]
        low = max(math.floor(self._dimension(self.beta_fast, 2 * half, base)), 0)
        high = min(math.ceil(self._dimension(self.beta_slow, 2 * half, base)), 2 * half - 1)
        ramp = (torch.arange(half, dtype=torch.float32, device=plain.device) - low) / max(high - low, 0.001)
        stretched = ramp.clamp(0, 1)
        return plain / self.factor * stretched + plain * (1 - stretched)

    def _dimension(self, rotations: float, dim: int, base: float) -> float:
        """The dimension that turns `rotations` times within the original window."""
        return dim * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(base))


def stretched(spec: DrafterSpec, yarn: Yarn | None) -> DrafterSpec:
    """The spec of a drafter that `yarn` was applied to: its window is at least the target's scaled one."""
    if yarn is None or spec.max_positions is None:
        return spec
    return replace(spec, max_positions=max(spec.max_positions, int(yarn.original * yarn.factor)))


def target_yarn(config: Any) -> Yarn | None:
    """The YaRN scaling in a target's transformers configuration; None if it has none."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping) or rope.get("rope_type") != "yarn":
        return None
    return Yarn(
        factor=float(rope["factor"]),
        original=int(rope["original_max_position_embeddings"]),
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        attention_factor=rope.get("attention_factor"),
    )
