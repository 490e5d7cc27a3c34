"""DSpark (arXiv 2607.05147): a DFlash block whose tokens are chosen left to right by a serial head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError, Proposal

from .nets.block import BlockConfig, Rule
from .nets.block_drafter import BlockDrafter, Verification, stack_probs
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.dspark import MarkovHead, confident_prefix
from .nets.registry import require_checkpoint
from .nets.speculators import is_speculators, read_block


class DSparkDrafter(BlockDrafter):
    """Adds the Markov bias and, with a threshold above 0, proposes only the confident prefix of the block."""

    def __init__(
        self, checkpoint: Checkpoint, config: BlockConfig, verification: Verification, confidence_threshold: float
    ) -> None:
        super().__init__("dspark", checkpoint, config, verification)
        if confidence_threshold > 0 and not config.confidence:
            raise ConfigError(f"{checkpoint.where}: confidence_threshold is set, but the draft has no confidence head")
        self._threshold = confidence_threshold

    def draft(self, anchor: Tensor, hidden: Tensor) -> Proposal:
        """Choose tokens left to right: each sees the one before it through the Markov bias."""
        head = self.net.markov_head
        if head is None:
            raise ConfigError(f"{self.checkpoint.where}: no Markov head")
        ids, probs, embedded = self._walk(head, anchor, hidden)
        return Proposal(ids, probs, self._count(hidden, embedded))

    def _walk(self, head: MarkovHead, anchor: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Tokens [B, k], their distributions, and the rows of W1 that each position was drafted from [B, k, r]."""
        base = self.net.lm_head(hidden)
        state, token = head.start(hidden), anchor
        tokens, probs, embedded = [], [], []
        for index in range(hidden.shape[1]):
            embedded.append(head.embed(token))
            state, bias = head(state, embedded[-1], hidden[:, index])
            token, drawn_from = self.choose(base[:, index] + bias)
            tokens.append(token)
            probs.append(drawn_from)
        return torch.stack(tokens, 1), stack_probs(probs), torch.stack(embedded, 1)

    def _count(self, hidden: Tensor, embedded: Tensor) -> Tensor | None:
        if self._threshold <= 0 or self.net.confidence_head is None:
            return None
        return confident_prefix(self.net.confidence_head(hidden, embedded), self._threshold)


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    verification: Verification = "rejection",
    confidence_threshold: float = 0.0,
    rope_theta: float | None = None,
    window_rule: Rule = "query",
) -> DSparkDrafter:
    """A DSpark drafter (DeepSpec or speculators layout) from a local folder or hub id.

    verification: "rejection" (published) or "match" at temperature > 0. confidence_threshold: propose only the
    positions before the first whose confidence is below it; 0 proposes the full block. window_rule: sliding layers'
    windows end at each row ("query", as engines serve) or at the anchor ("anchor", as speculators trains).
    Raises ConfigError if the checkpoint is not DSpark or an option does not fit it.
    """
    found = open_checkpoint(require_checkpoint("dspark", checkpoint), revision=revision)
    if is_speculators(found.config):
        config = read_block(found.config, found.where, "dspark", rope_theta=rope_theta, rule=window_rule)
    else:
        config = BlockConfig.from_config(found.config, found.where, rope_theta=rope_theta)
    if not config.markov_rank:
        raise ConfigError(f"{found.where}: this draft has no Markov head; load it as dflash={found.name}")
    return DSparkDrafter(found, config, verification, confidence_threshold)
