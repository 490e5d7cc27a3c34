"""When a turn ends, and what one round of it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Chooser(Protocol):
    """Decides how many tokens each round drafts; see `agentbench_spec.engine.adaptive`."""

    def choose(self) -> int:
        """K of the next round."""
        ...

    def learn(self, asked: int, rounds: Sequence[Round], seconds: float) -> None:
        """What a round that asked for so many tokens did in each decoding row, and what it took."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """When a turn ends, and how far ahead a drafter may guess."""

    k: int
    """Drafted tokens per round; 0: plain decoding."""
    max_new_tokens: int
    """Output cap, the prefill token included."""
    stop_ids: frozenset[int] = frozenset()
    chooser: Chooser | None = None
    """Decides round by round how many tokens are drafted, k at most; None: always k."""

    def asked(self, most: int | None) -> int:
        """Tokens to ask for in the next round of a drafter that can propose `most`; None: any number."""
        return min(self.k, self.k if most is None else most) if self.chooser is None else self.chooser.choose()

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
    asked: int | None = None
    """Drafts the drafter was asked for."""
