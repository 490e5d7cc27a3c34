"""Token counts by a target's own tokenizer and chat template, without its weights."""

from __future__ import annotations

from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer

__all__ = ["TargetTokens"]


class TargetTokens:
    """Counts tokens as `source` does."""

    def __init__(self, source: str, *, thinking: bool | None = None) -> None:
        """source: hub id, local folder or embedded model; thinking: the template's flag. Raises as `models.load`."""
        self.source = source
        self._tokenizer = load_tokenizer(source)
        self._renderer = Renderer(self._tokenizer, thinking)

    def text(self, text: str) -> int:
        """Tokens of a plain text, without any the tokenizer would add around it."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def prompt(self, rollout: Rollout, index: int) -> int:
        """Tokens of the prompt that asks for message `index`."""
        return len(self._renderer.prompt(rollout, index))
