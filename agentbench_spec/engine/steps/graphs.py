"""Steps that are captured once and then replayed: their Python runs no more, their kernels do, on the same memory.

A step is named by a key; equal keys mean equal shapes and addresses. It is run once to warm up, once to be captured,
and replayed from then on. All that is captured lies in one pool of memory, in the order of a round: a step may write
over what earlier rounds left there, never over what it is still given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from agentbench_spec.engine.sampling import RowSampler
from agentbench_spec.errors import MeasurementError

R = TypeVar("R")

Capture = Callable[[Callable[[], R]], tuple[R, Callable[[], None]]]
"""Runs a step; returns its results, in which there need not be anything yet, and what fills them, each time anew."""


class Graphs:
    """The captured steps of a target and its drafters."""

    def __init__(self, capture: Capture[Any] | None) -> None:
        """capture: how; None: not at all, every step is launched anew."""
        self._capture = capture
        self._steps: dict[Hashable, tuple[Any, Callable[[], None]]] = {}
        self._draws: dict[Hashable, Draws] = {}
        self._stage: Literal["warming", "capturing", "closed"] = "closed"

    @property
    def on(self) -> bool:
        """True if steps are captured."""
        return self._capture is not None

    @property
    def captured(self) -> int:
        """How many steps were captured."""
        return len(self._steps)

    @contextmanager
    def stage(self, name: Literal["warming", "capturing"]) -> Iterator[None]:
        """Inside, steps that were not captured are run as they are, or captured; outside they are refused."""
        self._stage = name
        try:
            yield
        finally:
            self._stage = "closed"

    def run(self, key: Hashable, step: Callable[[RowSampler], R], sampler: RowSampler) -> R:
        """The results of a step, valid until it is replayed.

        step: takes the sampler to draw from. Raises MeasurementError for a step that should have been captured.
        """
        if self._capture is None:
            return step(sampler)
        draws = None if sampler.greedy else self._draws.setdefault(key, Draws(sampler))
        if draws is not None:
            draws.source = sampler
        given = sampler if draws is None else draws
        if key in self._steps:
            results, replay = self._steps[key]
        elif self._stage == "warming":
            if draws is not None:
                draws.begin()
            return step(given)
        elif self._stage == "capturing":
            if draws is not None:
                draws.settle()
            results, replay = self._capture(lambda: step(given))
            self._steps[key] = results, replay
        else:
            raise MeasurementError(f"step {key} was not captured before the first clock")
        if draws is not None:
            draws.refill()
        replay()
        return results  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Drop what was captured: another drafter comes."""
        self._steps.clear()
        self._draws.clear()


class Draws(RowSampler):
    """The sampler of one captured step: its numbers are drawn before it, by the rows' generators, in the same order."""

    def __init__(self, like: RowSampler) -> None:
        super().__init__(like.sampling, [])
        self.source = like
        self._columns: list[Tensor] = []
        self._settled, self._taken = False, 0

    def uniform(self, n: int) -> Tensor:
        """[B, n] float64 in [0, 1), at an address of its own once the step is settled."""
        if not self._settled:
            self._columns.append(self.source.uniform(n))
            return self._columns[-1]
        self._taken += 1
        return self._columns[self._taken - 1]

    def begin(self) -> None:
        """The step is run to see what it draws."""
        self._columns, self._settled, self._taken = [], False, 0

    def settle(self) -> None:
        """The step is captured next: it takes what it took when it was last run."""
        self._columns = [column.clone() for column in self._columns]
        self._settled = True

    def refill(self) -> None:
        """Draw the numbers of the next replay."""
        for column in self._columns:
            column.copy_(self.source.uniform(column.shape[1]))


def cuda_capture(device: torch.device) -> Capture[Any]:
    """Capture in CUDA graphs that share one pool."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(step: Callable[[], R]) -> tuple[R, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            results = step()
        return results, graph.replay

    return capture
