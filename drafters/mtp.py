"""MTP (NEXTN): the target's own next-token module, chained (DeepSeek-V3, Qwen3-next). Experimental.

Experimental means: written from a description and tested for its own laws; no vectors of an official run were at hand.
"""

from __future__ import annotations

from pathlib import Path

from agentbench_spec.drafting import DrafterSpec, TargetInfo

from .nets import mtp
from .nets.chain import DEFAULT_WINDOW
from .nets.chain_drafter import ChainDrafter
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.mtp_layouts import MtpConfig, read_config
from .nets.registry import require_checkpoint
from .nets.yarn import stretched, target_yarn


class MtpDrafter(ChainDrafter):
    """A one-layer MTP module on rows; see `make` for the options."""

    def __init__(self, checkpoint: Checkpoint, config: MtpConfig, spec: DrafterSpec, *, window: int) -> None:
        super().__init__(spec, window=window)
        self._checkpoint, self._config = checkpoint, config

    def load(self, target: TargetInfo) -> mtp.MtpNet:
        """The module, checked against `target`. Raises ConfigError if they do not belong together."""
        self.spec = stretched(self.spec, target_yarn(target.config))
        return mtp.load(self._checkpoint, self._config, target)


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
        version=found.revision or "0",
    )
    return MtpDrafter(found, config, spec, window=window)
