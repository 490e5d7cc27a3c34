"""What the laws of the conformance kit are tried on, and the comparisons they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from agentbench_spec.conformance.drive import TOLERANCE, Answer, Driver, Seat, difference
from agentbench_spec.drafting import Drafter, Span
from agentbench_spec.engine.target import Target

WHOLE = 1 << 20
"""A chunk that holds any prompt."""


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


def turns(driver: Driver, prompts: Sequence[Sequence[int]], chunk: int) -> Iterator[int]:
    """Prefill the prompts one after the other on row 0; gives each turn's number."""
    for turn, prompt in enumerate(prompts):
        driver.at(f"chunks of {min(chunk, len(prompt))}, turn {turn}, prefill")
        driver.prefill(0, prompt, chunk)
        yield turn


def equals_fresh(bench: Bench, driver: Driver, row: int) -> int:
    """1, or Broken if the row's state is not that of a fresh drafter which saw the row's text in one span."""
    fresh = driver.replay(row, bench.make())
    same_view(driver, row, fresh, 0, bench, "as a drafter that saw the text at once does")
    ours, theirs = driver.snapshot(row), fresh.snapshot(0)
    for name in sorted({*ours, *theirs}):
        same_tensor(driver, name, ours.get(name), theirs.get(name), bench.tolerance)
    return 1


def same_view(ours: Seat, row: int, theirs: Seat, other: int, bench: Bench, like: str) -> None:
    """Broken unless row `row` of our seat answers like row `other` of theirs. like: the end of the message."""
    rejected = ours.rejected[row]
    same_answers(ours, row, ours.view(row, bench.k), theirs.view(other, bench.k, rejected), bench.tolerance, like)


def same_answers(
    seat: Seat, row: int, ours: Sequence[Answer], expected: Sequence[Answer], tolerance: float, like: str
) -> None:
    """Broken unless two lists of answers agree."""
    for number, (mine, other) in enumerate(zip(ours, expected, strict=True)):
        if broken := difference(mine, other, tolerance):
            raise seat.broken(f"row {row}, probe {number}: {broken}, {like}")


def same_tensor(seat: Seat, name: str, ours: Tensor | None, theirs: Tensor | None, tolerance: float) -> None:
    """Broken unless two parts of a snapshot agree."""
    if ours is None or theirs is None or ours.shape != theirs.shape:
        shapes = [None if t is None else tuple(t.shape) for t in (ours, theirs)]
        raise seat.broken(f"snapshot {name!r} is {shapes[0]}, expected {shapes[1]}")
    if not torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance):
        gap = float((ours.double() - theirs.double()).abs().max())
        raise seat.broken(f"snapshot {name!r} differs by up to {gap:.2g}")


def garbled(vocab: int) -> Callable[[Span], Span]:
    """Fill every position that does not count with garbage, and add some.

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
        if hidden is not None and hidden.shape[1] == span.input_ids.shape[1]:
            hidden = torch.cat([hidden, hidden[:, -1:].expand(-1, 2, -1, -1)], 1)
        if hidden is not None:
            void = padding if hidden.shape[1] == ids.shape[1] else (span.count == 0)[:, None]
            hidden = torch.where(void[:, :, None, None], noise(hidden), hidden)
        return replace(
            span,
            input_ids=torch.where(padding, noise(ids), ids),
            next_ids=torch.where(padding, noise(after), after),
            hidden=hidden,
        )

    return alter
