"""Rows to the paper's tables: our value with its interval, the paper's value where it is known, and a verdict.

A table is drafters by columns (a workload, or a concurrency). Rows that were measured under different conditions are
refused; rows that were left out are counted below the table, and so is what the intervals can and cannot show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results import metrics
from agentbench_spec.results.costs import draft_kv_parts, paired, speedup
from agentbench_spec.results.derived.k_arms import arm_of
from agentbench_spec.results.differences import (
    Difference,
    difference_line,
    paired_difference,
    power_lines,
    with_holm,
)
from agentbench_spec.results.intervals import (
    FEW_CLUSTERS,
    Interval,
    cluster_of,
    share_interval,
    speedup_intervals,
    tau_interval,
)
from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.machines.blocks import machine_lines
from agentbench_spec.results.metrics import BASELINE, Mean
from agentbench_spec.results.paper import Published, TableName, Verdict, published, verdict
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.verdict import not_finite

NAMES = {
    "speedup": "speed-up",
    "speedup_e2e": "speed-up end to end",
    "tau_raw": "τ raw",
    "tau": "τ clipped",
    "tokens_per_s": "tokens/s",
    "busy_rows": "busy rows",
    "draft_kv_share": "draft-KV share",
}
"""How figures are called on screen; raw and clipped τ are never just "τ"."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of one drafter in one column."""

    value: float | None = None
    """Pooled: sum over sum."""
    macro: float | None = None
    """Mean over rollouts."""
    interval: Interval | None = None
    """Of the pooled value."""
    macro_interval: Interval | None = None
    paper: Published | None = None
    verdict: Verdict = "unknown"
    turns: int = 0
    left_out: int = 0
    """Rows of the drafter in this column that are not in the figure."""
    missing: str | None = None
    """Why there is no value, such as "no checkpoint"."""


@dataclass(frozen=True, slots=True)
class Column:
    """What one column is made from."""

    title: str
    rows: Sequence[TurnRow]
    paper_workload: str | None = None
    """The workload's name in the paper's facts; None: the paper does not have it."""
    standin: bool = False
    """True if generated rollouts stand in for the workload: nothing is compared with the paper then."""
    missing: str | None = None
    """Why the column was not run."""
    notes: Sequence[str] = ()
    """What to say below the table of how it was measured."""


@dataclass(frozen=True, slots=True)
class Table:
    """A finished table: cells by (drafter, metric, column title), and the lines below it."""

    name: TableName
    title: str
    target: str
    paper_target: str | None
    """Target of the paper whose values stand beside ours; another target's get no verdict."""
    columns: Sequence[str]
    drafters: Sequence[str]
    metrics: Sequence[str]
    cells: Mapping[tuple[str, str, str], Cell]
    notes: Sequence[str] = ()
    differences: Sequence[tuple[str, Difference]] = field(default=())
    """(column, drafter against drafter on the same turns), corrected over the table."""

    def cell(self, drafter: str, metric: str, column: str) -> Cell:
        """The cell, empty where nothing was measured."""
        return self.cells.get((drafter, metric, column), Cell())


def replay_table(
    name: TableName,
    title: str,
    columns: Sequence[Column],
    drafters: Sequence[str],
    figures: Sequence[str],
    *,
    target: str,
    paper_target: str | None = None,
    comparable: bool = True,
    missing: Mapping[str, str] | None = None,
    k_varies: bool = False,
) -> Table:
    """A table over turns. missing: drafter -> why it was not run. k_varies: conditions are one within a column only.

    comparable: False if the settings are not the paper's, so that no verdict may be given. Raises MeasurementError if
    the rows were measured under different conditions, or one of them breaks an invariant.
    """
    for part in [[column] for column in columns] if k_varies else [columns]:
        refuse_mix(part)
    missing = missing or {}
    cells = {}
    for column in columns:
        for drafter in drafters:
            own = [row for row in column.rows if row.drafter == drafter]
            for figure in figures:
                paper = published(name, paper_target or "", column.paper_workload or "", drafter, figure)
                judged = comparable and not column.standin and figure != "draft_kv_share"
                why = column.missing or missing.get(drafter) or (None if own else "not run")
                found = Cell(paper=paper, missing=why) if why else _cell(column.rows, own, figure, paper, judged)
                cells[drafter, figure, column.title] = found
    differences = compared(columns, [d for d in drafters if d not in missing])
    notes = [*_notes(columns, differences), *_standin_note(columns), *_comparability(comparable, paper_target)]
    titles = [column.title for column in columns]
    return Table(name, title, target, paper_target, titles, drafters, figures, cells, notes, differences)


def refuse_mix(columns: Iterable[Column]) -> None:
    """Raises MeasurementError if the rows of a table, all columns together, cannot stand in one table."""
    rows = [row for column in columns for row in column.rows]
    for row in rows:
        check_row(row)
    metrics.one_condition(rows)
    asked = {row.k for row in rows if row.drafter != BASELINE and arm_of(row.drafter)[1] is None}
    if len(asked) > 1:
        raise MeasurementError(f"rows of different k cannot be compared (k: {', '.join(map(str, sorted(asked)))})")
    for column in columns:
        if len({row.labels.get("standin") for row in column.rows}) > 1:
            raise MeasurementError(f"{column.title}: rows of a stand-in and of the real workload cannot be compared")


