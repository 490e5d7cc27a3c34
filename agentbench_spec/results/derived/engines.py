"""Rows of several engines in one table: side by side where they were measured alike, refused by field where not.

Each line is an engine's own: its speed-up is over its own plain decoding, and nothing is averaged over engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.metrics import BASELINE, conditions_of, counted, turn_of
from agentbench_spec.results.rows import TurnRow

OWN = "engine"
"""How rows name our own loop."""

_OF_ONE_ENGINE = {"backend", "client", "clock", "graphs", "concurrency", "async_scheduling", "k", f"k of {BASELINE}"}
"""Conditions that are an engine's own, or that our own loop has no word for."""


class OfAnEngine(Protocol):
    """A row of turns or of passes."""

    backend: str
    engine_version: str | None


_Row = TypeVar("_Row", bound=OfAnEngine)


def label_of(row: OfAnEngine) -> str:
    """The engine of a row with its version, as a table names it: "vllm 0.32.0"."""
    return row.backend if row.engine_version is None else f"{row.backend} {row.engine_version}"


def by_engine(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """The rows of each engine and version, in order of first appearance."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(label_of(row), []).append(row)
    return found


def refuse_unlike(
    engines: Mapping[str, Sequence[_Row]],
    conditions: Callable[[_Row], Iterable[tuple[str, Any]]],
    name_of: Callable[[_Row], str],
) -> None:
    """Raises MeasurementError naming each field in which engines differ, with each one's values, where it must be one.

    conditions: (field, value) of a row. name_of: what an engine may have but once, since nothing is averaged over runs.
    """
    values: dict[str, dict[str, set[Any]]] = {}
    for label, rows in engines.items():
        name, count = Counter(map(name_of, rows)).most_common(1)[0]
        if count > 1:
            raise MeasurementError(f"{label}: {name} stands there twice: give one run of each engine")
        for row in rows:
            for field, value in conditions(row):
                values.setdefault(field, {}).setdefault(label, set()).add(value)
    unlike = [
        f"{field}: {', '.join(f'{_listed(own)} ({label})' for label, own in found.items())}"
        for field, found in values.items()
        if len(set().union(*found.values())) > 1
    ]
    if unlike:
        raise MeasurementError(f"rows of these engines cannot stand in one table ({'; '.join(unlike)})")


def refuse_unlike_engines(engines: Mapping[str, Sequence[TurnRow]]) -> None:
    """As `refuse_unlike`, of rows of turns.

    Clock, route and graphs are an engine's own. What a server does not tell agrees with anything.
    """
    refuse_unlike(engines, _shared_conditions, lambda row: f"{row.rollout} turn {row.turn} {row.drafter}")


def _shared_conditions(row: TurnRow) -> Iterator[tuple[str, Any]]:
    """Our own loop decodes one turn at a time, each step after the one before."""
    own = row.backend == OWN
    yield from ((name, value) for name, value in conditions_of(row) if name not in _OF_ONE_ENGINE)
    yield "concurrency", 1 if own and row.concurrency is None else row.concurrency
    scheduling = False if own else row.async_scheduling
    if scheduling is not None:
        yield "async_scheduling", scheduling


def _listed(values: set[Any]) -> str:
    return ", ".join(sorted(map(str, values)))


def unlike_turns(engines: Mapping[str, Sequence[TurnRow]], *, include_degenerate: bool = False) -> list[str]:
    """A warning where engines are averaged over different turns; empty where the same turns count in all."""
    turns = {
        label: set(map(turn_of, counted(rows, include_degenerate=include_degenerate)))
        for label, rows in engines.items()
    }
    if len(set(map(frozenset, turns.values()))) < 2:
        return []
    sizes = ", ".join(f"{label} {len(own)}" for label, own in turns.items())
    return [f"engines are averaged over different turns ({sizes})"]
