"""Domino (arXiv 2605.29707): a block drafter with a GRU that corrects the block left to right. Experimental.

Experimental means: written from a description and tested for its own laws; no vectors of an official run were at hand.
Drafting is greedy; at temperature > 0 the target's choice is compared with it, which is exact for point masses.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from agentbench_spec.drafting import Proposal

from .nets.block_drafter import BlockDrafter
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.domino import DominoConfig, DominoNet
from .nets.registry import require_checkpoint


class DominoDrafter(BlockDrafter):
    """Adds the GRU's correction to a block drafter."""

    net: DominoNet

    def __init__(self, checkpoint: Checkpoint, config: DominoConfig) -> None:
        super().__init__("domino", checkpoint, config.block, "match")
        self._domino = config

    def build(self) -> DominoNet:
        return DominoNet(self._domino)

    def rename(self, name: str) -> str | None:
        return name.removeprefix("logit_head.")

    def draft(self, anchor: Tensor, hidden: Tensor) -> Proposal:
        """Choose tokens left to right; from the configured one on, the GRU's state corrects the logits."""
        net = self.net
        base = net.lm_head(hidden)
        fixed, state = net.start(hidden)
        token, tokens = anchor, []
        for index in range(hidden.shape[1]):
            state = net.prefix_gru(net.embed_tokens(token), state)
            logits = base[:, index]
            if index >= self._domino.plain_tokens:
                logits = logits + net.correction(fixed[:, index], state)
            token = logits.argmax(-1)
            tokens.append(token)
        return Proposal(ids=torch.stack(tokens, 1))


def make(
    checkpoint: str | Path | None = None, *, revision: str | None = None, rope_theta: float | None = None
) -> DominoDrafter:
    """A Domino drafter from a local folder or hub id; rope_theta: rope base in place of the config's.

    Raises ConfigError if the checkpoint is not Domino or lacks a field.
    """
    found = open_checkpoint(require_checkpoint("domino", checkpoint), revision=revision)
    return DominoDrafter(found, DominoConfig.from_config(found.config, found.where, rope_theta=rope_theta))
