"""The sweep over K: one run for each K over the same rollouts, its columns side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentbench_spec.report.plots.canvas import Plot
from agentbench_spec.report.plots.curves import CurvePoint, curve_plot
from agentbench_spec.reproduce.plan import Plan
from agentbench_spec.results.intervals import ends
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.paper import DRAFTERS
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.tables import NAMES, Cell, Column, Table, refuse_mix, replay_table, value_text

_WHAT = (
    "K: draft tokens asked for a round. Each K is a run of its own over the same rollouts, with plain decoding in it. "
    "A speed-up is paired within its run; intervals of two K do not know that they share rollouts"
)


def sweep_tables(wanted: Plan, columns: Sequence[Column]) -> list[Table]:
    """A table for each workload, a column for each K. columns: in the order of the plan's.

    Raises MeasurementError if more than k differs between them, which the rows of plain decoding tell.
    """
    ks = [config.decode.k for _, config in wanted.columns]
    tables = []
    for title in dict.fromkeys(column.title for column in columns):
        own = [replace(c, title=f"K = {k}") for c, k in zip(columns, ks, strict=True) if c.title == title]
        found = replay_table(
            "ksweep",
            f"{wanted.title}: {title}",
            own,
            [BASELINE, *wanted.drafters],
            wanted.preset.figures,
            target=wanted.target,
            missing=wanted.missing,
            k_varies=True,
        )
        refuse_mix([replace(each, rows=_plain(each)) for each in own])
        tables.append(replace(found, notes=[*_best(found), _WHAT, *found.notes]))
    return tables


def _plain(column: Column) -> list[TurnRow]:
    """Rows of plain decoding, which carry the k that was asked of the others."""
    return [replace(row, k=0) for row in column.rows if row.drafter == BASELINE]


def _cells(table: Table, drafter: str, figure: str) -> list[tuple[int, Cell]]:
    found = ((int(column.removeprefix("K = ")), table.cell(drafter, figure, column)) for column in table.columns)
    return [(k, cell) for k, cell in found if cell.value is not None]


def _best(table: Table) -> Iterator[str]:
    for drafter in table.drafters:
        cells = _cells(table, drafter, "speedup")
        if drafter == BASELINE or len(cells) < 2:
            continue
        k, best = max(cells, key=lambda found: found[1].value or 0.0)
        last, longest = cells[-1]
        beside = "" if k == last else f"; {value_text(longest)} at K = {last}"
        yield f"{DRAFTERS.get(drafter, drafter)}: highest speed-up {value_text(best)} at K = {k}{beside}"


def sweep_plots(tables: Sequence[Table]) -> list[Plot]:
    """τ raw and speed-up over K, a figure for each table."""
    drawn = []
    for index, table in enumerate(tables):
        figures = {NAMES[figure]: list(_points(table, figure)) for figure in ("tau_raw", "speedup")}
        name = "ksweep" if len(tables) == 1 else f"ksweep-{index + 1}"
        words = "; ".join(_best(table)) or "One K only"
        title = f"τ and speed-up over K: {table.title.rpartition(': ')[2]}"
        drawn.append(curve_plot(name, title, f"{words}. Upright lines are 95 % intervals.", "K", figures))
    return [plot for plot in drawn if plot is not None]


def _points(table: Table, figure: str) -> Iterator[CurvePoint]:
    for drafter in table.drafters:
        if drafter != BASELINE:
            for k, cell in _cells(table, drafter, figure):
                yield CurvePoint(drafter, k, cell.value or 0.0, *ends(cell.interval))
