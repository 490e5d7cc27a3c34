"""Which of several kernels that compute the same is the fastest on this machine: raced once, then kept in a file.

Contestants take turns, lap by lap, and a lap walks through all places where the kernel would run, so that weights come
from where they come from in decoding. The best of a place's laps counts: what the machine can do, not what else it was
doing. An incumbent, the stock kernel at first, keeps its place unless it is clearly beaten in either half of the laps.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from agentbench_spec.engine.machine import cpu_model
from agentbench_spec.results.provenance import write_json_atomic

log = logging.getLogger(__name__)

CACHE_FILE = "kernels.json"

_MARGIN = 0.9
"""Part of the incumbent's time below which a contestant takes its place."""

_QUIET_CORES = 0.25
"""Cores that other work may keep busy during a race whose outcome is final."""

_MOST_RACES = 3
"""Races after which the outcome is final on a machine that is never quiet."""

_MOST_S = 5.0
"""Seconds after which a race need not have all its laps."""

Halves = tuple[float, ...]
"""Seconds in either half of the laps."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How a choice came about."""

    us: dict[str, dict[str, float]]
    """Contest (the rows of the input) -> kernel -> microseconds of one call, the best of all laps."""
    other_cores: float | None
    """Mean cores that other work kept busy meanwhile; None: the system does not tell."""
    races: int = 1
    """Races on this machine so far; each one's incumbents are the last one's winners."""

    @property
    def final(self) -> bool:
        """False if the next run should race again, because this machine was busy."""
        return (self.other_cores or 0.0) <= _QUIET_CORES or self.races >= _MOST_RACES

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the file and the manifest."""
        return asdict(self)

    @classmethod
    def read(cls, kept: Any) -> Evidence | None:
        """What `as_dict` gave; None for null. Raises TypeError for anything else."""
        if kept is None:
            return None
        evidence = cls(**kept)
        if not isinstance(evidence.races, int) or not isinstance(evidence.other_cores, float | int | None):
            raise TypeError("races is a count, other_cores a number")
        return evidence


def laps(walk: Callable[[str], list[float]], names: Sequence[str], count: int) -> dict[str, list[list[float]]]:
    """Have every contestant walk `count` laps in turn; by name, in either half of them, the best seconds of each place.

    walk: runs one contestant through all places once and returns the seconds of each. In each half every contestant
    begins equally often if count is a multiple of twice their number: who runs after whom decides what caches hold.
    On a slow or busy machine the race ends early, when each half has seen every order.
    """
    best: dict[str, list[list[float]]] = {name: [[], []] for name in names}
    end_s = time.monotonic() + _MOST_S
    for lap in range(count):
        if lap >= 2 * len(names) and time.monotonic() > end_s:
            break
        first, number = lap % len(names), lap // len(names) % 2
        for name in (*names[first:], *names[:first]):
            spent, half = walk(name), best[name][number]
            best[name][number] = [min(pair) for pair in zip(half, spent, strict=True)] if half else spent
    return best


def winner(seconds: Mapping[str, Halves], incumbent: str) -> str:
    """Who clearly beats the incumbent in both halves, and nobody clearly beats; else the incumbent.

    Of several the first by order, so that two that are as fast do not change places from race to race.
    """
    bar = seconds.get(incumbent)
    ahead = [
        name
        for name, own in seconds.items()
        if bar is None or all(s < _MARGIN * least for s, least in zip(own, bar, strict=True))
    ]
    fastest = min((sum(seconds[name]) for name in ahead), default=0.0)
    return next((name for name in ahead if _MARGIN * sum(seconds[name]) <= fastest), incumbent)


def machine_key(what: str) -> str:
    """What the outcome of a race depends on, in words: CPU, threads, torch build, and what is raced."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu_model()} {capability} | {torch.get_num_threads()} threads | torch {torch.__version__} | {what}"


def kept_outcomes(cache: Path | None) -> dict[str, Any]:
    """Everything the file in `cache` holds, by key; empty if there is none or it is damaged."""
    if cache is None:
        return {}
    try:
        kept = json.loads((cache / CACHE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def keep(cache: Path | None, key: str, outcome: dict[str, Any]) -> None:
    """Add an outcome to the file; a folder that cannot be written only means racing again next time."""
    if cache is None:
        return
    kept = kept_outcomes(cache)
    if kept.get(key) == outcome:
        return
    try:
        cache.mkdir(parents=True, exist_ok=True)
        write_json_atomic(cache / CACHE_FILE, kept | {key: outcome})
    except OSError as error:
        log.warning("cannot remember kernels in %s: %s", cache, error)
