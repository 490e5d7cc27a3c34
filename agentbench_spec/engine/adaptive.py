"""`--k auto`: how many tokens to draft in a round, chosen round by round as the K of least expected time per token.

Tokens of a round are expected from how often each position was reached and accepted lately, its seconds from what
drafting and verifying cost when warm and what rounds took since. What is not tried is not learned, so a small part of
the time is spent on other K than the best. A choice rests on finished rounds alone, so outputs stay exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentbench_spec.engine.rounds import Round

MEMORY, RECENT = 256.0, 12.0
"""Rounds after which an observation weighs a third; and of the short memory that notices a change."""
EXPLORED = 0.01
"""Part of the time that rounds of another K than the best may cost."""
APART = 8
"""Rounds from one of them to the next, at least."""
_COST_MEMORY = 32.0
_FIRST_GUESS = 0.8
"""Share of drafts taken to be accepted where nothing is known: high, so that it is tried."""
_FAR = 3.0
"""Standard errors between both memories from which on the old one is void."""
_STALL = 4.0
"""Times the expected seconds beyond which a round says nothing of its K."""


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round of one drafter costs when warm."""

    draft_s: float
    """Proposing so many tokens."""
    rest_s: float
    """The round's other work, as many drafts verified."""


def choices(most: int) -> tuple[int, ...]:
    """The K to choose from, 0 and `most` among them: few, so that few shapes occur; 0, 1, 2, 3, 5, 7, 11, 15, ..."""
    widths = (width - 1 for power in range(1, most + 2) for width in (2**power, 3 * 2 ** (power - 1)))
    below: list[int] = []
    for k in widths:
        if k >= most:
            break
        below.append(k)
    return (0, *below, most) if most else (0,)


class AdaptiveK:
    """Chooses for one drafter, and learns from its rounds."""

    def __init__(self, costs: Mapping[int, RoundCost], seed: int | str = 0) -> None:
        """costs: of every K that may be chosen, 0 among them."""
        self._costs, self.choices = costs, sorted(costs)
        most = self.choices[-1]
        self._rest_s = _interpolated({k: cost.rest_s for k, cost in costs.items()})
        self._accepted = [_Share() for _ in range(most)]
        self._offered = [_Share() for _ in range(most)]
        self._slower = {k: _Factor() for k in self.choices}
        self._all_slower = _Factor()
        self._random = random.Random(seed)
        self._budget_s, self._since = 0.0, 0
        self._other = self._any_but(0)

    def choose(self) -> int:
        """K of the next round: the best by what is known, or now and then another one, if that is not too dear."""
        expected = self.expected()
        best = _least(expected)
        self._since += 1
        if self._other == best:
            self._other = self._any_but(best)
        if self._since < APART or self._other == best:
            return best
        (best_s, best_tokens), (seconds, tokens) = expected[best], expected[self._other]
        dearer_s = seconds - tokens * best_s / best_tokens
        if dearer_s > self._budget_s:
            return best
        tried, self._other = self._other, self._any_but(best)
        self._budget_s, self._since = self._budget_s - dearer_s, 0
        return tried

    def best(self) -> int:
        """The K of least expected time per token; of equal ones the smallest."""
        return _least(self.expected())

    def learn(self, asked: int, rounds: Sequence[Round], seconds: float) -> None:
        """Take in a round of one or more rows: `asked` tokens were asked for, and it took `seconds`."""
        expected_s = self._warm_s(asked, [each.proposed for each in rounds])
        factor = min(seconds / expected_s, _STALL * self._factor(asked))
        for known in (self._all_slower, self._slower[asked]):
            known.add(factor)
        for each in rounds:
            for index in range(asked):
                self._offered[index].add(each.proposed > index)
                if each.matched >= index:
                    self._accepted[index].add(each.matched > index)
        self._budget_s += EXPLORED * seconds

    def expected(self) -> dict[int, tuple[float, float]]:
        """Seconds and tokens expected of a round, by the K it asks for."""
        found = {}
        offered, rate, reached, tokens = 1.0, _FIRST_GUESS, 1.0, 1.0
        rest_s = self._rest_s[0]
        for k in range(len(self._accepted) + 1):
            if k:
                offered = self._offered[k - 1].value(offered)
                rate = self._accepted[k - 1].value(rate)  # a position not seen yet is taken to be like the one before
                rest_s += offered * (self._rest_s[k] - self._rest_s[k - 1])
                reached *= rate
                tokens += reached
            if k in self._costs:
                found[k] = (self._costs[k].draft_s + rest_s) * self._factor(k), tokens
        return found

    def _warm_s(self, asked: int, proposed: list[int]) -> float:
        return self._costs[asked].draft_s + self._rest_s[max(proposed, default=0)]

    def _factor(self, k: int) -> float:
        """How much slower rounds are than when warm: by those of k, and by all where those are few."""
        return self._slower[k].value(self._all_slower.value(1.0))

    def _any_but(self, best: int) -> int:
        """The K to try next: a neighbour of the best, which is cheap to try, as often as any of all others."""
        others = [k for k in self.choices if k != best] or self.choices
        at = self.choices.index(best)
        beside = [k for k in self.choices[max(at - 1, 0) : at + 2] if k != best] or others
        return self._random.choice(self._random.choice((beside, others)))


def _least(expected: Mapping[int, tuple[float, float]]) -> int:
    return min(expected, key=lambda k: expected[k][0] / expected[k][1])


class AsBefore:
    """Asks for what was asked for before: a turn that is decoded again must come out the same."""

    def __init__(self, asked: Sequence[int]) -> None:
        self._asked: Iterator[int] = iter(asked)

    def choose(self) -> int:
        """K of the next round; 0 where there were no more."""
        return next(self._asked, 0)

    def learn(self, asked: int, rounds: Sequence[Round], seconds: float) -> None:
        """Nothing: it was learned the first time."""


class _Share:
    """How often something happens, by observations that fade; void at once when the newest say something else."""

    def __init__(self) -> None:
        self._hits = self._seen = self._recent_hits = self._recent = 0.0

    def add(self, hit: bool) -> None:
        self._hits, self._seen = _faded(self._hits, MEMORY) + hit, _faded(self._seen, MEMORY) + 1
        self._recent_hits, self._recent = _faded(self._recent_hits, RECENT) + hit, _faded(self._recent, RECENT) + 1
        if self._changed():
            self._hits, self._seen = self._recent_hits, self._recent

    def value(self, before: float) -> float:
        """The share; `before` stands for two observations, which is little once there are more."""
        return (self._hits + 2 * before) / (self._seen + 2)

    def _changed(self) -> bool:
        old = (self._hits + 1) / (self._seen + 2)
        spread = math.sqrt(old * (1 - old) / max(self._recent, 1.0))
        return abs(self._recent_hits / self._recent - old) > _FAR * spread


class _Factor:
    """A mean that fades."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> None:
        self._sum, self._weight = _faded(self._sum, _COST_MEMORY) + value, _faded(self._weight, _COST_MEMORY) + 1

    def value(self, before: float) -> float:
        return (self._sum + 2 * before) / (self._weight + 2)


def _faded(value: float, memory: float) -> float:
    return value * (1 - 1 / memory)


def _interpolated(known: Mapping[int, float]) -> list[float]:
    """Values at 0, 1, ... up to the greatest key, straight between the known ones."""
    values = [known[min(known)]]
    for (low, a), (high, b) in pairwise(sorted(known.items())):
        values += [a + (b - a) * (k - low) / (high - low) for k in range(low + 1, high + 1)]
    return values
