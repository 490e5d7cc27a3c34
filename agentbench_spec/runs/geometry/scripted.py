"""A scripted acceptance: the drafter does all its work, and then says what makes the rounds accept what was asked for.

Weights are random, so τ cannot be measured: it is an input. The guesses that are verified come from a script and travel
with the round's one copy; the drafter's own are made and thrown away.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import ceil, floor

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, Span, TargetInfo
from agentbench_spec.engine.rounds import Turn


class Script:
    """The reply of every row, and the tokens of it that are guessed wrong: rounds then emit `tau` tokens on average."""

    def __init__(self, tau: float, *, k: int, rounds: int, begin: int, vocab_size: int, seed: int = 0) -> None:
        """tau in 1 .. k + 1; begin: text position of the reply's first token, which is the anchor."""
        self.tau, self.k, self.begin, self.vocab_size = tau, k, begin, vocab_size
        draw = random.Random(seed)
        length = ceil(rounds * tau) + 2 * k + 4  # no turn ends before the last round
        self.reply = [draw.randrange(vocab_size) for _ in range(length)]

    def wrong(self, row: int, offset: int) -> bool:
        """True if the token at this offset of the reply ends a round, by a wrong guess; rows differ in phase."""
        phase = (row * 0.618) % 1.0
        return floor((offset + phase) / self.tau) > floor((offset - 1 + phase) / self.tau)

    def turn(self) -> Turn:
        """A turn that has its anchor."""
        return Turn(position=self.begin, output=[self.reply[0]], reference=self.reply)

    def guesses(self, positions: Sequence[int], k: int) -> list[list[int]]:
        """k guesses for the row of each anchor at `positions`; an idle row's are zeros."""
        return [self._row(row, at - self.begin, k) if at >= self.begin else [0] * k for row, at in enumerate(positions)]

    def _row(self, row: int, anchor: int, k: int) -> list[int]:
        ahead = [*self.reply[anchor + 1 : anchor + 1 + k], *[0] * k][:k]
        return [
            (token + 1) % self.vocab_size if self.wrong(row, offset) else token
            for offset, token in enumerate(ahead, anchor + 1)
        ]


class ScriptedLookup(Drafter):
    """Stands for a look-up: works on the host, costs nothing to speak of, guesses what the script says."""

    host_only = True
    script: Script

    def __init__(self) -> None:
        self.spec = DrafterSpec(name="lookup", history_free=True)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """The script's guesses."""
        return Proposal(torch.tensor(self.script.guesses(position.tolist(), k), dtype=torch.int64).view(-1, k))


class ScriptedWork(Drafter):
    """A learned drafter that works as ever and proposes what the script says."""

    script: Script

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.spec, self.static = inner, inner.spec, inner.static

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self.inner.open(target, rows=rows, capacity=capacity)

    def look_ahead(self, anchor: Sequence[int], position: Sequence[int], k: int) -> Sequence[Sequence[int]]:
        """The script's guesses, one row after the other."""
        return ([token for row in self.script.guesses(position, k) for token in row],)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """The drafter's work, and the script's guesses."""
        self.inner.sampler = self.sampler
        self.inner.propose(anchor, position, k)
        return Proposal(self.carried[0].view(len(anchor), k))

    def observe(self, span: Span) -> None:
        self.inner.observe(span)

    def truncate(self, row: int, length: int) -> None:
        self.inner.truncate(row, length)

    def state_bytes(self, row: int) -> int:
        return self.inner.state_bytes(row)
