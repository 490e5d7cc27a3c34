"""The tables of a report: cells with a text to read and a value to sort by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentbench_spec.report.plots import Plot
from agentbench_spec.report.plots.marks import cell_text
from agentbench_spec.results.derived.policy import Choice, choices_of, one_but_for_k, policy_sheet
from agentbench_spec.results.findings.wording import bytes_text
from agentbench_spec.results.intervals import Interval, spread_text
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import DrafterSummary, Summary, turns_cell

NOTHING = "–"
"""Printed where nothing was measured, or where the figure does not apply."""

MOST_TURNS = 200
"""Turns listed one by one; more are only counted."""

Tone = Literal["", "good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One value as it is printed and as it is sorted."""

    text: str
    sort: float | str | None = None
    """None sorts last."""
    tone: Tone = ""

    @property
    def numeric(self) -> bool:
        """True for a number, and for what stands where one is missing; both are set flush right."""
        return not isinstance(self.sort, str)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of the report; the first cell of each row names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = field(default=())


def word(value: object, tone: Tone = "") -> Cell:
    """A text; an empty one or None reads as nothing."""
    return Cell(NOTHING if value in (None, "") else str(value), None if value is None else str(value), tone)


def number(value: float | None, digits: int = 2, unit: str = "", tone: Tone = "") -> Cell:
    """A number with its unit, or nothing."""
    return Cell(NOTHING) if value is None else Cell(f"{value:,.{digits}f}{unit}", value, tone)


def with_interval(value: float | None, interval: Interval | None) -> Cell:
    """A number and its 95 % interval."""
    return number(value) if value is None else Cell(f"{value:.2f}{spread_text(interval)}", value)


def share(value: float | None, digits: int = 1) -> Cell:
    """A share in per cent."""
    return Cell(NOTHING) if value is None else Cell(f"{100 * value:.{digits}f} %", value)


def size(count_bytes: float | None) -> Cell:
    """Bytes in the largest binary unit that leaves a number of 1 or more."""
    if count_bytes is None:
        return Cell(NOTHING)
    return Cell(bytes_text(count_bytes), float(count_bytes))


def summary_grid(summary: Summary) -> Grid:
    """One line a drafter: the figures of the run."""
    columns = (
        "drafter",
        "τ [95\u00a0%]",
        "τ, mean of rollouts",
        "τ raw",
        "speed-up [95\u00a0%]",
        "speed-up with prefill",
        "draft share",
        "draft-KV share",
        "state, largest",
        "state per token",
        "turns",
    )
    rows = tuple(_summary_row(own) for own in summary.drafters)
    meaning = (
        "τ: tokens per round after the prefill token, clipped at stop tokens and the cap; raw: last round unclipped. "
        "Speed-up: seconds per token of plain decoding over the drafter's, on the same turns. "
        f"{NOTHING}: not measured, or does not apply."
    )
    return Grid("Figures by drafter", columns, rows, (meaning,))


def _summary_row(own: DrafterSummary) -> tuple[Cell, ...]:
    return (
        word(own.drafter),
        with_interval(own.tau.pooled, own.tau_interval),
        number(own.tau.macro),
        number(own.tau_raw.pooled),
        with_interval(own.speedup.pooled, own.speedup_interval),
        number(own.speedup.e2e),
        share(own.draft_share),
        share(own.draft_kv_share),
        size(own.state_bytes_max),
        size(own.state_bytes_per_token),
        Cell(turns_cell(own), own.turns),
    )


def lossless_grid(summary: Summary) -> Grid:
    """How the output of every drafter compares with plain decoding."""
    rows = tuple(
        (
            word(own.drafter),
            number(own.losslessness.compared, 0),
            number(own.losslessness.identical, 0),
            number(own.losslessness.ties, 0, tone="warn" if own.losslessness.ties else ""),
            number(own.losslessness.errors, 0, tone="bad" if own.losslessness.errors else ""),
        )
        for own in summary.drafters
    )
    meaning = (
        "Turns whose output was compared, loops included. Tie: the output parts where the target's two top logits lie "
        "within the tolerance of its dtype. Error: it parts anywhere else; one error voids the run."
    )
    return Grid(
        "Outputs compared with plain decoding", ("drafter", "compared", "identical", "ties", "errors"), rows, (meaning,)
    )


