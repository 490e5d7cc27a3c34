"""What `reproduce` leaves beside a table: its files, the figures of its runs, and one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentbench_spec.report.figure_files import FORMATS, write_figures
from agentbench_spec.report.grids import Cell, Grid, word
from agentbench_spec.report.page import write_report
from agentbench_spec.report.pass_cards import throughput_card
from agentbench_spec.report.plots import Plot, ThroughputPoint, draw_all
from agentbench_spec.reproduce.tables123 import Reproduced, write_record
from agentbench_spec.reproduce.versus_paper import versus_grids, versus_sheets
from agentbench_spec.results.export import markdown, sheet, write_tables
from agentbench_spec.results.intervals import ends
from agentbench_spec.results.tables import Table
from agentbench_spec.writing import write_bytes


def write_everything(done: Reproduced, folder: Path) -> list[Path]:
    """Write table, record, figures and page into `folder`; returns the files. Raises what the report raises."""
    files = [*write_tables(done.tables, folder, done.plan.name), write_record(done, folder)]
    batched = done.plan.name == "table4"
    runs, points = ([], list(throughput_points(done.tables))) if batched else (done.runs, [])
    cards = list(map(throughput_card, done.runs)) if batched else []
    figures = folder / "figures"
    files += write_figures(runs, figures, formats=FORMATS, width=None)
    files += [path for plot in (*draw_all((), points), *done.plots) for path in plot.save(figures, FORMATS)]
    files += [write_csv(plot, folder) for plot in done.plots]
    sheets = versus_sheets(done)
    beside = folder / f"{done.plan.name}_versus_paper.md"
    write_bytes(beside, "\n".join(map(markdown, sheets)).encode())
    tables = versus_grids(sheets)
    files += [beside, write_report((), beside.with_suffix(".html"), tables=tables, title="Beside the paper's values")]
    name = f"{done.plan.name}.html"
    page = write_report(
        runs, folder / name, tables=grids(done.tables), throughput=points, cards=cards, plots=done.plots
    )
    return [*files, page]


def write_csv(plot: Plot, folder: Path) -> Path:
    """Write the numbers that a figure was drawn from; returns the file."""
    import pandas as pd

    path = folder / f"{plot.name}_curves.csv"
    drawn = pd.DataFrame(plot.data, columns=list(plot.columns), dtype="object")
    write_bytes(path, str(drawn.to_csv(index=False, lineterminator="\n")).encode())
    return path


def grids(tables: Sequence[Table]) -> list[Grid]:
    """The tables for the page. A line names method and figure, so that it is understood wherever it is sorted to."""
    found = []
    for table in tables:
        own = sheet(table)
        head, lines = "", []
        for name, figure, *cells in own.lines:
            head = f"{name}, {figure}" if name else head
            lines.append((word(head if name else f"{head}, {figure.strip()}"), *map(_cell, cells)))
        found.append(Grid(own.title, ("figure", *own.headings[2:]), tuple(lines), tuple(own.notes)))
    return found


def _cell(text: str) -> Cell:
    """Sorted by the number it begins with; without one it stays last."""
    first = text.partition(" ")[0]
    try:
        return Cell(text, float(first))
    except ValueError:
        return Cell(text)


def throughput_points(tables: Sequence[Table]) -> Iterator[ThroughputPoint]:
    """Tokens per second by concurrency of all tables; with several workloads a drafter has a line for each."""
    timed = [table for table in tables if "tokens_per_s" in table.metrics]
    for table in timed:
        for drafter in table.drafters:
            for column in table.columns:
                cell = table.cell(drafter, "tokens_per_s", column)
                if cell.value is not None:
                    workload = table.title.rpartition(": ")[2]
                    name = f"{drafter}, {workload}" if len(timed) > 1 else drafter
                    yield ThroughputPoint(name, int(column.rpartition(" ")[2]), cell.value, *ends(cell.interval))
