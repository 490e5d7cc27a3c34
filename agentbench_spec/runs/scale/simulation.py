"""Sessions of agents on one GPU, event by event: requests wait, are prefilled one by one, and decode together.

As the engine's own continuous batching does: whenever a row is free, the next request is prefilled there while the
other rows wait; then all busy rows decode a round together, which takes longer the more there are. Seeded, so that two
methods see the same sessions asking at the same times.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.runs.scale.service import Service, Slowdown, TurnService

Events = Generator[Any, Any, None]


@dataclass(slots=True)
class Request:
    """A turn that a session asks for, and when what became of it, in seconds of the simulation."""

    turn: TurnService
    asked_s: float
    done: Any
    """Event: the answer is complete."""
    first_s: float = 0.0
    """Its first token is out."""
    done_s: float = 0.0
    left: int = 0
    """Rounds still to decode."""


@dataclass(slots=True)
class Observed:
    """What the sessions of one GPU saw, after the warm-up."""

    requests: list[Request] = field(default_factory=list)
    asked_gap_s: float = 0.0
    """Sum of the gaps at which turns were asked for."""
    real_gap_s: float = 0.0
    """Sum of the gaps at which they came: an answer that is late delays the next question."""

    @property
    def kept_up(self) -> float:
        """Turns served over turns asked for."""
        return self.asked_gap_s / self.real_gap_s if self.real_gap_s else 1.0

    def first_token_s(self, share: float) -> float:
        """The time to the first token that so large a share of turns stays below."""
        waits = sorted(request.first_s - request.asked_s for request in self.requests)
        return waits[min(int(share * len(waits)), len(waits) - 1)] if waits else 0.0


def simulate(service: Service, sessions: int, gap_s: float, *, turns: int, seed: int) -> Observed:
    """What `sessions` see on one GPU, each asking for a turn every `gap_s` seconds on average.

    A session walks rollouts of the run, drawn at random, turn by turn; the time from one question to the next is
    exponential, and longer where the answer is late. turns: how many are observed, after half as many to warm up.
    Raises ConfigError if simpy is not installed.
    """
    environment, queue = _environment()
    seen, stop = Observed(), environment.event()
    warm_up = turns // 2
    count = [0]

    def note(request: Request, asked_gap_s: float) -> None:
        count[0] += 1
        if count[0] > warm_up:
            seen.requests.append(request)
            seen.asked_gap_s += asked_gap_s
            seen.real_gap_s += max(asked_gap_s, request.done_s - request.asked_s)
        if count[0] == warm_up + turns:
            stop.succeed()

    environment.process(_gpu(environment, queue, service.slowdown, service.slowdown.most))
    for number in range(sessions):
        draw = random.Random(f"{seed}/{number}")
        environment.process(_session(environment, queue, service, draw, gap_s, note))
    environment.run(until=stop)
    return seen


def simulate_pass(turns: Sequence[TurnService], slowdown: Slowdown, rows: int) -> float:
    """Seconds in which one GPU serves `turns`, all asked for at once, on so many rows: a pass of a throughput table."""
    environment, queue = _environment()
    for turn in turns:
        queue.put(Request(turn, 0.0, environment.event()))
    environment.process(_gpu(environment, queue, slowdown, rows))
    last = [request.done for request in queue.items]
    environment.run(until=environment.all_of(last))
    return float(environment.now)


def _environment() -> tuple[Any, Any]:
    try:
        import simpy
    except ImportError:
        raise ConfigError("plan-fleet needs the package simpy: pip install 'agentbench-spec[fleet]'") from None
    environment = simpy.Environment()
    return environment, simpy.Store(environment)


def _gpu(environment: Any, queue: Any, slowdown: Slowdown, rows: int) -> Events:
    """One GPU: prefills what waits while a row is free, else decodes a round of all that are at work."""
    active: list[Request] = []
    while True:
        while len(active) < rows and (queue.items or not active):
            request = yield queue.get()
            yield environment.timeout(request.turn.prefill_s)
            request.first_s, request.left = environment.now, request.turn.rounds
            active.append(request)
            active = _ended(active, environment.now)
        if active:
            rounds = min(request.left for request in active) if len(active) == rows else 1  # full: nobody can join
            step_s = slowdown.at(len(active)) * max(request.turn.step_s for request in active)
            yield environment.timeout(rounds * step_s)
            for request in active:
                request.left -= rounds
            active = _ended(active, environment.now)


def _ended(active: Sequence[Request], now_s: float) -> list[Request]:
    """Those that go on; the others are answered."""
    for request in active:
        if request.left <= 0:
            request.done_s = now_s
            request.done.succeed()
    return [request for request in active if request.left > 0]


def _session(environment: Any, queue: Any, service: Service, draw: random.Random, gap_s: float, note: Any) -> Events:
    yield environment.timeout(draw.uniform(0.0, gap_s))
    while True:
        for turn in service.walk(draw):
            request = Request(turn, environment.now, environment.event())
            yield queue.put(request)
            yield request.done
            asked_gap_s = draw.expovariate(1 / gap_s)
            note(request, asked_gap_s)
            yield environment.timeout(max(0.0, request.asked_s + asked_gap_s - environment.now))
