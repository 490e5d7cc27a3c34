"""A run, a comparison or a table of the paper as data frame, markdown, LaTeX, or a file of either."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agentbench_spec.results.compare import Comparison, comparison_frame, comparison_sheet
from agentbench_spec.results.export import (
    Sheet,
    frame,
    latex,
    markdown,
    sheet,
    summary_frame,
    summary_sheet,
    write_sheet,
)
from agentbench_spec.results.loaded import Run
from agentbench_spec.results.tables import Table

if TYPE_CHECKING:
    import pandas as pd

Figures: TypeAlias = Run | Comparison | Table


def _sheet(found: Figures) -> Sheet:
    if isinstance(found, Run):
        return summary_sheet(found.summary, found.folder.resolve().name)
    return comparison_sheet(found) if isinstance(found, Comparison) else sheet(found)


def as_frame(found: Figures) -> pd.DataFrame:
    """The figures as numbers, one line a drafter, a change or a cell; a value nobody measured is empty."""
    if isinstance(found, Run):
        return summary_frame(found.summary)
    return comparison_frame(found) if isinstance(found, Comparison) else frame([found])


def as_markdown(found: Figures) -> str:
    """The figures as a markdown table, with what was left out below it."""
    return markdown(_sheet(found))


def as_latex(found: Figures) -> str:
    """The figures as a LaTeX (booktabs) table, with what was left out in comments."""
    return latex(_sheet(found))


def export(found: Figures, out: str | os.PathLike[str]) -> Path:
    """Write the figures as the ending of `out` says: .csv, .parquet, .md or .tex. Raises ConfigError for another."""
    return write_sheet(_sheet(found), lambda: as_frame(found), Path(out))
