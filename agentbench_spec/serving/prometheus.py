"""The server's own counters over a window: a second source for what the rows say, and a sign of other clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from agentbench_spec.results.rows import TurnRow

COUNTERS = (
    "generation_tokens_total",
    "prompt_tokens_total",
    "cached_tokens_total",
    "spec_verify_calls_total",
    "num_requests_total",
    "num_retracted_requests_total",
)
"""Sums over the whole server; gauges are values of the last interval and are never read."""

_SAMPLE = re.compile(r"^sglang[:_](?P<name>\w+)(?:\{[^}]*\})?\s+(?P<value>\S+)")


def counters(text: str) -> dict[str, float]:
    """The counters in Prometheus `text`, each summed over its labels; those the server does not have are absent."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample and sample["name"] in COUNTERS:
            with suppress(ValueError):  # no number: not a line of Prometheus after all
                found[sample["name"]] = found.get(sample["name"], 0.0) + float(sample["value"])
    return found


def difference(before: Iterable[Mapping[str, float]], after: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """What all servers' counters grew by. A counter that was never touched is absent before, and so 0."""
    grown: dict[str, float] = {}
    for old, new in zip(before, after, strict=True):
        for name, value in new.items():
            grown[name] = grown.get(name, 0.0) + value - old.get(name, 0.0)
    return grown


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Server-wide totals of a window beside the sums over our own requests."""

    scope: str
    """Always "server": these totals hold other clients' traffic too and belong in no per-turn table."""
    requests: float | None
    own_requests: int
    generation_tokens: float | None
    own_generation_tokens: int
    verify_steps: float | None
    own_verify_steps: int
    tau_emitted: float | None
    """(generation tokens - requests) / verify steps, from the server's totals."""
    own_tau_emitted: float | None
    disagreements: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def cross_check(grown: Mapping[str, float], rows: Sequence[TurnRow]) -> CrossCheck:
    """Compare the growth of the counters over a window with the rows of that window."""
    asked = [row for row in rows if row.output_tokens is not None]
    tokens, steps = sum(row.output_tokens or 0 for row in asked), sum(row.rounds or 0 for row in asked if row.k)
    pairs = {
        "requests": (grown.get("num_requests_total"), len(asked)),
        "generation tokens": (grown.get("generation_tokens_total"), tokens),
        "verify steps": (grown.get("spec_verify_calls_total"), steps),
    }
    complete = all(row.status in ("ok", "retracted") for row in asked)
    unequal = [
        f"{name}: the server counted {total:g}, our requests had {own}"
        for name, (total, own) in pairs.items()
        if total is not None and total != own and (name != "verify steps" or complete)
    ]
    return CrossCheck(
        scope="server",
        requests=pairs["requests"][0],
        own_requests=len(asked),
        generation_tokens=pairs["generation tokens"][0],
        own_generation_tokens=tokens,
        verify_steps=pairs["verify steps"][0],
        own_verify_steps=steps,
        tau_emitted=_tau(*(total for total, _ in pairs.values())),
        own_tau_emitted=_tau(len(asked), tokens, steps),
        disagreements=tuple(unequal),
    )


def _tau(requests: float | None, tokens: float | None, steps: float | None) -> float | None:
    return None if requests is None or tokens is None or not steps else (tokens - requests) / steps