def calls_grid(summary: Summary, *, live: bool = False) -> Grid | None:
    """Tool calls in the outputs, by drafter; None if not one was judged. live: held against plain decoding's."""
    judged = [(own.drafter, own.calls) for own in summary.drafters if own.calls is not None]
    if not judged:
        return None
    against = "plain decoding" if live else "the record"
    rows = tuple(
        (
            word(drafter),
            number(calls.call_valid[1], 0),
            *(of_judged(part) for part in (calls.call_valid, calls.call_known, calls.call_args_valid, calls.call_same)),
        )
        for drafter, calls in judged
    )
    meaning = (
        "Turns with tools, loops included. Readable: every call that the output means to make can be parsed. Known: it "
        "names a tool in force. Arguments fit: they are what the tool's schema asks for. Same: the calls are those of "
        f"{against}, names and arguments in order, over the turns in which either makes one."
    )
    columns = ("drafter", "turns that call", "readable", "known", "arguments fit", f"same as {against}")
    return Grid("Tool calls in the outputs", columns, rows, (meaning,))


def of_judged(part: tuple[int, int]) -> Cell:
    """ "12 of 36 (33 %)", or nothing."""
    holds, judged = part
    return Cell(f"{holds} of {judged} ({100 * holds / judged:.0f} %)", holds / judged) if judged else Cell(NOTHING)


def divergence_grid(rows: Iterable[TurnRow]) -> Grid | None:
    """Every turn whose output parts from the baseline's; None if all are identical."""
    apart = [row for row in rows if row.identical is False]
    if not apart:
        return None
    listed = tuple(
        (
            word(row.rollout),
            number(row.turn, 0),
            word(row.drafter),
            word(row.divergence, "bad" if row.divergence == "error" else "warn"),
            number(row.divergence_at, 0),
            Cell(NOTHING)
            if row.divergence_margin is None
            else Cell(f"{row.divergence_margin:.2g}", row.divergence_margin),
        )
        for row in apart[:MOST_TURNS]
    )
    columns = ("rollout", "turn, from 0", "drafter", "kind", "output position", "logit gap")
    notes = () if len(apart) <= MOST_TURNS else (f"The first {MOST_TURNS} of {len(apart)} are listed.",)
    return Grid("Turns that part from plain decoding", columns, listed, notes)


def plot_grid(plot: Plot) -> Grid:
    """The numbers a figure was drawn from."""
    rows = tuple(tuple(map(_plain, row)) for row in plot.data)
    return Grid(f"Data: {plot.title}", plot.columns, rows)


def _plain(value: str | int | float | None) -> Cell:
    if isinstance(value, float):
        return Cell(cell_text(value), value)
    return number(value, 0) if isinstance(value, int) else word(value)


def overview_grid(runs: Sequence[tuple[str, Mapping[str, Any], Summary]]) -> Grid:
    """One line a run and drafter, for a report over several runs; nothing is averaged over them."""
    rows = tuple(
        (
            word(name),
            word(settings.get("target", {}).get("source")),
            word(settings.get("workload", {}).get("name")),
            word(own.drafter),
            with_interval(own.tau.pooled, own.tau_interval),
            with_interval(own.speedup.pooled, own.speedup_interval),
            Cell(turns_cell(own), own.turns),
        )
        for name, settings, summary in runs
        for own in summary.drafters
    )
    columns = ("run", "target", "workload", "drafter", "τ [95\u00a0%]", "speed-up [95\u00a0%]", "turns")
    return Grid("All runs", columns, rows, ("Runs may differ in settings; compare them only where they agree.",))


def policy_grids(runs: Sequence[Sequence[TurnRow]]) -> list[Grid]:
    """The table of the best K, if the runs differ in k and in nothing else."""
    return policy_grid(choices_of(runs) if one_but_for_k(runs) else [])


def policy_grid(choices: Sequence[Choice], title: str = "How many tokens to draft") -> list[Grid]:
    """The choices as a table; none, if there is none."""
    if not choices:
        return []
    found = policy_sheet(choices, title)
    rows = tuple(
        (*map(word, line[:4]), Cell(line[4], own.best.speedup), *map(word, line[5:]))
        for line, own in zip(found.lines, choices, strict=True)
    )
    return [Grid(found.title, tuple(found.headings), rows, tuple(found.notes))]
