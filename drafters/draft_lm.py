"""A plain draft model (Leviathan et al. 2023, Chen et al. 2023): a small language model that guesses token by token."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from .nets.checkpoint import open_checkpoint
from .nets.lm import LmDrafter
from .nets.registry import require_checkpoint


class DraftLm(LmDrafter):
    """Feeds the anchor, then each guess but the last, one pass a token."""

    def draft(self, anchor: Tensor, position: Tensor, k: int) -> list[tuple[Tensor, Tensor | None]]:
        token, drawn = anchor, []
        for step in range(k):
            at = (position + step).where(position >= 0, position)
            drawn.append(self.choose(self.logits_of(token[:, None], at)[:, 0]))
            token = drawn[-1][0]
        return drawn


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    max_tokens: int = 16,
    same_tokenizer: bool = False,
) -> DraftLm:
    """A drafter from a small language model of the target's vocabulary, in a local folder or of a hub id.

    max_tokens: most tokens a round. same_tokenizer: tables of another length than the target's are the same
    tokenizer's, padded differently.
    Raises ConfigError if the model is of a shape that is not implemented, or of another vocabulary.
    """
    found = open_checkpoint(require_checkpoint("draft_lm", checkpoint), revision=revision)
    return DraftLm("draft_lm", found, max_tokens=max_tokens, same_tokenizer=same_tokenizer)
