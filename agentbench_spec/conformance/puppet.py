"""A target in looks only, for laws in which it does not matter what is said: any text, at next to no cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from agentbench_spec.engine.target import Evaluated, Target

_STATES = 1 << 12
_MIX, _STEP = 6_364_136_223_846_793_005, 1_442_695_040_888_963_407


@lru_cache(maxsize=2)
def _table(hidden_size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(29)
    return torch.randn(_STATES, hidden_size, generator=draw, dtype=torch.float64).to(device, dtype)


class Puppet(Target):
    """Shows a drafter seeded states that depend on all the text up to their position, as a target's do.

    It has the sizes, the tables and the dtype of a real target, and neither its weights nor logits.
    """

    def __init__(self, target: Target, *, rows: int, capacity: int) -> None:
        self.info, self.rows, self.capacity = target.info, rows, capacity
        self.lengths = [0] * rows
        self._digests: list[list[int]] = [[0] for _ in range(rows)]
        self._states = _table(self.info.hidden_size, self.info.dtype, self.info.device)

    @torch.inference_mode()
    def evaluate(
        self, first_row: int, start: Sequence[int], input_ids: Tensor, *, keep: int = 0, taps: Collection[int] = ()
    ) -> Evaluated:
        """States [B, n, H] of `taps`; the logits are empty."""
        fed = input_ids.tolist()
        digests = [self._digest(first_row + b, at, fed[b]) for b, at in enumerate(start)]
        at = torch.tensor(digests, device=self.info.device)
        states = {layer: self._states[(at + 977 * (layer + 1)) % _STATES] for layer in taps}
        return Evaluated(logits=self._states.new_empty(*input_ids.shape, 0), states=states)

    def _digest(self, row: int, start: int, tokens: Sequence[int]) -> list[int]:
        kept = self._digests[row]
        del kept[start + 1 :]
        for token in tokens:
            kept.append(((kept[-1] ^ (token + 1)) * _MIX + _STEP) % 2**64)
        return [digest >> 33 for digest in kept[start + 1 :]]
