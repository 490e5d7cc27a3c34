"""A suffix automaton over a text that grows at its end and may be cut back exactly.

The automaton (Blumer et al., 1985) has one state per set of end positions that some substring of the text has: at most
two states and three transitions per token. Here an extension also writes one log entry of three integers, from which
it can be taken back: everything it changed lies on the chain of suffix links that it walked, so the log need not list
the changes. A text cut back and grown again therefore has the very states that a fresh one has.

Work: an extension walks one chain of suffix links; over a text this is a constant per token, though a single token may
pay for many. `locate(token)` walks a part of the chain that `extend(token)` walks next.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice

_NONE = -1
_ROOT = 0
MAX_COUNTED_LINKS = 64
"""Suffix links an extension follows to count occurrences. Ordinary text has far shorter chains. Where a chain is
longer, as in one token repeated, the counts of the short substrings at its far end are lower bounds: the price for
work per token that is bounded."""
MAX_CHILDREN = 64
"""Continuations of a state that are weighed, the newest first: bounds the work after a substring that thousands of
different tokens have followed."""

_STATE_BYTES = 295
_TOKEN_BYTES = 18
"""Host memory of a state (a dict that mostly has one entry, the int objects in it, four columns) and of a token's log
entry: CPython 3.11 on 64 bits, checked against tracemalloc by the tests."""


class SuffixAutomaton:
    """Substrings of a growing token sequence: how often they occur and what followed them."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = array("i", [_NONE])
        self._length = array("i", [0])
        self._count = array("i", [0])
        self._last = _ROOT
        self._tokens = array("q")
        self._before = array("i")
        self._split = array("i")

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add `tokens` at the end of the text."""
        for token in tokens:
            self._extend(token)

    def truncate(self, length: int) -> None:
        """Take back all tokens at positions >= `length`."""
        while len(self._tokens) > length:
            self._undo()

    def locate(self, token: int) -> tuple[int, int]:
        """State and length of the longest suffix of text + [token] that occurs in the text; (0, 0) if none does."""
        following, link = self._next, self._link
        state = self._last
        while state != _NONE and token not in following[state]:
            state = link[state]
        return (_ROOT, 0) if state == _NONE else (following[state][token], self._length[state] + 1)

    def likeliest(self, state: int) -> tuple[int, int, float] | None:
        """Token that most often followed `state`, the state it leads to and its share; None at the end of the text.

        Among equals the token wins that followed `state` for the first time most recently: transitions are kept in the
        order of their first time, also by clones and after a cut.
        """
        children = list(islice(reversed(self._next[state].items()), MAX_CHILDREN))
        if not children:
            return None
        count = self._count
        token, child = max(children, key=lambda item: count[item[1]])
        return token, child, count[child] / sum(count[item[1]] for item in children)

    def size_bytes(self) -> int:
        """Host memory held, an estimate that depends on the text alone, not on how it came about."""
        return _STATE_BYTES * len(self._next) + _TOKEN_BYTES * len(self._tokens)

    def _extend(self, token: int) -> None:
        following, link = self._next, self._link
        before = self._last
        new = self._add_state({}, length=len(self._tokens) + 1, count=1)
        state = before
        while state != _NONE and token not in following[state]:
            following[state][token] = new
            state = link[state]
        split = _NONE
        if state == _NONE:
            link[new] = _ROOT
        else:
            target = following[state][token]
            if self._length[state] + 1 != self._length[target]:
                split, target = target, self._split_off(state, token, target)
            link[new] = target
        self._last = new
        self._tokens.append(token)
        self._before.append(before)
        self._split.append(split)
        self._count_suffixes(new, 1)

    def _add_state(self, following: dict[int, int], *, length: int, count: int) -> int:
        self._next.append(following)
        self._link.append(_NONE)
        self._length.append(length)
        self._count.append(count)
        return len(self._next) - 1

    def _split_off(self, state: int, token: int, target: int) -> int:
        """Give the substrings of `target` up to `state` + token, which now occur once more, a state of their own."""
        following, link = self._next, self._link
        clone = self._add_state(
            following[target].copy(),
            length=self._length[state] + 1,
            count=self._count[target],
        )
        link[clone] = link[target]
        link[target] = clone
        while state != _NONE and following[state].get(token) == target:
            following[state][token] = clone
            state = link[state]
        return clone

    def _count_suffixes(self, state: int, step: int) -> None:
        """Add `step` to the counts of the proper suffixes of `state`."""
        link, count = self._link, self._count
        state = link[state]
        for _ in range(MAX_COUNTED_LINKS):
            if state <= _ROOT:
                return
            count[state] += step
            state = link[state]

    def _undo(self) -> None:
        following, link = self._next, self._link
        new, token, before, split = self._last, self._tokens.pop(), self._before.pop(), self._split.pop()
        self._count_suffixes(new, -1)
        clone = link[new]
        if split != _NONE:
            link[split] = link[clone]
        state = before
        while state != _NONE and following[state].get(token) == new:
            del following[state][token]
            state = link[state]
        if split != _NONE:
            while state != _NONE and following[state].get(token) == clone:
                following[state][token] = split
                state = link[state]
            self._drop_state()
        self._drop_state()
        self._last = before

    def _drop_state(self) -> None:
        for column in (self._next, self._link, self._length, self._count):
            column.pop()
