"""The mean τ of table 4: over concurrencies, and over its workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from agentbench_spec.reproduce.means import mean_cell
from agentbench_spec.reproduce.plan import Plan
from agentbench_spec.results.intervals import jackknife_interval
from agentbench_spec.results.paper import MEAN, published
from agentbench_spec.results.tables import Cell, Table
from agentbench_spec.results.throughput.pass_figures import good, tau_parts
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, by_cell

_SCOPE = (
    "means of τ raw over concurrencies, each weighing the same, and then over workloads. Over which target, workloads "
    "and concurrencies the paper took its mean is not known, so it stands here for orientation only"
)


def mean_tau_table(title: str, wanted: Plan, measured: Sequence[tuple[str, Sequence[ThroughputRow]]]) -> Table:
    """A line a drafter. measured: (title, rows of all its passes) of each workload."""
    cells = {}
    for drafter in wanted.drafters:
        for column, rows in measured:
            found = tau_over_concurrencies(rows, drafter)
            cells[drafter, "tau_raw", column] = found or Cell(missing=wanted.missing.get(drafter, "not run"))
        parts = [cells[drafter, "tau_raw", column] for column, _ in measured]
        mean = mean_cell([cell for cell in parts if cell.value is not None])
        paper = published("table4", "", MEAN, drafter, "tau_raw")
        cells[drafter, "tau_raw", MEAN] = replace(mean, paper=paper, missing=None if mean.turns else parts[0].missing)
    columns = [*(column for column, _ in measured), MEAN]
    whole = f"{title}: mean τ"
    target = wanted.paper_target
    return Table("table4", whole, wanted.target, target, columns, wanted.drafters, ["tau_raw"], cells, [_SCOPE])


def tau_over_concurrencies(rows: Sequence[ThroughputRow], drafter: str) -> Cell | None:
    """The mean over concurrencies of τ raw; None if the drafter served nothing.

    A rollout is served at several concurrencies, so it is left out of all of them together. Passes of one concurrency
    decode the same text, so the first one speaks for all.
    """
    served = [good(own)[0] for (name, _), own in by_cell(rows).items() if name == drafter and good(own)]
    parts = [{name: (tokens, rounds) for name, tokens, rounds in tau_parts(row, raw=True)} for row in served]
    names = sorted({name for part in parts for name, (_, rounds) in part.items() if rounds})

    def mean(kept: Sequence[str]) -> float | None:
        found = [
            sum(part[name][0] for name in kept if name in part) / rounds
            for part in parts
            if (rounds := sum(part[name][1] for name in kept if name in part))
        ]
        return fmean(found) if found else None

    value = mean(names)
    if value is None:
        return None
    weights = [
        sum(part[name][1] / sum(r for _, r in part.values()) for part in parts if name in part) for name in names
    ]
    interval = jackknife_interval(names, mean, weights=weights)
    return Cell(value=value, interval=interval, turns=sum(row.turns for row in served))
