"""A table as text: lines in the paper's layout, values with their intervals, and which of them are the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from agentbench_spec.results.intervals import Interval, spread_text
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.paper import DRAFTERS, METRICS
from agentbench_spec.results.tables import NAMES, Cell, Table


def grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """(headings, lines of text cells) in the paper's layout: per drafter a line for each figure, and the paper's."""
    lines = []
    for drafter in table.drafters:
        for metric in table.metrics:
            own = [table.cell(drafter, metric, column) for column in table.columns]
            digits = _digits(table, metric)
            lines.append([drafter, NAMES.get(metric, metric), *(value_text(cell, metric, digits) for cell in own)])
            if metric in METRICS and table.paper_target and drafter in DRAFTERS and drafter != BASELINE:
                lines.append(["", f"  paper, {table.paper_target}", *map(paper_text, own)])
    return ["method", "figure", *table.columns], lines


def _digits(table: Table, metric: str) -> int:
    """Decimals that all values of a figure have, so that they can be compared down a column."""
    own = (cell.value for (_, name, _), cell in table.cells.items() if name == metric and cell.value is not None)
    return 0 if max(own, default=0.0) >= _LARGE else 2


_LARGE = 100


def best_of(table: Table, metric: str, column: str) -> set[str]:
    """The methods with the best value of a figure in a column, and those whose interval holds it: `best_places`."""
    if metric not in _BETTER:
        return set()
    own = [table.cell(drafter, metric, column) for drafter in table.drafters]
    found = best_places([(cell.value, cell.interval) for cell in own], _BETTER[metric])
    return {table.drafters[place] for place in found}


def best_places(
    figures: Sequence[tuple[float | None, Interval | None]], better: Callable[[Iterable[float]], float] = max
) -> set[int]:
    """Where the best of some values stands, and where an interval holds it; nowhere if fewer than two were measured."""
    values = [value for value, _ in figures if value is not None]
    if len(values) < 2:
        return set()
    best = better(values)
    return {
        place
        for place, (value, interval) in enumerate(figures)
        if value == best or (value is not None and interval is not None and interval.low <= best <= interval.high)
    }


_BETTER: Mapping[str, Callable[[Iterable[float]], float]] = {
    **dict.fromkeys(("speedup", "speedup_e2e", "tau", "tau_raw", "tokens_per_s"), max),
    "draft_kv_share": min,
}


def value_text(cell: Cell, metric: str = "", digits: int | None = None) -> str:
    """ "2.37 [2.10, 2.61]", "1.3 %" for a share, or why there is nothing; digits: None, as its size asks for."""
    if cell.value is None:
        return cell.missing or "-"
    if metric == "draft_kv_share":
        return f"{cell.value:.1%}".replace("%", " %")
    digits = (0 if cell.value >= _LARGE else 2) if digits is None else digits
    return f"{cell.value:.{digits}f}{spread_text(cell.interval, digits)}"


def paper_text(cell: Cell) -> str:
    """ "2.39 inside", or "unknown" where the paper's value is."""
    if cell.paper is None:
        return "unknown"
    return cell.paper.text if cell.verdict == "unknown" else f"{cell.paper.text} {cell.verdict}"
