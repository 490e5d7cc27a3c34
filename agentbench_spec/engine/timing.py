"""Where the seconds of a turn go: two clocks that are never mixed in one number.

*wall* synchronises the device only where a turn begins and ends; every speed-up comes from it. *attribution* also
takes a time per phase. On a CPU nothing runs behind the host's back, so one pass serves both; on a GPU a phase is a
pair of events, read after the turn, and the pass is slower than the wall pass by what the report states.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch

ClockMode = Literal["host", "wall", "attribution", "both"]
"""A row's `clock`: host is one pass that serves both clocks, both is two passes."""

PHASES = ("draft", "verify", "accept", "draft_append")
"""Exclusive phases of decoding, in the order of a round."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one decoded turn."""

    total_s: float
    rounds_s: dict[str, list[float]] | None = None
    """Seconds of each phase, round by round; None on the wall clock."""
    round_s: list[float] = field(default_factory=list)
    """Host seconds from the start of each round to the next one's, or to the end of the turn; they sum to total_s."""

    @property
    def phases_s(self) -> dict[str, float] | None:
        """Seconds per phase."""
        return None if self.rounds_s is None else {name: sum(spent) for name, spent in self.rounds_s.items()}

    @property
    def other_s(self) -> float | None:
        """The remainder: the harness itself."""
        return None if self.phases_s is None else self.total_s - sum(self.phases_s.values())


class Clock:
    """The wall clock, and base of the attribution clocks. One object per pass over a turn."""

    def __init__(self, device: torch.device):
        self._device = device
        self._began_s = 0.0
        self._rounds_began_s: list[float] = []

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def begin(self) -> None:
        """Start of the turn's decoding."""
        self._synchronise()
        self._began_s = time.perf_counter()
        self._rounds_began_s = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute what runs inside to `name`, one of PHASES; the first begins a round. Phases do not nest."""
        if name == PHASES[0]:
            self._rounds_began_s.append(time.perf_counter())
        with self._attributed(name):
            yield

    def since_round_s(self) -> float:
        """Host seconds since the last round began; on a GPU without what it still has to do, which the next one has."""
        return time.perf_counter() - self._rounds_began_s[-1]

    def end(self) -> Times:
        """End of the turn's decoding."""
        self._synchronise()
        ended_s = time.perf_counter()
        marks = [self._began_s, *self._rounds_began_s[1:], ended_s] if self._rounds_began_s else []
        return Times(ended_s - self._began_s, self._rounds_s(), [after - before for before, after in pairwise(marks)])

    def _attributed(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def _rounds_s(self) -> dict[str, list[float]] | None:
        return None


class HostClock(Clock):
    """Phases by the host's clock; exact where work is done when a call returns."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self._spent_s: dict[str, list[float]] = {name: [] for name in PHASES}

    @contextmanager
    def _attributed(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s[name].append(time.perf_counter() - began_s)

    def _rounds_s(self) -> dict[str, list[float]]:
        return self._spent_s


class EventClock(Clock):
    """Phases by CUDA events: recorded on the stream, read once the turn is over."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def _attributed(self, name: str) -> Iterator[None]:
        began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(self._device)  # a bare record() takes the stream of the current device
        began.record(stream)
        try:
            yield
        finally:
            ended.record(stream)
            self._events.append((name, began, ended))

    def _rounds_s(self) -> dict[str, list[float]]:
        spent_s: dict[str, list[float]] = {name: [] for name in PHASES}
        for name, began, ended in self._events:
            spent_s[name].append(began.elapsed_time(ended) / 1e3)
        return spent_s


def clocks(mode: ClockMode, device: torch.device) -> list[tuple[bool, type[Clock]]]:
    """The passes a turn is decoded in, each as (gives the wall time, its clock); mode is a row's `clock`."""
    attribution: type[Clock] = EventClock if device.type == "cuda" else HostClock
    passes: dict[ClockMode, list[tuple[bool, type[Clock]]]] = {
        "host": [(True, attribution)],
        "wall": [(True, Clock)],
        "attribution": [(False, attribution)],
        "both": [(True, Clock), (False, attribution)],
    }
    return passes[mode]


def resolve_mode(mode: ClockMode | Literal["auto"], device: torch.device) -> ClockMode:
    """ "auto" becomes host on a CPU and both on a GPU."""
    if mode != "auto":
        return mode
    return "both" if device.type == "cuda" else "host"


class Stopwatch:
    """Seconds between two synchronised points: `with Stopwatch(device) as watch: ...; watch.seconds`."""

    def __init__(self, device: torch.device):
        self._clock = Clock(device)
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._clock.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool | None:
        self.seconds = self._clock.end().total_s
        return None


def phase_cost_s(device: torch.device, repeats: int = 2000) -> float:
    """Seconds that reading the clock around one phase takes, the device's own among them: what attribution costs."""
    ((_, attribution),) = clocks("attribution", device)
    clock = attribution(device)
    clock.begin()
    for _ in range(repeats):
        with clock.phase("draft"):
            pass
    return clock.end().total_s / repeats
