"""What a drafter keeps: bytes of its state against the text, whether they grow, and by how much a token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from agentbench_spec.results.metrics import PLAIN, by_drafter, counted, one_condition
from agentbench_spec.results.rows import TurnRow

_ENOUGH = 1.25
"""Longest over shortest text from which on it can be seen whether a state grows."""


@dataclass(frozen=True, slots=True)
class StateGrowth:
    """The state of one drafter at the ends of its turns."""

    drafter: str
    points: tuple[tuple[int, int], ...]
    """(text tokens that went through the target, bytes), short texts first."""

    @property
    def shortest(self) -> int:
        """Tokens of the shortest text."""
        return self.points[0][0]

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return self.points[-1][0]

    @property
    def last_bytes(self) -> int:
        """Bytes at the longest text."""
        return self.points[-1][1]

    @property
    def constant(self) -> bool | None:
        """True if it has one size at texts of unlike lengths; None: the lengths are too alike to tell."""
        if self.longest < _ENOUGH * self.shortest:
            return None
        return len({size for _, size in self.points}) == 1

    @property
    def full_from(self) -> int | None:
        """Tokens from which on it stays as large as it ever was, as a window does; None: it grows to the end."""
        shorter = [tokens for tokens, size in self.points if size < self.last_bytes]
        full = next((tokens for tokens, _ in self.points if not shorter or tokens > shorter[-1]), self.longest)
        grew = bool(shorter) and all(size <= self.last_bytes for _, size in self.points)
        return full if grew and self.longest >= _ENOUGH * full else None

    @property
    def bytes_per_token(self) -> float | None:
        """Slope of the straight line through the points; None where it cannot be told whether the state grows."""
        if self.constant is None:
            return None
        tokens, sizes = np.array(self.points, dtype=np.float64).T
        return float(np.polyfit(tokens, sizes, 1)[0])


def state_growths(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> list[StateGrowth]:
    """The state of every drafter that told its bytes at the end of a turn, plain decoding left out.

    Raises MeasurementError if the rows were measured under different conditions.
    """
    rows = list(rows)
    one_condition(rows)
    found = []
    for drafter, own in by_drafter(counted(rows, include_degenerate=include_degenerate)).items():
        points = sorted(
            (row.context_tokens + row.output_tokens - 1, row.draft_state_bytes)
            for row in own
            if row.context_tokens is not None and row.output_tokens and row.draft_state_bytes is not None
        )
        if points and drafter not in PLAIN:
            found.append(StateGrowth(drafter, tuple(points)))
    return found
