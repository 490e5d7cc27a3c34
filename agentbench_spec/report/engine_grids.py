"""Runs of several engines in one table of a page, or the fields for which they do not stand in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentbench_spec.errors import MeasurementError
from agentbench_spec.report.grids import Cell, Grid, number, summary_grid, with_interval, word
from agentbench_spec.results.derived.engines import OWN, by_engine, refuse_unlike
from agentbench_spec.results.manifest import counting
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import notes, summarise
from agentbench_spec.results.throughput.pass_figures import pass_figure
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, by_cell, pass_of, read_rows

CAPTION = "Engines side by side"
_MEANING = "Each speed-up is over the same engine's own plain decoding, on that engine's clock."


def engine_grids(runs: Sequence[tuple[Mapping[str, Any], Sequence[TurnRow]]]) -> list[Grid]:
    """The table over all engines, from the manifest and rows of each run; none, if there is but one engine."""
    rows = [row for _, own in runs for row in own]
    if len(by_engine(rows)) < 2:
        return []
    loops = all(counting(manifest)["include_degenerate"] for manifest, _ in runs)
    try:
        summary = summarise(rows, include_degenerate=loops)
    except MeasurementError as error:
        return [_refused(error)]
    grid = summary_grid(summary)
    return [replace(grid, caption=CAPTION, notes=(*grid.notes, _MEANING, *notes(summary)))]


def _refused(error: MeasurementError) -> Grid:
    return Grid(CAPTION, ("not in one table",), (), (f"{error}.",))


def pass_engine_grids(runs: Sequence[Path]) -> list[Grid]:
    """The same over throughput runs, a line for each drafter, engine and concurrency."""
    rows = [row for run in runs for row in read_rows(run) if row.status == "ok" and row.clock != "attribution"]
    engines = by_engine(rows)
    if len(engines) < 2:
        return []
    try:
        refuse_unlike(engines, _pass_conditions, lambda row: " ".join(map(str, pass_of(row))))
    except MeasurementError as error:
        return [_refused(error)]
    lines = tuple(
        _pass_line(f"{drafter} ({label})", concurrency, passes, cells.get((BASELINE, concurrency), []))
        for label, own in engines.items()
        for cells in (by_cell(own),)
        for (drafter, concurrency), passes in cells.items()
    )
    columns = ("drafter", "concurrency", "τ [95\u00a0%]", "speed-up", "tokens/s")
    return [Grid(CAPTION, columns, lines, (_MEANING,))]


def _pass_line(
    name: str, concurrency: int, passes: Sequence[ThroughputRow], plain: Sequence[ThroughputRow]
) -> tuple[Cell, ...]:
    tau, interval = pass_figure(passes, plain, "tau")
    return (
        word(name),
        number(concurrency, 0),
        with_interval(tau.pooled, interval),
        number(pass_figure(passes, plain, "speedup")[0].pooled),
        number(pass_figure(passes, plain, "tokens_per_s")[0].pooled, 1),
    )


def _pass_conditions(row: ThroughputRow) -> Iterator[tuple[str, Any]]:
    yield from ((name, getattr(row, name)) for name in ("schema", "target", "workload", "thinking"))
    yield "prefills in tokens/s", row.backend != OWN
    if row.drafter != BASELINE:
        yield f"k of {row.drafter}", row.k
    if row.async_scheduling is not None:
        yield "async_scheduling", row.async_scheduling
