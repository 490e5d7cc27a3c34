"""DFlash 2 (z-lab, 2026): a DFlash block whose tokens a selector chooses left to right among the likeliest of each row.

At temperature > 0 a token is drawn from the selector's scores, so its distribution covers the candidates alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError, Proposal

from .nets.block import Rule
from .nets.block_drafter import BlockDrafter, Verification, stack_probs
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.dflash2 import DFlash2Config, DFlash2Net
from .nets.registry import require_checkpoint


class DFlash2Drafter(BlockDrafter):
    """Adds convolutions and the selector to a block drafter."""

    net: DFlash2Net

    def __init__(self, checkpoint: Checkpoint, config: DFlash2Config, verification: Verification) -> None:
        super().__init__("dflash2", checkpoint, config.block, verification)
        self._dflash2 = config

    def build(self) -> DFlash2Net:
        return DFlash2Net(self._dflash2, own=self._own)

    def rename(self, name: str) -> str | None:
        name = name.removeprefix("model.")
        return name.removesuffix(".weight") if name.endswith("codebook.weight") else name

    def draft(self, anchor: Tensor, hidden: Tensor) -> Proposal:
        """Choose tokens left to right among each row's candidates, by scores that depend on the token before."""
        selector, (candidates, unary) = self.net.candidate_selector, self.net.candidates(hidden)
        codes, token, tokens, probs = selector.hidden_projection(hidden), anchor, [], []
        for index in range(hidden.shape[1]):
            scores = selector(candidates[:, index], unary[:, index], token, codes[:, index])
            full = scores.new_full((len(scores), self.config.geometry.vocab_size), -torch.inf)
            token, drawn_from = self.choose(full.scatter_(1, candidates[:, index], scores))
            tokens.append(token)
            probs.append(drawn_from)
        return Proposal(torch.stack(tokens, 1), stack_probs(probs))


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    verification: Verification = "rejection",
    block_size: int | None = None,
    rope_theta: float | None = None,
    window_rule: Rule = "query",
) -> DFlash2Drafter:
    """A DFlash 2 drafter (z-lab or speculators layout) from a local folder or hub id.

    verification: "rejection" (published) or "match" at temperature > 0. block_size: a shorter block than trained, as
    the z-lab loop uses near its limit. rope_theta: rope base in place of the config's. window_rule: sliding layers'
    windows end at each row ("query", as engines serve) or at the anchor ("anchor", as speculators trains).
    Raises ConfigError if the checkpoint is not DFlash 2 or an option does not fit it.
    """
    found = open_checkpoint(require_checkpoint("dflash2", checkpoint), revision=revision)
    config = DFlash2Config.from_config(found.config, found.where, rope_theta=rope_theta, rule=window_rule)
    if block_size is not None:
        if not config.taps <= block_size <= config.block.block_size:
            raise ConfigError(
                f"{found.where}: block_size {block_size} is not in {config.taps}..{config.block.block_size}, the "
                "taps of the convolution and the trained block"
            )
        config = replace(config, block=replace(config.block, block_size=block_size))
    return DFlash2Drafter(found, config, verification)
