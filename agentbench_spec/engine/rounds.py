"""When a turn ends, and what one round of it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Limits:
    """When a turn ends, and how far ahead a drafter may guess."""

    k: int
    """Drafted tokens per round; 0: plain decoding."""
    max_new_tokens: int
    """Output cap, the prefill token included."""
    stop_ids: frozenset[int] = frozenset()

    def clip(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens up to the first stop token, which stays."""
        stop = next((i for i, token in enumerate(tokens) if token in self.stop_ids), len(tokens))
        return tokens[: stop + 1]


class Round(NamedTuple):
    """What one round did."""

    proposed: int
    """Drafts verified."""
    matched: int
    """Drafts accepted, before any stop rule."""
    emitted: int
    """Tokens added to the text, clipped at stop tokens and the cap."""
    source: str | None = None
    """Who guessed, of a drafter made of several; None: the drafter has no parts."""
