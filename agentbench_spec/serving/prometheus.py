"""The server's own counters over a window: a second source for what the rows say, and a sign of other clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any


def read_counters(text: str, prefix: str, names: Iterable[str]) -> dict[str, float]:
    """Counters `PREFIX:NAME` in Prometheus `text`, each summed over its labels; those that are not there are absent.

    Sums over the whole server; gauges are values of the last interval and are never asked for.
    """
    sample = re.compile(rf"^{prefix}[:_](?P<name>\w+)(?:\{{[^}}]*\}})?\s+(?P<value>\S+)")
    wanted, found = set(names), dict[str, float]()
    for line in text.splitlines():
        match = sample.match(line)
        if match and match["name"] in wanted:
            with suppress(ValueError):  # no number: not a line of Prometheus after all
                found[match["name"]] = found.get(match["name"], 0.0) + float(match["value"])
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
    server: Mapping[str, float | None]
    """Total -> what the server counted; None: it has no such counter."""
    own: Mapping[str, float]
    """Total -> what our requests had."""
    tau_emitted: float | None
    """(generation tokens - requests) / verify steps, from the server's totals."""
    own_tau_emitted: float | None
    disagreements: tuple[str, ...]

    @classmethod
    def of(
        cls,
        server: Mapping[str, float | None],
        own: Mapping[str, float],
        *,
        unknown: Sequence[str] = (),
        further: Sequence[str] = (),
    ) -> CrossCheck:
        """Compare totals of one name.

        server, own: with "requests", "generation tokens" and "verify steps" among them. unknown: totals that our side
        cannot know whole. further: what else disagrees, in words.
        """
        unequal = [
            f"{name}: the server counted {total:g}, our requests had {own[name]:g}"
            for name, total in server.items()
            if total is not None and total != own[name] and name not in unknown
        ]
        return cls("server", server, own, _tau(server), _tau(own), (*unequal, *further))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def _tau(totals: Mapping[str, float | None]) -> float | None:
    requests, tokens, steps = (totals.get(name) for name in ("requests", "generation tokens", "verify steps"))
    return None if requests is None or tokens is None or not steps else (tokens - requests) / steps
