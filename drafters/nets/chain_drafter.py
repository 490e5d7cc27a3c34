"""What EAGLE-3 and MTP share as drafters: one layer chained over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError, Drafter, DrafterSpec, Proposal, Span, TargetInfo

from .chain import DEFAULT_WINDOW, PairNet, PairRows


class ChainDrafter(Drafter):
    """A one-layer module on rows; subclasses load it.

    stop_ids: a proposal ends with the first of these it drafts. window: features kept per row, in tokens.
    """

    net: nn.Module
    static = True

    def __init__(self, spec: DrafterSpec, *, stop_ids: tuple[int, ...] = (), window: int = DEFAULT_WINDOW) -> None:
        self.spec, self._stop_ids, self._window = spec, stop_ids, window

    def load(self, target: TargetInfo) -> PairNet:
        """The module, checked against `target`. Raises ConfigError if they do not belong together."""
        raise NotImplementedError

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Load the module for `target` and allocate its rows. Raises ConfigError if they do not belong together."""
        net = self.load(target)
        self.net = net  # type: ignore[assignment]
        self._stops = torch.tensor(self._stop_ids, device=target.device) if self._stop_ids else None
        self._rows = PairRows(
            self.spec.name,
            net,
            rows=rows,
            capacity=capacity,
            window=self._window,
            dtype=target.dtype,
            device=target.device,
            attention=target.attention,
        )

    @torch.inference_mode()
    def observe(self, span: Span) -> None:
        """Fuse the features of the span and write the entries they complete."""
        self._rows.observe(span)

    @torch.inference_mode()
    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Chain k draft tokens after the anchor. Raises ConfigError if k is beyond the trained length."""
        if self.spec.max_tokens is not None and k > self.spec.max_tokens:
            raise ConfigError(f"{self.spec.name}: asked for {k} tokens; it drafts at most {self.spec.max_tokens}")
        return self._rows.propose(anchor, position, k, self.sampler, self._stops)

    def truncate(self, row: int, length: int) -> None:
        """Forget positions >= length of `row`."""
        self._rows.truncate(row, length)

    def state_bytes(self, row: int) -> int:
        """Bytes of one-layer K/V that `row` holds."""
        return self._rows.state_bytes(row)

    def networks(self) -> Sequence[nn.Module]:
        """The module, for the engine's CPU linears."""
        return (self.net,)

    def snapshot(self, row: int) -> Mapping[str, Tensor]:
        """Keys and values of whole pairs, and the last feature."""
        return self._rows.snapshot(row)
