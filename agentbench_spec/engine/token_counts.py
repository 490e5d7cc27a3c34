"""Token counts by a target's own tokenizer and chat template, without its weights."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TargetTokens"]


class TargetTokens:
    """Counts tokens as `source` does. Loads its tokenizer when first asked, and then raises as `loading.load` does."""

    def __init__(self, source: str, *, thinking: bool | None = None) -> None:
        """source: hub id, local folder or embedded model; thinking: the template's flag."""
        self.source = source
        self._thinking = thinking

    def text(self, text: str) -> int:
        """Tokens of a plain text, without any the tokenizer would add around it."""
        return len(self._loaded[0].encode(text, add_special_tokens=False))

    def prompt(self, rollout: Rollout, index: int) -> int:
        """Tokens of the prompt that asks for message `index`."""
        return len(self._loaded[1].prompt(rollout, index))

    @cached_property
    def _loaded(self) -> tuple[PreTrainedTokenizerBase, Renderer]:
        from agentbench_spec.engine.loading import load_tokenizer  # imports torch

        tokenizer = load_tokenizer(self.source)
        return tokenizer, Renderer(tokenizer, self._thinking)
