"""GPUs that serve so many agent sessions, by method: the fewest on which sessions hardly wait for each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.changes import bucket_of, bucket_order
from agentbench_spec.results.intervals import Interval, combined, ends, jackknife_interval, ratio_interval
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.throughput.pass_figures import tau_parts
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, by_cell
from agentbench_spec.runs.scale.service import Service, TurnService, slowdowns
from agentbench_spec.runs.scale.simulation import Observed, simulate, simulate_pass

_KEPT_UP = 0.95
"""A GPU keeps up while its sessions get this share of the turns that a session alone on it gets."""
_TURNS = 400
"""Turns that a simulation observes."""
_ROUNDING = 1e-9
_USABLE = 0.9
"""Share of a GPU's memory that weights and sessions may take."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the fleet is for."""

    sessions: int
    gap_s: float
    """From one question of a session to the next, on average."""
    first_token_s: float | None = None
    """95 of 100 turns get their first token within so many seconds; None: no limit."""
    gpu_hour: float | None = None
    """Price of a GPU hour; None: no cost is told."""
    memory_bytes: int | None = None
    """Of a GPU; None: not known, and no limit."""
    weight_bytes: int = 0
    seed: int = 0

    def fit(self, service: Service) -> int:
        """Sessions whose KV fits on a GPU."""
        if self.memory_bytes is None or not service.session_bytes:
            return self.sessions
        return int((_USABLE * self.memory_bytes - self.weight_bytes) // service.session_bytes)


@dataclass(frozen=True, slots=True)
class Need:
    """What one method needs, and what its sessions see."""

    method: str
    gpus: int | None
    """None: not even one session a GPU is served as asked."""
    gpus_low: int | None
    gpus_high: int | None
    """With turns as short and as long as the 95 % interval over rollouts allows."""
    sessions_per_gpu: int
    bound_by: str
    """What stops a GPU from more sessions: time, memory, or nothing (all sessions are on one)."""
    batch: int
    """Rows that decode at once at most."""
    turn_s: float
    """GPU seconds of a turn by itself."""
    turn_interval: Interval | None
    turns_per_s: float | None
    """Of the whole fleet."""
    tokens_per_s: float | None
    first_token_p50_s: float | None
    first_token_p95_s: float | None
    cost_per_hour: float | None
    saves: float | None
    """Share of plain decoding's GPU seconds a turn that are saved."""
    saves_low: float | None
    saves_high: float | None


def needs(services: Mapping[str, Service], asked: Asked) -> list[Need]:
    """What each method needs, plain decoding first. Raises ConfigError if simpy is not installed."""
    return [_need(service, services[BASELINE], asked) for service in services.values()]


def _need(service: Service, plain: Service, asked: Asked) -> Need:
    most, bound_by = most_sessions(service, asked)
    gpus = math.ceil(asked.sessions / most) if most else None
    seen = None if gpus is None else _observe(service, math.ceil(asked.sessions / gpus), asked)
    interval, turn_s = service.interval(), service.turn_s()
    low, high = (None if end is None else _gpus(service.scaled(end / turn_s), asked) for end in ends(interval))
    rate = None if seen is None else asked.sessions / asked.gap_s * seen.kept_up
    saves, saves_low, saves_high = _saves(service, plain)
    return Need(
        method=service.method,
        gpus=gpus,
        gpus_low=low,
        gpus_high=high,
        sessions_per_gpu=most,
        bound_by=bound_by,
        batch=service.slowdown.most,
        turn_s=turn_s,
        turn_interval=interval,
        turns_per_s=rate,
        tokens_per_s=None if rate is None else rate * service.tokens(),
        first_token_p50_s=seen.first_token_s(0.5) if seen else None,
        first_token_p95_s=seen.first_token_s(0.95) if seen else None,
        cost_per_hour=None if gpus is None or asked.gpu_hour is None else gpus * asked.gpu_hour,
        saves=saves,
        saves_low=saves_low,
        saves_high=saves_high,
    )


def _gpus(service: Service, asked: Asked) -> int | None:
    most, _ = most_sessions(service, asked)
    return math.ceil(asked.sessions / most) if most else None


def most_sessions(service: Service, asked: Asked) -> tuple[int, str]:
    """(sessions that one GPU serves as asked, what stops it from more): 0 if not even one.

    Doubled until there are too many, then halved in between: with more sessions none waits less.
    """
    room = min(asked.sessions, asked.fit(service))
    if room < 1:
        return 0, "memory"
    alone = _observe(service, 1, asked)
    if not _as_asked(alone, alone, asked):
        return 0, "time"
    good, bad = 1, room + 1
    while good < room and bad - good > 1:
        tried = min(2 * good, room) if bad > room else (good + bad) // 2
        if _as_asked(_observe(service, tried, asked), alone, asked):
            good = tried
        else:
            bad = tried
    return good, "time" if good < room else "memory" if room < asked.sessions else "nothing"


def _observe(service: Service, sessions: int, asked: Asked) -> Observed:
    return simulate(service, sessions, asked.gap_s, turns=_TURNS, seed=asked.seed)


def _as_asked(seen: Observed, alone: Observed, asked: Asked) -> bool:
    limit = asked.first_token_s
    return seen.kept_up >= _KEPT_UP * alone.kept_up and (limit is None or seen.first_token_s(0.95) <= limit)


def _saves(service: Service, plain: Service) -> tuple[float | None, float | None, float | None]:
    """Share of plain decoding's GPU seconds that are saved, and its interval over rollouts, paired."""
    if service.method == BASELINE:
        return None, None, None
    pairs = list(zip(service.rollouts, plain.rollouts, strict=True))
    interval = jackknife_interval(pairs, _ratio)
    if interval is None:
        return 1 - _ratio(pairs), None, None
    return 1 - _ratio(pairs), 1 - interval.high, 1 - interval.low


def _ratio(pairs: Sequence[tuple[Sequence[TurnService], Sequence[TurnService]]]) -> float:
    own, plain = (sum(turn.weight * turn.alone_s for pair in pairs for turn in pair[i]) for i in (0, 1))
    return own / plain


def by_context(services: Mapping[str, Service]) -> list[dict[str, Any]]:
    """For each stretch of contexts: its share of the turns, and GPU seconds of a turn by each method."""
    stretches: dict[str, dict[str, list[float]]] = {}
    for name, service in services.items():
        for turn in (turn for own in service.rollouts for turn in own):
            stretches.setdefault(bucket_of(turn.context_tokens), {}).setdefault(name, []).append(turn.alone_s)
    total = sum(len(own[BASELINE]) for own in stretches.values())
    return [
        {
            "context": context,
            "share": len(own[BASELINE]) / total,
            "turn_s": {name: fmean(seconds) for name, seconds in own.items()},
        }
        for context, own in sorted(stretches.items(), key=lambda item: bucket_order(item[0]))
    ]


def with_mix(services: Mapping[str, Service], mix: Mapping[str, float]) -> dict[str, Service]:
    """The services with turns of each stretch of contexts as often as `mix` says: stretch -> weight.

    Sessions then ask for single turns instead of walking rollouts. Raises ConfigError for a stretch of which the run
    has no turn.
    """
    counts = Counter(bucket_of(turn.context_tokens) for own in services[BASELINE].rollouts for turn in own)
    if unknown := sorted(set(mix) - set(counts)):
        have = ", ".join(sorted(counts, key=bucket_order))
        raise ConfigError(f"--mix {unknown[0]}: the run has no turn of that context; it has {have}")

    def mixed(service: Service) -> Service:
        weighed = (
            tuple(
                replace(turn, weight=mix[name] / counts[name])
                for turn in own
                if mix.get(name := bucket_of(turn.context_tokens))
            )
            for own in service.rollouts
        )
        return replace(service, rollouts=tuple(own for own in weighed if own), mixed=True)

    return {name: mixed(service) for name, service in services.items()}


@dataclass(frozen=True, slots=True)
class PassCheck:
    """A measured point of a throughput table against the simulation of its pass."""

    method: str
    concurrency: int
    measured: float
    """Tokens per second."""
    low: float | None
    high: float | None
    """95 % interval of the measured value over rollouts."""
    simulated: float
    """From the step times of all points."""
    foretold: float | None
    """From those of the other points; None: no others surround it."""

    @property
    def inside(self) -> bool:
        """The simulation lies within the interval, but for rounding; False where there is none."""
        if self.low is None or self.high is None:
            return False
        return self.low * (1 - _ROUNDING) <= self.simulated <= self.high * (1 + _ROUNDING)


def check_passes(passes: Sequence[ThroughputRow]) -> list[PassCheck]:
    """Every measured point above concurrency 1, its pass simulated. Raises ConfigError if simpy is not installed."""
    timed = [
        row for row in passes if row.status == "ok" and row.clock != "attribution" and row.emitted and row.decode_s
    ]
    last = max((row.concurrency for row in timed), default=1)
    cells = by_cell(timed)
    return [
        _checked(own, cells[method, 1], timed, foretell=concurrency < last)
        for (method, concurrency), own in cells.items()
        if concurrency > 1 and (method, 1) in cells
    ]


def _checked(
    own: Sequence[ThroughputRow], alone: Sequence[ThroughputRow], passes: Sequence[ThroughputRow], *, foretell: bool
) -> PassCheck:
    """own: the passes of one point; alone: those of the same method at concurrency 1."""
    first = own[0]
    step_s = sum(row.decode_s or 0.0 for row in alone) / sum(row.steps or 0 for row in alone)
    turns = [TurnService(0, 0.0, rounds, step_s, tokens) for tokens, _, rounds in first.rollouts.values() if rounds]

    def speed(without: int | None) -> float:
        curve = slowdowns(passes, without)[first.drafter]
        return (first.emitted or 0) / simulate_pass(turns, curve, first.concurrency)

    measured, interval = _measured(own)
    low, high = ends(interval)
    return PassCheck(
        method=first.drafter,
        concurrency=first.concurrency,
        measured=measured,
        low=low,
        high=high,
        simulated=speed(None),
        foretold=speed(first.concurrency) if foretell else None,
    )


def _measured(own: Sequence[ThroughputRow]) -> tuple[float, Interval | None]:
    """Tokens per second over whole passes, and its interval: of accepted lengths, and between passes if several."""
    logs = [math.log((row.emitted or 0) / (row.decode_s or math.inf)) for row in own]
    value, accepted = math.exp(fmean(logs)), ratio_interval(tau_parts(own[0], raw=False))
    if accepted is None:
        return value, None
    errors = [(accepted.error, accepted.df)]
    if len(logs) > 1:
        errors.append((stdev(logs) / math.sqrt(len(logs)), len(logs) - 1.0))
    return value, combined(value, errors, accepted.clusters)
