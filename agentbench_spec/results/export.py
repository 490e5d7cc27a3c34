"""Any table as CSV, parquet, LaTeX and markdown: the first two tidy, one line a figure; the others as on screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.derived.table_text import best_of, best_places, grid
from agentbench_spec.results.intervals import Interval, ends, spread_text
from agentbench_spec.results.paper import DRAFTERS
from agentbench_spec.results.summary import DrafterSummary, Summary, notes, turns_cell
from agentbench_spec.results.tables import Table
from agentbench_spec.writing import is_special, write_bytes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Sheet:
    """Text cells with a title and notes: what a table looks like, wherever it is printed."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    labels: int = 1
    """Columns, from the left, that say what a line is about."""
    best: frozenset[tuple[int, int]] = frozenset()
    """(line, column) of the values that LaTeX prints in bold."""


def sheet(table: Table) -> Sheet:
    """The table in the paper's layout, drafters under the paper's names."""
    headings, lines = grid(table)
    named = [[DRAFTERS.get(line[0], line[0]), *line[1:]] for line in lines]
    bold = {
        (number, 2 + place)
        for number, (drafter, metric) in _lines_of(table, lines)
        for place, column in enumerate(table.columns)
        if drafter in best_of(table, metric, column)
    }
    return Sheet(table.title, headings, named, table.notes, labels=2, best=frozenset(bold))


