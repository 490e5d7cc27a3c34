"""Figure 1b in one line a drafter: mean τ of each group of workloads, and how far it falls from one to the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentbench_spec.reproduce.means import mean_cell, ratio_cell
from agentbench_spec.reproduce.plan import Plan
from agentbench_spec.results.paper import DRAFTERS, FALL, published, verdict
from agentbench_spec.results.tables import Cell, Table


def fall_table(whole: Table, wanted: Plan) -> Table:
    """Means over the workloads of both groups, and their ratio. whole: the figures of all workloads.

    Each workload weighs the same. Raises ValueError if the preset has not two groups.
    """
    before, after = wanted.preset.groups
    groups = [preset.paper_workload for preset, _ in wanted.columns]
    cells = {}
    for drafter in whole.drafters:
        for figure in whole.metrics:
            own = {name: _measured(whole, drafter, figure, name, groups) for name in (before, after)}
            for name, parts in own.items():
                paper = published("figure1b", "", name, drafter, figure)
                cells[drafter, figure, name] = replace(mean_cell(parts), paper=paper)
            paper = published("figure1b", "", FALL, drafter, figure)
            ratio = ratio_cell(own[after], own[before])
            judged = verdict(ratio.interval, paper) if wanted.comparable else "unknown"
            cells[drafter, figure, FALL] = replace(ratio, paper=paper, verdict=judged)
    title = f"{whole.title}: from {before} to {after} workloads"
    found = replace(whole, title=title, columns=[before, after, FALL], cells=cells, notes=(), differences=())
    return replace(found, notes=[*_falls(found), _WHAT])


_WHAT = (
    "means over workloads, each weighing the same; an interval adds the errors of workloads that were measured apart, "
    "and speaks of these workloads only. Which workloads and drafters the paper's fall is taken over is not known"
)


def _measured(whole: Table, drafter: str, figure: str, group: str, groups: Sequence[str]) -> list[Cell]:
    columns = [column for column, own in zip(whole.columns, groups, strict=True) if own == group]
    return [cell for column in columns if (cell := whole.cell(drafter, figure, column)).value is not None]


def _falls(found: Table) -> Iterator[str]:
    """The fall of τ raw in percent, which is how the paper states it."""
    for drafter in found.drafters:
        cell = found.cell(drafter, "tau_raw", FALL)
        if cell.value is not None:
            left = cell.interval
            ends = f" [{_percent(1 - left.high)}, {_percent(1 - left.low)}]" if left else ""
            paper = f"; left by the paper's fall, of existing drafters: {cell.paper.text}" if cell.paper else ""
            yield f"{DRAFTERS.get(drafter, drafter)}: τ raw falls by {_percent(1 - cell.value)}{ends}{paper}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
