"""Figures machine by machine: a turn's methods all ran on one machine, so machines are blocks of paired turns.

A speed-up pairs methods within a turn, and stalls are judged among turns of one machine, so that a slower machine is no
stall and no speed-up. What is left is whether the machines tell the same; these lines say it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentbench_spec.results.costs import decode_s_per_token, paired, speedup
from agentbench_spec.results.metrics import BASELINE, by_drafter, counted, rollout_of
from agentbench_spec.results.rows import TurnRow


def by_machine(rows: Sequence[TurnRow]) -> dict[str, list[TurnRow]]:
    """The rows of each machine that is recorded, in order of first appearance."""
    found: dict[str, list[TurnRow]] = {}
    for row in rows:
        if row.machine is not None:
            found.setdefault(row.machine, []).append(row)
    return found


def machine_lines(rows: Sequence[TurnRow]) -> list[str]:
    """Plain decoding and every speed-up on each machine, in words; empty where all rows are of one."""
    machines = by_machine(rows)
    return list(_lines(machines, rows)) if len(machines) > 1 else []


def _lines(machines: dict[str, list[TurnRow]], rows: Sequence[TurnRow]) -> Iterator[str]:
    sizes = ", ".join(f"{name} ({len(set(map(rollout_of, own)))} rollouts)" for name, own in machines.items())
    yield f"{len(machines)} machines, each a block of its own: {sizes}"
    plain = [decode_s_per_token(r for r in counted(own) if r.drafter == BASELINE) for own in machines.values()]
    yield f"plain decoding by machine: {', '.join(_text(1e3 * s if s else None, ' ms a token') for s in plain)}"
    for drafter in by_drafter(rows):
        if drafter != BASELINE:
            found = [speedup(paired(own, drafter)).pooled for own in machines.values()]
            yield f"{drafter}: speed-up by machine: {', '.join(_text(value) for value in found)}"


def _text(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"
