"""What drafters share whose state is a `ContextCache`: rollback by pointer, its bytes, and what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import Drafter

from .context import ContextCache


class ContextDrafter(Drafter):
    """A net and the context it attends to, both made by `open`."""

    net: nn.Module
    _context: ContextCache

    @torch.inference_mode()
    def truncate(self, row: int, length: int) -> None:
        self._context.lengths.truncate(row, length)

    def state_bytes(self, row: int) -> int:
        """Bytes of keys and values of all layers."""
        return self._context.bytes_of(row)

    def networks(self) -> Sequence[nn.Module]:
        """The net, for the engine's CPU linears."""
        return (self.net,)

    def snapshot(self, row: int) -> Mapping[str, Tensor]:
        """The context: keys, values [L, Nkv, length, d]."""
        keys, values = self._context.of_row(row)
        return {"keys": keys, "values": values}
