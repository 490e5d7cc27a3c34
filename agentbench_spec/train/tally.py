"""Sums of a step over texts and ranks, and the log row they make."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentbench_spec.train.interface import Loss
from agentbench_spec.train.parallel import World, summed
from agentbench_spec.train.step import Sums

__all__ = ["Counts", "Tally"]


class Tally:
    """Adds up the Sums of several texts. k: K, positions of a block."""

    def __init__(self, k: int) -> None:
        self.k = k
        self._sums: list[Tensor] = []
        self._names: tuple[Loss, ...] = ()

    def add(self, sums: Sums) -> None:
        """Take in one text."""
        self._names = tuple(sums.losses)
        # a block counts up to its first position that does not
        whole = sums.counted.long().cumprod(1).bool()
        prefix = (sums.correct & whole).long().cumprod(1)
        parts = [
            sums.weight.detach().reshape(1),
            torch.stack([*sums.losses.values()]),
            sums.counted.sum().reshape(1),
            sums.correct.sum().reshape(1),
            whole[:, 0].sum().reshape(1),
            prefix.sum().reshape(1),
            whole.sum(0),
            prefix.sum(0),
        ]
        self._sums.append(torch.cat([part.double() for part in parts]))

    def over_ranks(self, world: World) -> Counts:
        """The sums of all ranks; every rank must call it."""
        width = 5 + len(self._names) + 2 * self.k
        total = sum(self._sums, torch.zeros(width, dtype=torch.float64, device=world.device))
        return Counts(self._names, self.k, summed(total, world).tolist())


class Counts:
    """Sums of a step on the host."""

    def __init__(self, names: tuple[Loss, ...], k: int, values: list[float]) -> None:
        n = len(names)
        self.weight = values[0]
        self.losses = dict(zip(names, values[1 : 1 + n], strict=True))
        self.positions, self.correct, self.blocks, self.accepted = values[1 + n : 5 + n]
        self._reached, self._right = values[5 + n : 5 + n + k], values[5 + n + k :]

    def row(self, factors: dict[Loss, float], seconds: float) -> dict[str, Any]:
        """Columns of the log: losses, token accuracy, acceptance under teacher forcing, throughput; None: no data."""
        mean = {name: _ratio(value, self.weight) for name, value in self.losses.items()}
        total = _ratio(sum(factors[name] * value for name, value in self.losses.items()), self.weight)
        reach = {
            f"accept_{i}": _ratio(right, reached)
            for i, (right, reached) in enumerate(zip(self._right, self._reached, strict=True), 1)
        }
        return {
            "loss": total,
            **{f"loss_{name}": value for name, value in mean.items()},
            "token_accuracy": _ratio(self.correct, self.positions),
            "prefix_acc": 1 + self.accepted / self.blocks if self.blocks else None,
            **reach,
            "blocks": int(self.blocks),
            "positions": int(self.positions),
            "tokens_per_s": self.positions / seconds,
            "seconds": seconds,
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
