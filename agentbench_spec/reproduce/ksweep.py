"""The sweep over K: every drafter decodes each turn with each K, and with one chosen round by round, in one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agentbench_spec.report.plots.canvas import Plot
from agentbench_spec.report.plots.curves import CurvePoint, curve_plot
from agentbench_spec.reproduce.plan import Plan
from agentbench_spec.results.costs import paired, speedup
from agentbench_spec.results.derived.k_arms import arm_name, arm_of
from agentbench_spec.results.derived.table_text import value_text
from agentbench_spec.results.differences import Difference, paired_difference
from agentbench_spec.results.intervals import ends, spread_text
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.paper import DRAFTERS
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.tables import NAMES, Cell, Column, Table, replay_table

AUTO = "auto"
NEAR = 1.03
"""Seconds a token of a chosen K over the best fixed one's, up to which the choice is good."""

_WHAT = (
    "K: draft tokens asked for a round. All K decode the same turns of one run, one after the other, so a speed-up, "
    "and a chosen K against a fixed one, is paired by turn"
)


def sweep_tables(wanted: Plan, columns: Sequence[Column]) -> list[Table]:
    """A table for each workload, a column for each K. columns: in the order of the plan's, with rows of all K.

    Raises MeasurementError if more than k differs between the rows of a column.
    """
    tables = []
    for column in columns:
        found = replay_table(
            "ksweep",
            f"{wanted.title}: {column.title}",
            [_at(column, str(k)) for k in wanted.preset.k],
            [BASELINE, *wanted.drafters],
            wanted.preset.figures,
            target=wanted.target,
            missing=wanted.missing,
            k_varies=True,
        )
        chosen = [against_best(column.rows, drafter, wanted.preset.k) for drafter in wanted.drafters]
        said = [chosen_line(each) for each in chosen if each is not None]
        tables.append(replace(found, notes=[*_best(found), *said, _WHAT, *found.notes]))
    return tables


def _at(column: Column, k: str) -> Column:
    """The rows of one K under the drafters' own names, plain decoding's with them."""
    named = [(row, *arm_of(row.drafter)) for row in column.rows]
    rows = [replace(row, drafter=name) for row, name, own in named if own == k or name == BASELINE]
    return replace(column, title=_title(k), rows=rows)


def _title(k: str) -> str:
    return f"K = {k}"


def _cells(table: Table, drafter: str, figure: str) -> Mapping[str, Cell]:
    """What was measured, by K."""
    found = {title.removeprefix(_title("")): table.cell(drafter, figure, title) for title in table.columns}
    return {k: cell for k, cell in found.items() if cell.value is not None}


def _fastest(table: Table, drafter: str) -> str | None:
    """The fixed K of the highest speed-up; None if none was measured."""
    fixed = {k: cell.value or 0.0 for k, cell in _cells(table, drafter, "speedup").items() if k != AUTO}
    return max(fixed, key=lambda k: fixed[k]) if fixed and drafter != BASELINE else None


def _best(table: Table) -> Iterator[str]:
    for drafter in table.drafters:
        cells, k = _cells(table, drafter, "speedup"), _fastest(table, drafter)
        if k is None or len(cells) < 2:
            continue
        last = max(cells.keys() - {AUTO}, key=int)
        beside = "" if k == last else f"; {value_text(cells[last])} at K = {last}"
        beside += f"; {value_text(cells[AUTO])} with a K chosen round by round" if AUTO in cells else ""
        yield f"{DRAFTERS.get(drafter, drafter)}: highest speed-up {value_text(cells[k])} at K = {k}{beside}"


def against_best(rows: Sequence[TurnRow], drafter: str, ks: Iterable[int | str]) -> Difference | None:
    """The K chosen round by round against the fixed one of the highest speed-up, by seconds per token on shared turns.

    rows: of a run over `ks`; None if either was not measured.
    """
    arms = [arm_name(drafter, k) for k in ks if k != AUTO]
    speeds = {arm: value for arm in arms if (value := speedup(paired(rows, arm)).pooled) is not None}
    if not speeds:
        return None
    found = paired_difference(rows, arm_name(drafter, AUTO), max(speeds, key=lambda arm: speeds[arm]), "s_per_token")
    return found if found.turns else None


def chosen_line(found: Difference) -> str:
    """What `against_best` found, in words."""
    drafter, k = arm_of(found.other)
    inside = found.interval
    told = "not told whether within 3 %"
    if inside is not None and inside.high <= NEAR:
        told = "faster" if inside.high < 1 else "within 3 %"
    elif inside is not None and inside.low > NEAR:
        told = "more than 3 % slower"
    ratio = f"{found.ratio:.3f}{spread_text(inside, 3)}"
    return (
        f"{DRAFTERS.get(drafter, drafter)}: a K chosen round by round takes {ratio} of the time a token that K = {k} "
        f"takes, the best of the fixed ones, which its luck flatters: {told}"
    )


def sweep_plots(tables: Sequence[Table]) -> list[Plot]:
    """τ raw and speed-up over fixed K, a figure for each table."""
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
            for k, cell in _cells(table, drafter, figure).items():
                if k != AUTO:
                    yield CurvePoint(drafter, int(k), cell.value or 0.0, *ends(cell.interval))
