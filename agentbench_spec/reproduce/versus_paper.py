"""A table beside the paper's, cell by cell: its value, ours, the verdict, and what of a difference can be told.

`reproduce` writes it as a page and as markdown. A reason is something that rows, settings and manifests say; what the
paper does not say stands apart, since nobody can tell what it does to a figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.report.cards import machine_text
from agentbench_spec.report.grids import Grid, Tone, word
from agentbench_spec.reproduce.plan import Plan
from agentbench_spec.reproduce.tables123 import Reproduced
from agentbench_spec.results.derived.table_text import value_text
from agentbench_spec.results.export import Sheet
from agentbench_spec.results.folder import read_manifest
from agentbench_spec.results.intervals import FEW_CLUSTERS
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.paper import DRAFTERS, METRICS, PAPER_GPU, TARGETS, paper_target
from agentbench_spec.results.tables import NAMES, Cell, Table

HEADINGS = ("figure", "column", "paper", "ours", "verdict", "why it may differ")
_OF_TIME = ("speedup", "tokens_per_s")
_MEANINGS = {
    "inside": "inside: the paper's value lies in our interval",
    "above": "above: our interval lies wholly above the paper's value",
    "below": "below: our interval lies wholly below the paper's value",
    "not comparable": "not comparable: the conditions are not the paper's, whose value stands here for orientation",
    "not judged": "not judged: ours has no interval, or the paper speaks of something else",
    "not published": "not published: this cell of the paper is not known to us",
    "not measured": "not measured: the reason stands beside it",
}
_TONES: dict[str, Tone] = {"inside": "good", "above": "warn", "below": "warn"}


@dataclass(frozen=True, slots=True)
class Versus:
    """One cell of the paper's table and ours."""

    method: str
    figure: str
    column: str
    paper: str
    ours: str
    verdict: str
    reasons: tuple[str, ...] = ()


def versus_paper(done: Reproduced) -> list[Versus]:
    """A line for each cell whose figure the paper gives for its methods, plain decoding's ratios to itself left out."""
    machines = _each(_machine, _manifests(done))
    told = _Told(done.plan, of_another_machine=not all(PAPER_GPU in machine for machine in machines))
    return [
        told.line(table, drafter, figure, column)
        for table in done.tables
        for drafter in table.drafters
        for figure in table.metrics
        for column in table.columns
        if drafter in DRAFTERS and figure in METRICS and (drafter != BASELINE or figure == "tokens_per_s")
    ]


@dataclass(frozen=True, slots=True)
class _Told:
    """What holds for all cells."""

    plan: Plan
    of_another_machine: bool

    def line(self, table: Table, drafter: str, figure: str, column: str) -> Versus:
        cell = table.cell(drafter, figure, column)
        verdict = _verdict(cell, figure, of_paper=self.plan.paper_target is not None)
        explained = cell.value is not None and verdict not in ("inside", "not published")
        workload = table.title.rpartition(": ")[2] if table.name == "table4" else ""
        return Versus(
            method=DRAFTERS[drafter],
            figure=NAMES.get(figure, figure),
            column=f"{workload}, {column}" if workload else column,
            paper="unknown" if cell.paper is None else cell.paper.text,
            ours="-" if cell.value is None else value_text(cell, figure),
            verdict=verdict,
            reasons=tuple(self._reasons(table, cell, figure, column) if explained else filter(None, [cell.missing])),
        )

    def _reasons(self, table: Table, cell: Cell, figure: str, column: str) -> Iterator[str]:
        if self.plan.paper_target is None:
            yield "the paper has not this target"
        elif self.plan.paper_target != paper_target(table.target):
            yield "another target"
        if "stand-in" in f"{table.title} {column}":
            yield "generated stand-in"
        if self.plan.changed:
            yield "other settings"
        if figure == "speedup":
            yield "decoding alone, as the paper's is taken to be"
        if figure == "draft_kv_share":
            yield "the paper's is of another drafter and engine"
        if figure in _OF_TIME and self.of_another_machine:
            yield "another machine"
        if cell.interval is not None and cell.interval.clusters < FEW_CLUSTERS:
            yield f"only {cell.interval.clusters} independent rollouts"
        if cell.left_out:
            yield f"{cell.left_out} turns left out"


