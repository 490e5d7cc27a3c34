"""What `reproduce` leaves beside a table: its files, the figures of its runs, and one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentbench_spec.export import sheet, write_tables
from agentbench_spec.plots import ThroughputPoint, draw_all
from agentbench_spec.report import save_figures, write_report
from agentbench_spec.report_grids import Cell, Grid
from agentbench_spec.reproduce import Reproduced, write_record
from agentbench_spec.stats import ends
from agentbench_spec.tables import Table


def write_everything(done: Reproduced, folder: Path) -> list[Path]:
    """Write table, record, figures and page into `folder`; returns the files. Raises what the report raises."""
    files = [*write_tables(done.tables, folder, done.plan.name), write_record(done, folder)]
    runs = [] if done.plan.name == "table4" else done.runs
    points = list(throughput_points(done.tables)) if done.plan.name == "table4" else []
    figures = folder / "figures"
    files += save_figures(runs, figures)
    files += [path for plot in draw_all((), points) for path in plot.save(figures)]
    page = write_report(runs, folder / f"{done.plan.name}.html", tables=grids(done.tables), throughput=points)
    return [*files, page]


def grids(tables: Sequence[Table]) -> list[Grid]:
    """The tables for the page. A line keeps its method's name, so that it is understood wherever it is sorted to."""
    found = []
    for table in tables:
        own = sheet(table)
        method, lines = "", []
        for name, figure, *cells in own.lines:
            method = name or method
            lines.append((_cell(f"{method}, {figure.strip()}"), *map(_cell, cells)))
        found.append(Grid(own.title, ("figure", *own.headings[2:]), tuple(lines), tuple(own.notes)))
    return found


def _cell(text: str) -> Cell:
    """Sorted by the number it begins with, if it does."""
    first = text.partition(" ")[0]
    try:
        return Cell(text, float(first))
    except ValueError:
        return Cell(text, text)


def throughput_points(tables: Sequence[Table]) -> Iterator[ThroughputPoint]:
    """Tokens per second by concurrency of all tables; with several workloads a drafter has a line for each."""
    for table in tables:
        for drafter in table.drafters:
            for column in table.columns:
                cell = table.cell(drafter, "tokens_per_s", column)
                if cell.value is not None:
                    workload = table.title.rpartition(": ")[2]
                    name = f"{drafter}, {workload}" if len(tables) > 1 else drafter
                    yield ThroughputPoint(name, int(column.rpartition(" ")[2]), cell.value, *ends(cell.interval))