def _lines_of(table: Table, lines: Sequence[Sequence[str]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """(line, (drafter, figure)) of our own values; the paper's stand in lines without a name."""
    own = [number for number, line in enumerate(lines) if line[0]]
    yield from zip(own, ((drafter, metric) for drafter in table.drafters for metric in table.metrics), strict=True)


def summary_sheet(summary: Summary, title: str) -> Sheet:
    """The figures of one run; both weightings side by side, named."""
    headings = ("method", "τ", "τ macro", "τ raw", "τ raw macro", "speed-up", "speed-up macro", "end to end", "turns")
    lines = [
        [own.drafter, *(_number(value) + spread_text(interval) for value, interval in _figures(own)), turns_cell(own)]
        for own in summary.drafters
    ]
    columns = zip(*(_figures(own) for own in summary.drafters), strict=True)
    bold = {(line, 1 + place) for place, column in enumerate(columns) for line in best_places(column)}
    return Sheet(title, headings, lines, notes(summary), best=frozenset(bold))


def _figures(own: DrafterSummary) -> tuple[tuple[float | None, Interval | None], ...]:
    """Every figure with its interval."""
    return (
        (own.tau.pooled, own.tau_interval),
        (own.tau.macro, own.tau_macro_interval),
        (own.tau_raw.pooled, own.tau_raw_interval),
        (own.tau_raw.macro, own.tau_raw_macro_interval),
        (own.speedup.pooled, own.speedup_interval),
        (own.speedup.macro, own.speedup_macro_interval),
        (own.speedup.e2e, own.speedup_e2e_interval),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """One dict a figure: what it is, its value under both weightings, its interval, the paper's value, the verdict."""
    return [
        {
            "table": table.name,
            "title": table.title,
            "target": table.target,
            "column": column,
            "drafter": drafter,
            "figure": figure,
            "pooled": cell.value,
            "macro": cell.macro,
            **between("", cell.interval),
            **between("macro_", cell.macro_interval),
            "level": cell.interval.level if cell.interval else None,
            "clusters": cell.interval.clusters if cell.interval else None,
            "turns": cell.turns,
            "left_out": cell.left_out,
            "missing": cell.missing,
            "paper_target": table.paper_target,
            "paper": cell.paper.text if cell.paper else None,
            "paper_source": cell.paper.source if cell.paper else None,
            "verdict": cell.verdict,
        }
        for table in tables
        for drafter in table.drafters
        for figure in table.metrics
        for column in table.columns
        for cell in [table.cell(drafter, figure, column)]
    ]


def between(prefix: str, interval: Interval | None) -> dict[str, float | None]:
    """The two ends of an interval as columns of a data frame."""
    low, high = ends(interval)
    return {f"{prefix}low": low, f"{prefix}high": high}


_WHOLE = ("clusters", "turns", "left_out")
_REAL = ("pooled", "macro", "low", "high", "macro_low", "macro_high", "level")


def frame(tables: Sequence[Table]) -> pd.DataFrame:
    """`records` as a data frame; a column that is empty throughout keeps its type."""
    import pandas as pd

    kinds = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_REAL, "float64")
    found = pd.DataFrame(records(tables), dtype="object")
    return found.astype({name: kinds.get(name, "string") for name in found.columns})


def csv_text(tables: Sequence[Table]) -> str:
    """Tidy CSV; an empty field is a value nobody measured or published."""
    return str(frame(tables).to_csv(index=False, lineterminator="\n"))


def markdown(found: Sheet) -> str:
    """A pipe table with its title above and its notes below."""
    rows = [list(map(_marked, row)) for row in (found.headings, *found.lines)]
    body = ["| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(found.headings), *rows[1:])]
    below = [f"- {_marked(note)}" for note in found.notes]
    return "\n".join([f"### {_marked(found.title)}", "", *body, "", *below]) + "\n"


_MARKDOWN = re.compile(r"[\\|<*`]|(?<!\w)_|_(?!\w)")
"""What is markup in a cell; an underscore between letters is not."""


def _marked(text: str) -> str:
    return _MARKDOWN.sub(lambda mark: "\\" + mark[0], _BREAKS.sub(" ", text))


_BREAKS = re.compile(r"[^\S \u00a0]+")
"""Line breaks and tabs, which an error message may hold: a cell, and a comment, is one line."""


def latex(found: Sheet) -> str:
    """A booktabs table, bold and `multirow` as the sheet says; notes as comments above it, a caption is the author's.

    Needs the packages booktabs and multirow. Bold is the best value of a column, and each whose interval holds it.
    """
    columns = "l" * found.labels + "r" * (len(found.headings) - found.labels)
    cells = [
        [
            rf"\textbf{{{_escaped(text)}}}" if (number, place) in found.best else _escaped(text)
            for place, text in enumerate(line)
        ]
        for number, line in enumerate(found.lines)
    ]
    lines = [" & ".join(line) + r" \\" for line in (_grouped(cells) if found.labels > 1 else cells)]
    heading = " & ".join(map(_escaped, found.headings)) + r" \\"
    comments = [f"% {_BREAKS.sub(' ', text)}" for text in (found.title, *found.notes)]
    table = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule", *lines, r"\bottomrule"]
    return "\n".join([*comments, *table, r"\end{tabular}"]) + "\n"


def _grouped(cells: Sequence[list[str]]) -> Iterator[list[str]]:
    """Lines of one name under one `multirow`, a thin rule between the groups."""
    starts = [n for n, line in enumerate(cells) if not n or (line[0] and line[0] != _named(cells, n - 1))]
    for start, end in zip(starts, [*starts[1:], len(cells)], strict=True):
        rule, name = r"\midrule " if start else "", cells[start][0]
        head = rf"\multirow{{{end - start}}}{{*}}{{{name}}}" if end - start > 1 else name
        yield [rule + head, *cells[start][1:]]
        yield from (["", *line[1:]] for line in cells[start + 1 : end])


def _named(cells: Sequence[list[str]], number: int) -> str:
    return next((cells[n][0] for n in range(number, -1, -1) if cells[n][0]), "")


_LATEX = {
    "\\": r"\textbackslash{}",
    "τ": r"$\tau$",
    "×": r"$\times$",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _escaped(text: str) -> str:
    # a line that begins with "[" or "*" would be read as an argument of the "\\" before it
    plain = "".join(_LATEX.get(mark, mark) for mark in _BREAKS.sub(" ", text.strip()))
    return "{" + plain + "}" if plain.startswith(("[", "*")) else plain


def summary_frame(summary: Summary) -> pd.DataFrame:
    """The figures of one run as numbers, one line a drafter; None is an empty cell."""
    import pandas as pd

    names = ("tau", "tau_macro", "tau_raw", "tau_raw_macro", "speedup", "speedup_macro", "speedup_e2e")
    lines = [
        {
            "drafter": own.drafter,
            "k": own.k,
            **dict(zip(names, (value for value, _ in figures), strict=True)),
            **{
                key: end
                for name, (_, interval) in zip(names, figures, strict=True)
                for key, end in between(f"{name}_", interval).items()
            },
            "turns": own.turns,
            "left_out": sum(own.left_out.values()),
        }
        for own, figures in ((own, _figures(own)) for own in summary.drafters)
    ]
    whole = dict.fromkeys(("k", "turns", "left_out"), "int64") | {"drafter": "string"}
    found = pd.DataFrame(lines, dtype="object")
    return found.astype({name: whole.get(name, "float64") for name in found.columns})


def write_summary(summary: Summary, title: str, path: Path) -> Path:
    """Write the figures of one run as the ending of `path` says. Raises ConfigError for another ending."""
    return write_sheet(summary_sheet(summary, title), lambda: summary_frame(summary), path)


def write_sheet(found: Sheet, figures: Callable[[], pd.DataFrame], path: Path) -> Path:
    """Write a table as the ending of `path` says: its text, or its figures as data; a device without an ending: CSV.

    Raises ConfigError for an ending other than .csv, .md, .tex and .parquet.
    """
    contents: dict[str, Callable[[], bytes]] = {
        ".csv": lambda: str(figures().to_csv(index=False, lineterminator="\n")).encode(),
        ".md": lambda: markdown(found).encode(),
        ".tex": lambda: latex(found).encode(),
        ".parquet": lambda: figures().to_parquet(index=False),
    }
    ending = ".csv" if not path.suffix and is_special(path) else path.suffix
    if ending not in contents:
        raise ConfigError(f"{path}: the ending must be one of {', '.join(contents)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, contents[ending]())
    return path


def write_tables(tables: Sequence[Table], folder: Path, stem: str) -> list[Path]:
    """Write STEM.csv, .parquet, .md and .tex into `folder`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    sheets = [sheet(table) for table in tables]
    contents = {
        "csv": csv_text(tables).encode(),
        "md": "\n".join(map(markdown, sheets)).encode(),
        "tex": "\n".join(map(latex, sheets)).encode(),
        "parquet": frame(tables).to_parquet(index=False),
    }
    for ending, content in contents.items():
        write_bytes(folder / f"{stem}.{ending}", content)
    return [folder / f"{stem}.{ending}" for ending in contents]