def _verdict(cell: Cell, figure: str, *, of_paper: bool) -> str:
    if cell.value is None:
        return "not measured"
    if cell.paper is None:
        return "not published" if of_paper else "not comparable"
    if cell.verdict != "unknown":
        return cell.verdict
    return "not judged" if cell.interval is None or figure == "draft_kv_share" else "not comparable"


def conditions(done: Reproduced) -> list[tuple[str, str]]:
    """(What, how it was): first where all cells differ from the paper, then what the paper states and leaves open."""
    own, papers = done.plan.target, done.plan.paper_target
    manifests, said = _manifests(done), []
    if not papers or paper_target(own) != papers:
        said.append(("target", f"{own}; the paper's: {papers or ', '.join(TARGETS)}"))
    said += [("machine", f"{found}; the paper's is {PAPER_GPU}") for found in _each(_machine, manifests)]
    said += [("numbers", f"{found}; the paper does not say") for found in _each(_dtype, manifests)]
    said += [("drafters", f"{found}; the paper does not name its checkpoints") for found in _each(_drafters, manifests)]
    said += [("not the preset's", change) for change in done.plan.changed]
    return [*said, *((name, text) for name, _, text in (line.partition(": ") for line in done.plan.settings_lines))]


def _manifests(done: Reproduced) -> list[dict[str, Any]]:
    return [read_manifest(run) for run in done.runs]


def _each(fact: Callable[[Mapping[str, Any]], str], manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the manifests of a table say, each thing once."""
    return [found for found in dict.fromkeys(map(fact, manifests)) if found]


def _machine(manifest: Mapping[str, Any]) -> str:
    """Nothing of a table measured on servers: the machine in its manifest is the client's."""
    host = manifest.get("host")
    return machine_text(host) if host else ""


def _dtype(manifest: Mapping[str, Any]) -> str:
    return str((manifest.get("model") or {}).get("dtype") or "").removeprefix("torch.")


def _drafters(manifest: Mapping[str, Any]) -> str:
    own = (manifest.get("model") or {}).get("drafters") or {}
    return ", ".join(f"{name} {version}" for name, version in own.items() if name in DRAFTERS and name != BASELINE)


def versus_sheets(done: Reproduced) -> list[Sheet]:
    """The comparison, the conditions, and what is missing with the command that adds it, as tables of text."""
    found = versus_paper(done)
    lines = [
        (f"{own.method}, {own.figure}", own.column, own.paper, own.ours, own.verdict, "; ".join(own.reasons))
        for own in found
    ]
    counts = Counter(own.verdict for own in found)
    summary = f"{len(found)} cells: {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}"
    meanings = [_MEANINGS[verdict] for verdict in counts]
    title = f"{done.plan.title}: beside the paper's {done.plan.paper_target or 'values'}"
    facts = Sheet("Conditions", ("what", "how it was"), conditions(done))
    missing = [(what, why) for what, _, why in (line.partition(" is missing: ") for line in done.missing)]
    lacks = [Sheet("What is missing", ("what", "why, and the command that adds it"), missing)] if missing else []
    return [Sheet(title, HEADINGS, lines, [summary, *meanings]), facts, *lacks]


def versus_grids(sheets: Sequence[Sheet]) -> list[Grid]:
    """The same tables for the page; verdicts stand out."""
    return [
        Grid(
            own.title,
            tuple(own.headings),
            tuple(tuple(word(text, _TONES.get(text, "")) for text in line) for line in own.lines),
            tuple(own.notes),
        )
        for own in sheets
    ]
