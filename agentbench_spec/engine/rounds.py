"""When a turn ends, and what one round of it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from agentbench_spec.results.rows import StopReason


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


@dataclass(slots=True)
class Turn:
    """One row's turn: its prefill is done and its anchor, the first output token, is chosen."""

    position: int
    """Text position of the anchor."""
    output: list[int]
    """Emitted ids, the prefill token first; the last one is the anchor."""
    reference: Sequence[int] | None = None
    """Forced decoding: what the target "chooses", output[0] included."""
    rounds: list[Round] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def take(
        self, tokens: Sequence[int], proposed: int, limits: Limits, source: str | None = None, asked: int | None = None
    ) -> int:
        """Append the round's accepted drafts and next token, clipped; returns how many were kept."""
        kept = limits.clip(tokens[: self.room(limits)])
        self.output.extend(kept)
        self.position += len(kept)
        self.rounds.append(Round(proposed, len(tokens) - 1, len(kept), source, asked))
        self.end(limits)
        return len(kept)

    def end(self, limits: Limits) -> None:
        """Set the stop reason if the turn is over."""
        if self.output[-1] in limits.stop_ids:
            self.stop_reason = "stop"
        elif self.reference is not None and len(self.output) >= len(self.reference):
            self.stop_reason = "end_of_record"
        elif len(self.output) >= limits.max_new_tokens:
            self.stop_reason = "length"

    def room(self, limits: Limits) -> int:
        """Tokens the turn may still emit."""
        cap = limits.max_new_tokens if self.reference is None else min(limits.max_new_tokens, len(self.reference))
        return cap - len(self.output)

    def ahead(self, n: int) -> Sequence[int]:
        """The next n tokens of the record, fewer at its end; none if the turn is not forced."""
        return self.reference[len(self.output) :][:n] if self.reference is not None else ()
