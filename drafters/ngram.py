"""Prompt look-up: find the last few tokens earlier in the row's own text and propose what followed them there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from agentbench_spec.drafting import ConfigError, DrafterSpec, SequenceDrafter, TargetInfo

_ABSENT = -1
_GRAM_BYTES = 120
_GRAM_TOKEN_BYTES = 8
_TOKEN_BYTES = 9
"""Host memory of a distinct n-gram (dict entry, tuple, the int object of its position), of each token in its tuple, and
of what is kept per token of the text: CPython 3.11 on 64 bits, checked against tracemalloc by the tests."""


class NgramIndex:
    """Where each n-gram of one size was seen last, in a text that grows and is cut at its end."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._latest: dict[tuple[int, ...], int] = {}
        self._replaced = array("q")

    def extend(self, text: Sequence[int], start: int) -> None:
        """Index the n-grams of `text` that end at positions >= `start`; the text before `start` is indexed."""
        n, latest, replaced = self._n, self._latest, self._replaced
        for end in range(max(start, n - 1) + 1, len(text) + 1):
            gram = tuple(text[end - n : end])
            replaced.append(latest.get(gram, _ABSENT))
            latest[gram] = end

    def truncate(self, text: Sequence[int], length: int) -> None:
        """Take back the n-grams of `text` that end at positions >= `length`; call before the text is cut."""
        n, latest, replaced = self._n, self._latest, self._replaced
        for end in range(len(text), max(length, n - 1), -1):
            gram, before = tuple(text[end - n : end]), replaced.pop()
            if before == _ABSENT:
                del latest[gram]
            else:
                latest[gram] = before

    def after(self, text: Sequence[int]) -> int | None:
        """Position after the latest indexed occurrence of the last n tokens of `text`; None: never seen."""
        return self._latest.get(tuple(text[-self._n :]))

    def size_bytes(self) -> int:
        """Host memory held, an estimate that depends on the text alone, not on how it came about."""
        per_gram = _GRAM_BYTES + _GRAM_TOKEN_BYTES * self._n
        return per_gram * len(self._latest) + _TOKEN_BYTES * len(self._replaced)


class NgramDrafter(SequenceDrafter):
    """Looks the longest n-gram up first; among equal ones the most recent occurrence wins."""

    spec = DrafterSpec(name="ngram")

    def __init__(self, *, max_n: int, min_n: int) -> None:
        self._sizes = range(max_n, min_n - 1, -1)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self._indexed: list[list[int]] = [[] for _ in range(rows)]
        self._indices = [[NgramIndex(n) for n in self._sizes] for _ in range(rows)]

    def extend_one(self, row: int, tokens: Sequence[int]) -> None:
        text = self._indexed[row]
        start = len(text)
        text.extend(tokens)
        for index in self._indices[row]:
            index.extend(text, start)

    def truncate_one(self, row: int, length: int) -> None:
        text = self._indexed[row]
        for index in self._indices[row]:
            index.truncate(text, length)
        del text[length:]

    def propose_one(self, row: int, text: Sequence[int], k: int) -> Sequence[int]:
        _, at = self._longest(row, text)
        return [] if at is None else _copy(text, at, k)

    def match_one(self, row: int, text: Sequence[int]) -> int:
        return self._longest(row, text)[0]

    def _longest(self, row: int, text: Sequence[int]) -> tuple[int, int | None]:
        """Size of the longest n-gram seen before and the position after it; (0, None): none was."""
        for size, index in zip(self._sizes, self._indices[row], strict=True):
            if (at := index.after(text)) is not None:
                return size, at
        return 0, None

    def state_bytes(self, row: int) -> int:
        """Host memory of the text and its indices, an estimate."""
        own = sum(index.size_bytes() for index in self._indices[row])
        return super().state_bytes(row) + _TOKEN_BYTES * len(self._indexed[row]) + own


def _copy(text: Sequence[int], at: int, k: int) -> list[int]:
    """k tokens of `text` from position `at`; where the text ends, the copy goes on with itself.

    This is what the look-up would give if asked again after its own proposal: a text that repeats with a period
    goes on repeating.
    """
    period = len(text) - at
    return [text[at + i % period] for i in range(k)]


def make(max_n: int = 4, min_n: int = 1) -> NgramDrafter:
    """A prompt look-up drafter that matches the last max_n tokens, else fewer, down to min_n.

    Raises ConfigError unless 1 <= min_n <= max_n.
    """
    if not 1 <= min_n <= max_n:
        raise ConfigError(f"drafter ngram: min_n is {min_n} and max_n {max_n}; needed: 1 <= min_n <= max_n")
    return NgramDrafter(max_n=max_n, min_n=min_n)
