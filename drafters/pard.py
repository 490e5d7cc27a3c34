"""PARD (AMD, 2025): a small language model that was tuned to fill K mask tokens after the text in one pass."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from agentbench_spec.drafting import ConfigError

from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.lm import LmDrafter
from .nets.qwen3 import whole
from .nets.registry import require_checkpoint


class PardDrafter(LmDrafter):
    """Runs the anchor and k - 1 masks through the model at once; row j guesses the token after it."""

    def __init__(self, checkpoint: Checkpoint, *, max_tokens: int, same_tokenizer: bool) -> None:
        super().__init__("pard", checkpoint, max_tokens=max_tokens, same_tokenizer=same_tokenizer)
        self._mask_id = whole(checkpoint.config, "pard_token", checkpoint.where, least=0)
        if self._mask_id >= self.config.geometry.vocab_size:
            raise ConfigError(f"{checkpoint.where}: pard_token {self._mask_id} is beyond its vocabulary")

    def draft(self, anchor: Tensor, position: Tensor, k: int) -> list[tuple[Tensor, Tensor | None]]:
        ids = anchor.new_full((len(anchor), k), self._mask_id)
        ids[:, 0] = anchor
        return [self.choose(row) for row in self.logits_of(ids, position).unbind(1)]


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    max_tokens: int = 16,
    same_tokenizer: bool = False,
) -> PardDrafter:
    """A PARD drafter from a local folder or hub id.

    max_tokens: most tokens a round; the published models were tuned with 8 and weaken slowly beyond. same_tokenizer:
    tables of another length than the target's are the same tokenizer's, padded differently.
    Raises ConfigError if the checkpoint is no PARD model or does not fit.
    """
    found = open_checkpoint(require_checkpoint("pard", checkpoint), revision=revision)
    if found.config.get("pard_token") is None:
        raise ConfigError(f"{found.where}: no pard_token, so this is no PARD model; a plain one loads as draft_lm=")
    return PardDrafter(found, max_tokens=max_tokens, same_tokenizer=same_tokenizer)
