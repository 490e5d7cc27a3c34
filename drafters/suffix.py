"""Suffix look-up: continue the longest suffix of the text that occurred before, for as long as that looks safe.

As in SuffixDecoding (Oliaro et al., arXiv:2411.04975), with the row's own text as the only corpus and one path instead
of a tree. Against `ngram`: the match has no upper length, the continuation is the most frequent one, and the
proposal's length follows the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentbench_spec.drafting import ConfigError, DrafterSpec, SequenceDrafter, TargetInfo

from .automaton import SuffixAutomaton


class SuffixDrafter(SequenceDrafter):
    """Keeps a suffix automaton of each row's text."""

    spec = DrafterSpec(name="suffix")

    def __init__(self, *, min_match: int, factor: float, offset: float, min_probability: float) -> None:
        self._min_match = min_match
        self._factor = factor
        self._offset = offset
        self._min_probability = min_probability

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self._automata = [SuffixAutomaton() for _ in range(rows)]

    def extend_one(self, row: int, tokens: Sequence[int]) -> None:
        self._automata[row].extend(tokens)

    def truncate_one(self, row: int, length: int) -> None:
        self._automata[row].truncate(length)

    def propose_one(self, row: int, text: Sequence[int], k: int) -> Sequence[int]:
        state, matched = self._automata[row].locate(text[-1])
        if matched < self._min_match:
            return []
        limit = min(k, int(self._factor * matched + self._offset))
        return self._follow(self._automata[row], state, text[-1], limit)

    def match_one(self, row: int, text: Sequence[int]) -> int:
        return self._automata[row].locate(text[-1])[1]

    def state_bytes(self, row: int) -> int:
        """Host memory of the text and its automaton, an estimate."""
        return super().state_bytes(row) + self._automata[row].size_bytes()

    def _follow(self, automaton: SuffixAutomaton, start: int, anchor: int, limit: int) -> list[int]:
        guess: list[int] = []
        state, probability = start, 1.0
        while len(guess) < limit:
            # The anchor is not indexed yet: past the end of the index comes the anchor, and then the match again.
            token, state, share = automaton.likeliest(state) or (anchor, start, 1.0)
            probability *= share
            if probability < self._min_probability:
                break
            guess.append(token)
        return guess


def make(min_match: int = 1, factor: float = 2.0, offset: float = 0.0, min_probability: float = 0.1) -> SuffixDrafter:
    """A suffix look-up drafter.

    min_match: shortest match, in tokens, that is followed. factor, offset: a match of m tokens allows at most
    factor * m + offset proposed tokens. min_probability: the proposal ends before the token at which its estimated
    probability, the product of the tokens' shares among the continuations seen, falls under this.
    Raises ConfigError if a value is out of range.
    """
    if min_match < 1:
        raise ConfigError(f"drafter suffix: min_match is {min_match}; it must be at least 1")
    if factor < 0 or factor + offset < 0:
        raise ConfigError(f"drafter suffix: factor {factor} and offset {offset} allow a negative number of tokens")
    if not 0 <= min_probability <= 1:
        raise ConfigError(f"drafter suffix: min_probability is {min_probability}; it must be in 0..1")
    return SuffixDrafter(min_match=min_match, factor=factor, offset=offset, min_probability=min_probability)
