"""Every figure and table of finished runs as files, at the size and in the formats that a paper takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from agentbench_spec.errors import ConfigError
from agentbench_spec.report.page import run_names
from agentbench_spec.report.plots import draw_all
from agentbench_spec.report.plots.canvas import Format
from agentbench_spec.report.plots.looks import Look, Style
from agentbench_spec.results.forms import export
from agentbench_spec.results.loaded import Run, RunOrFolder, several

FORMATS: tuple[Format, ...] = get_args(Format)
TABLES = ("tex", "md", "csv")
"""What the table of a run is written as."""


def write_figures(
    runs: RunOrFolder | Iterable[RunOrFolder],
    out: str | os.PathLike[str],
    *,
    formats: Sequence[str] = ("pdf",),
    width: str | float | None = "one-column",
    style: Style | None = None,
) -> list[Path]:
    """Write every figure and the table of each run into `out`, or into `out/<run>` if there are several; the files.

    formats: "pdf" (vectors, fonts embedded as TrueType), "svg", "png". width: "one-column" (85 mm), "two-column"
    (175 mm) or inches; such figures have no title, since a caption stands below them; None: as the report shows them.
    style: a style of matplotlib by name, a .mplstyle file or a mapping of settings, on top of ours; colours and marks
    of the methods stay, so that they are one in all figures. Tables: table.tex (booktabs and multirow, best values
    bold), .md and .csv. Raises ConfigError for what cannot be read, a format, a width or a style that there is not.
    """
    if other := [form for form in formats if form not in FORMATS]:
        raise ConfigError(f"format {other[0]!r}: expected {', '.join(FORMATS)}")
    wanted, look = [form for form in FORMATS if form in formats], Look.of(width, style)
    loaded = [own if isinstance(own, Run) else Run.load(own) for own in several(runs)]
    written: list[Path] = []
    for run, name in zip(loaded, run_names([run.folder for run in loaded]), strict=True):
        place = Path(out) / name if len(loaded) > 1 else Path(out)
        written += [path for plot in draw_all(run.rows) for path in plot.save(place, wanted, look)]
        written += [export(run, place / f"table.{ending}") for ending in TABLES]
    return written
