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
    def truncate(self, row: int, length: int) -> int | None:
        return self._context.truncate(row, length)

    def state_bytes(self, row: int) -> int:
        """Bytes of keys and values of all layers."""
        return self._context.bytes_of(row)

    def networks(self) -> Sequence[nn.Module]:
        """The net, for the engine's CPU linears."""
        return (self.net,)

    def snapshot(self, row: int) -> Mapping[str, Tensor]:
        """The context: keys, values [L, Nkv, length, d]; of layers that keep a window only, what blocks see of it."""
        keys, values = self._context.of_row(row)
        window = self._context.window_of_row(row)
        own = {} if window is None else {"window_keys": window[0], "window_values": window[1]}
        return {"keys": keys, "values": values, **own}