def _cell(rows: Sequence[TurnRow], own: Sequence[TurnRow], figure: str, paper: Published | None, judged: bool) -> Cell:
    kept = metrics.counted(own)
    mean, intervals, turns = _figure(rows, own[0].drafter, kept, figure)
    return Cell(
        value=mean.pooled,
        macro=mean.macro,
        interval=intervals[0],
        macro_interval=intervals[1],
        paper=paper,
        verdict=verdict(intervals[0], paper) if judged else "unknown",
        turns=turns,
        left_out=len(own) - len(kept),
    )


def _figure(
    rows: Sequence[TurnRow], drafter: str, kept: Sequence[TurnRow], figure: str
) -> tuple[Mean, tuple[Interval | None, Interval | None], int]:
    """Both weightings, the interval of each, and the turns they are over."""
    if figure in ("speedup", "speedup_e2e"):
        return _speedup(rows, drafter, e2e=figure == "speedup_e2e")
    if figure == "draft_kv_share":
        return _draft_kv_share(kept, drafter)
    if figure not in ("tau", "tau_raw"):
        raise MeasurementError(f"no figure {figure!r} can be taken over turns; known: {', '.join(_OVER_TURNS)}")
    raw = figure == "tau_raw"
    mean = metrics.tau_raw(kept) if raw else metrics.tau(kept)
    intervals = tau_interval(kept, raw=raw), tau_interval(kept, raw=raw, macro=True)
    return mean, intervals, sum(bool(row.rounds) for row in kept)


_OVER_TURNS = ("speedup", "speedup_e2e", "tau", "tau_raw", "draft_kv_share")
_Figure = tuple[Mean, tuple[Interval | None, Interval | None], int]


def _speedup(rows: Sequence[TurnRow], drafter: str, *, e2e: bool) -> _Figure:
    pairs = paired(rows, drafter)
    found = speedup(pairs)
    mean = Mean(found.e2e, None) if e2e else Mean(found.pooled, found.macro)
    own = speedup_intervals([] if drafter == BASELINE else pairs)
    return mean, (own.e2e, None) if e2e else (own.pooled, own.macro), found.pairs


def _draft_kv_share(kept: Sequence[TurnRow], drafter: str) -> _Figure:
    """Plain decoding has no draft state, so no share of it."""
    timed = [(row, parts) for row in kept if drafter != BASELINE and (parts := draft_kv_parts(row))]
    mean = metrics.pooled_and_macro((metrics.rollout_of(row), *parts) for row, parts in timed)
    return mean, (share_interval(kept, draft_kv_parts) if drafter != BASELINE else None, None), len(timed)


def compared(columns: Sequence[Column], drafters: Sequence[str]) -> list[tuple[str, Difference]]:
    """The last of `drafters` against each other one, on the same turns, by raw τ and by time; Holm over the table."""
    own = [drafter for drafter in drafters if drafter != BASELINE]
    found = [
        (column.title, paired_difference(column.rows, own[-1], other, measure))
        for column in columns
        for other in own[:-1]
        for measure in ("tau_raw", "s_per_token")
    ]
    measured = [(title, each) for title, each in found if each.turns]
    corrected = with_holm([each for _, each in measured])
    return [(title, each) for (title, _), each in zip(measured, corrected, strict=True)]


def _notes(columns: Sequence[Column], differences: Sequence[tuple[str, Difference]]) -> Iterator[str]:
    for column in columns:
        if column.missing:
            yield f"{column.title}: not run: {column.missing}"
        yield from (f"{column.title}: {line}" for line in (*column.notes, *column_notes(column.rows)))
    yield from (f"{title}: {difference_line(found)}" for title, found in differences)


def column_notes(rows: Sequence[TurnRow]) -> Iterator[str]:
    """What to know of one column: turns left out, without a round, not lossless; thin intervals; power; warnings."""
    said: dict[str, list[str]] = {}
    for drafter, own in metrics.by_drafter(rows).items():
        for line in _drafter_notes(own):
            said.setdefault(line, []).append(drafter)
    yield from (f"{', '.join(names)}: {line}" for line, names in said.items())
    yield from machine_lines(rows)
    clusters = {cluster_of(row) for row in metrics.counted(rows)}
    if len(clusters) < 2:
        yield f"{len(clusters)} rollouts: no interval can be given"
    else:
        if len(clusters) < FEW_CLUSTERS:
            yield f"only {len(clusters)} independent rollouts: intervals are wide, and hold if rollouts are alike"
        yield from power_lines(rows)
    yield from (f"warning: {text}" for text in metrics.warnings(rows))


def _drafter_notes(own: Sequence[TurnRow]) -> Iterator[str]:
    for reason, count in metrics.left_out(own).items():
        yield f"{count} of {len(own)} turns left out: {reason}"
    if disturbed := sum(bool(row.disturbed) for row in metrics.counted(own)):
        yield f"clocks of {disturbed} turns left out: disturbed in every attempt"
    if empty := sum(row.rounds == 0 for row in metrics.counted(own)):
        yield f"{empty} turns ended on the prefill token, without a τ"
    if errors := metrics.losslessness(row for row in own if row.status == "ok").errors:
        yield f"NOT LOSSLESS: {errors} turns differ from the baseline beyond a near tie"
    if found := not_finite(own):
        yield f"VOID: {found}"


def _standin_note(columns: Sequence[Column]) -> Iterator[str]:
    if names := [column.title for column in columns if column.standin]:
        yield f"generated stand-ins, which say nothing about the workloads they are named after: {', '.join(names)}"


def _comparability(comparable: bool, paper_target: str | None) -> Iterator[str]:
    if not comparable:
        beside = f"; the paper's values are those of {paper_target}, for orientation" if paper_target else ""
        yield f"not the paper's conditions, so every verdict is unknown{beside}"
