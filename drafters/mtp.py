"""MTP (NEXTN): the target's own next-token module, chained (DeepSeek-V3, Qwen3-next). Experimental.

Experimental means: written from a description and tested for its own laws; no vectors of an official run were at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError, Drafter, DrafterSpec, Proposal, Span, TargetInfo

from .nets import mtp
from .nets.chain import DEFAULT_WINDOW, PairRows
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.mtp_layouts import MtpConfig, read_config
from .nets.registry import require_checkpoint


class MtpDrafter(Drafter):
    """A one-layer MTP module on rows; see `make` for the options."""

    def __init__(self, checkpoint: Checkpoint, config: MtpConfig, spec: DrafterSpec, *, window: int) -> None:
        self.spec, self._checkpoint, self._config, self._window = spec, checkpoint, config, window

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Load the module for `target` and allocate its rows. Raises ConfigError if they do not belong together."""
        self.net = mtp.load(self._checkpoint, self._config, target)
        self._rows = PairRows(
            self.spec.name,
            self.net,
            rows=rows,
            capacity=capacity,
            window=self._window,
            dtype=target.dtype,
            device=target.device,
        )

    @torch.inference_mode()
    def observe(self, span: Span) -> None:
        """Write the entries that the span's states and tokens complete."""
        self._rows.observe(span)

    @torch.inference_mode()
    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Chain k draft tokens after the anchor. Raises ConfigError if k is beyond the trained length."""
        if self.spec.max_tokens is not None and k > self.spec.max_tokens:
            raise ConfigError(
                f"{self.spec.name}: asked for {k} tokens; this module drafts {self.spec.max_tokens} at most"
            )
        return self._rows.propose(anchor, position, k, self.sampler)

    def truncate(self, row: int, length: int) -> None:
        """Forget positions >= length of `row`."""
        self._rows.truncate(row, length)

    def state_bytes(self, row: int) -> int:
        """Bytes of one-layer K/V that `row` holds."""
        return self._rows.state_bytes(row)

    def snapshot(self, row: int) -> Mapping[str, Tensor]:
        """Keys and values of whole pairs, and the last feature."""
        return self._rows.snapshot(row)


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    max_tokens: int | None = None,
    target_layers: int | None = None,
    rope_theta: float | None = None,
    window: int = DEFAULT_WINDOW,
) -> MtpDrafter:
    """An MTP drafter from a hub id or a local folder; the file may be bundled with the target's own weights.

    max_tokens: longest chain; default: the config's ttt_length, else any. target_layers: decoder layers of the target,
    where the config does not say. rope_theta: rope base in place of the config's. window: states of the target kept
    per row, in tokens.

    Raises ConfigError if the checkpoint holds no MTP module or an option does not fit it.
    """
    found = open_checkpoint(require_checkpoint("mtp", checkpoint), revision=revision)
    config = read_config(found, target_layers=target_layers, rope_theta=rope_theta)
    spec = DrafterSpec(
        name="mtp",
        hidden_layers=(config.num_target_layers - 1,),
        hidden_scope="all",
        max_tokens=config.max_tokens if max_tokens is None else max_tokens,
        max_positions=config.geometry.max_positions,
        version=revision or "0",
    )
    return MtpDrafter(found, config, spec, window=window)
