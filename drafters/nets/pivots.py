"""The target states DLite drafts from: those of each row's newest position, constant in size.

A turn may be decoded and thrown away, back to where it started. The states of that position are gone from the target by
then, so they are put aside when the first round of a turn moves on from them. Axes: R engine rows, S slots, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .context import check_anchors


class Pivots:
    """newest [R, S, H]: states of position end - 1, for an anchor at `end` [R] int64 (-1: cut away); `set_aside`
    likewise, for the anchor at which the row's turn started (-1: none)."""

    def __init__(
        self,
        rows: int,
        slots: int,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        static: bool = False,
    ) -> None:
        """static: rounds are, so that no value may be looked at."""
        self._static = static
        shape = (rows, slots, hidden_size)
        self.newest, self.set_aside = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.end = torch.zeros(rows, dtype=torch.int64, device=device)
        self.aside_end = torch.full_like(self.end, -1)
        self._in_round = False

    def ask(self, position: Tensor, name: str) -> None:
        """A proposal for anchors at `position` [R] is wanted; what is observed next is what became of it.

        Raises ContractError if a row's states are not there, where the host can tell.
        """
        self._in_round = True
        if not self._static and position.device.type == self.end.device.type == "cpu":
            check_anchors(position, self.end, name)

    def take(self, rows: Tensor, start: Tensor, count: Tensor, states: Tensor) -> None:
        """states [B, S, H] of positions start + count - 1 of `rows`; start, count [B]; count 0: no change."""
        counts, old_end = count > 0, self.aside_end[rows]
        if self._in_round:
            first = counts & (old_end < 0)
            self.set_aside[rows] = torch.where(first[:, None, None], self.newest[rows], self.set_aside[rows])
            self.aside_end[rows] = torch.where(first, start, old_end)
        else:
            self.aside_end[rows] = torch.where(counts, -1, old_end)
        self._in_round = False
        self.newest[rows] = torch.where(counts[:, None, None], states, self.newest[rows])
        self.end[rows] = torch.where(counts, start + count, self.end[rows])

    def truncate(self, row: int, length: int) -> None:
        """Positions >= length are void; a cut to the turn's start brings its states back."""
        self._in_round = False
        back = self.aside_end[row] == length
        self.newest[row] = torch.where(back, self.set_aside[row], self.newest[row])
        kept = torch.where(self.end[row] > length, -1, self.end[row])
        self.end[row] = torch.where(back, length, kept)
        self.aside_end[row] = torch.where(self.aside_end[row] > length, -1, self.aside_end[row])
