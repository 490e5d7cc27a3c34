"""What the laws of the conformance kit are tried on, and the comparisons they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import torch
from torch import Tensor

from agentbench_spec.conformance.drive import DRAWN, TOLERANCE, Driver, Seat, View, difference
from agentbench_spec.conformance.puppet import Puppet
from agentbench_spec.drafting import Drafter, Span
from agentbench_spec.engine.target import Target

WHOLE = 1 << 20
"""A chunk that holds any prompt."""
LONGEST = 400
"""Positions a puppet has room for: beyond the buckets and pages of up to 256 positions that are common."""


@dataclass(slots=True)
class Bench:
    """What the laws are tried on."""

    make: Callable[[], Drafter]
    """A fresh drafter, not opened, at every call."""
    target: Target
    prompts: Sequence[Sequence[int]]
    ks: Sequence[int] = (0, 1, 4, 7)
    chunks_tokens: Sequence[int] = (7, 1, WHOLE)
    max_new_tokens: int = 12
    reference: Callable[[], Drafter] | None = None
    floor: float | None = None
    sampling_target: Target | None = None
    """A target with a small vocabulary and many rows, for the distribution law."""
    thorough: bool = True
    """Try cuts at every length, not only around page boundaries; too slow where a fresh drafter is dear."""
    _targets: dict[int, Target] = field(default_factory=dict)

    @property
    def k(self) -> int:
        """The longest block tried."""
        return max(self.ks)

    @property
    def tolerance(self) -> float:
        """Largest difference that rounding explains."""
        return TOLERANCE[self.target.info.dtype]

    def target_of(self, rows: int) -> Target:
        """The target with `rows` engine rows, over the same weights."""
        if rows == self.target.rows:
            return self.target
        if rows not in self._targets:
            name, capacity = self.target.info.name, self.target.capacity
            self._targets[rows] = Target(self.target.model, name=name, capacity=capacity, rows=rows)
        return self._targets[rows]

    def driver(self, rows: int = 1, followers: Sequence[Seat] = ()) -> Driver:
        """A fresh drafter at a target of `rows` rows."""
        return Driver(self.make(), self.target_of(rows), followers=followers)

    def puppet(self, rows: int = 1) -> Puppet:
        """A target in looks only, with room for `LONGEST` tokens or what target and drafter can take."""
        most = self.make().spec.max_positions
        capacity = min(LONGEST, self.target.info.max_positions, LONGEST if most is None else most)
        return Puppet(self.target, rows=rows, capacity=capacity)

    def rehearsal(self, rows: int = 1) -> Driver:
        """A fresh drafter at a puppet."""
        return Driver(self.make(), self.puppet(rows))

    def text(self, length: int, seed: int = 0) -> list[int]:
        """Tokens of the prompts, with phrases that come again, so that look-ups find matches."""
        draw, known = Random(seed), sorted({token for prompt in self.prompts for token in prompt})
        phrases = [draw.choices(known, k=5) for _ in range(4)]
        text: list[int] = []
        while len(text) < length:
            text += [*draw.choice(phrases), draw.choice(known)]
        return text[:length]


def turns(driver: Driver, prompts: Sequence[Sequence[int]], chunk: int) -> Iterator[int]:
    """Prefill the prompts one after the other on row 0; gives each turn's number."""
    for turn, prompt in enumerate(prompts):
        driver.at(f"chunks of {min(chunk, len(prompt))}, turn {turn}, prefill")
        driver.prefill(0, prompt, chunk)
        yield turn


def equals_fresh(bench: Bench, driver: Driver, row: int, *, glance: bool = False) -> int:
    """1, or Broken if the row's state is not that of a fresh drafter which saw the row's text in one span.

    glance: ask one question, after the row's own anchor, where there is much to compare.
    """
    fresh = driver.replay(row, bench.make())
    like = "as a drafter that saw the text at once does"
    if glance:
        ours, theirs = (s.probe(r, driver.texts[row][-1:], bench.k, DRAWN) for s, r in ((driver, row), (fresh, 0)))
        same_answers(driver, row, ours, theirs, bench.tolerance, like)
    else:
        same_view(driver, row, fresh, 0, bench, like)
    mine, told_at_once = driver.snapshot(row), fresh.snapshot(0)
    for name in sorted({*mine, *told_at_once}):
        same_tensor(driver, name, mine.get(name), told_at_once.get(name), bench.tolerance, row)
    return 1


def same_view(ours: Seat, row: int, theirs: Seat, other: int, bench: Bench, like: str) -> None:
    """Broken unless row `row` of our seat answers like row `other` of theirs. like: the end of the message."""
    rejected = ours.rejected[row]
    same_answers(ours, row, ours.view(row, bench.k), theirs.view(other, bench.k, rejected), bench.tolerance, like)


def same_answers(seat: Seat, row: int, ours: View, expected: View, tolerance: float, like: str) -> None:
    """Broken unless two lists of answers agree."""
    for number, ((asked, mine), (_, other)) in enumerate(zip(ours, expected, strict=True)):
        if broken := difference(mine, other, tolerance):
            raise seat.broken(f"row {row}, probe {number} ({asked}): {broken}, {like}", row)


def same_tensor(
    seat: Seat, name: str, ours: Tensor | None, theirs: Tensor | None, tolerance: float, row: int = 0
) -> None:
    """Broken unless two parts of a snapshot agree."""
    if ours is None or theirs is None or ours.shape != theirs.shape:
        shapes = [None if t is None else tuple(t.shape) for t in (ours, theirs)]
        raise seat.broken(f"row {row}, snapshot {name!r} has shape {shapes[0]}, expected {shapes[1]}", row)
    if not torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance):
        apart = (ours.double() - theirs.double()).abs()
        place = [int(index) for index in torch.unravel_index(apart.argmax(), apart.shape)]
        gap = f"differs by up to {float(apart.max()):.2g}, at {place} of {[*ours.shape]}"
        raise seat.broken(f"row {row}, snapshot {name!r} {gap}", row)


def garbled(vocab: int, scope: str) -> Callable[[Span], Span]:
    """Fill every position that does not count with garbage, and add some; scope: the drafter's hidden_scope.

    Garbage hidden states are huge but finite: a masked position of static shape has weight 0, and 0 x NaN is NaN,
    which would condemn drafters that are right. A real target's padding is finite too.
    """
    draw = torch.Generator().manual_seed(5)

    def noise(like: Tensor) -> Tensor:
        if like.dtype == torch.int64:
            return torch.randint(vocab, like.shape, generator=draw).to(like.device)
        return (1e3 * torch.randn(like.shape, generator=draw, dtype=torch.float64)).to(like)

    def alter(span: Span) -> Span:
        ids, after = (torch.cat([t, t[:, -1:].expand(-1, 2)], 1) for t in (span.input_ids, span.next_ids))
        padding = torch.arange(ids.shape[1], device=ids.device) >= span.count[:, None]
        hidden = span.hidden
        if hidden is not None and scope == "all":
            hidden = torch.cat([hidden, hidden[:, -1:].expand(-1, 2, -1, -1)], 1)
        if hidden is not None:
            void = padding if scope == "all" else (span.count == 0)[:, None]
            hidden = torch.where(void[:, :, None, None], noise(hidden), hidden)
        return replace(
            span,
            input_ids=torch.where(padding, noise(ids), ids),
            next_ids=torch.where(padding, noise(after), after),
            hidden=hidden,
        )

    return alter
