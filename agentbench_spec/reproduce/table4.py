"""Rows of throughput runs to the paper's table 4: tokens per second, speed-up at the same concurrency, mean τ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.differences import clusters_needed, too_few
from agentbench_spec.results.intervals import FEW_CLUSTERS
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.paper import published, verdict
from agentbench_spec.results.tables import Cell, Table
from agentbench_spec.results.throughput.pass_figures import good, pass_figure, tau_parts
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, by_cell, by_pass, identical_to
from agentbench_spec.runs.contention import note


def throughput_table(
    title: str,
    workload: str,
    rows: Sequence[ThroughputRow],
    drafters: Sequence[str],
    concurrency: Sequence[int],
    figures: Sequence[str],
    *,
    target: str,
    paper_target: str | None = None,
    comparable: bool = True,
    same_hardware: bool = False,
    missing: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Drafters by concurrency, for one workload (its name in the paper).

    same_hardware: True on the paper's GPU; else tokens per second get no verdict. Raises MeasurementError if rows of
    different conditions are given.
    """
    refuse_mix(rows)
    found, missing, cells = by_cell(rows), missing or {}, {}
    backend = "served" if any(row.backend != "engine" for row in rows) else "engine"
    columns = [f"concurrency {c}" for c in concurrency]
    for c, column in zip(concurrency, columns, strict=True):
        for drafter in (BASELINE, *drafters):
            for figure in figures:
                judged = comparable and (same_hardware or figure in _OF_ANY_MACHINE[backend])
                paper = published("table4", paper_target or "", f"{workload} (concurrency {c})", drafter, figure)
                own = found.get((drafter, c), [])
                passes, plain = good(own), good(found.get((BASELINE, c), []))
                if not passes or not plain:
                    why = missing.get(drafter) or next((row.error for row in own if row.error), "not run")
                    cells[drafter, figure, column] = Cell(paper=paper, missing=why)
                    continue
                mean, interval = pass_figure(passes, plain, figure)
                cells[drafter, figure, column] = Cell(
                    value=mean.pooled,
                    macro=mean.macro,
                    interval=interval,
                    paper=paper,
                    verdict=verdict(interval, paper) if judged else "unknown",
                    turns=passes[0].turns,
                    left_out=sum(passes[0].left_out.values()),
                )
    below = [*notes, *_notes(rows), _WHAT[backend], *([] if comparable else [_UNLIKE])]
    return Table("table4", title, target, paper_target, columns, (BASELINE, *drafters), figures, cells, below)


_WHAT = {
    "engine": "tokens/s: emitted tokens per second of the steps in which every row was busy, prefills left out. Once "
    "the queue is empty the batch drains; those steps say how many requests there were, and are not counted. Busy "
    "rows: mean over all steps, drain included. Intervals of speed hold what passes and what rollouts differ by",
    "served": "tokens/s: output tokens per second and server, from the first send to the last byte: prefills, queues "
    "and the drain of the last requests are in it. One pass a server, so speed has no interval",
}
_OF_ANY_MACHINE = {"engine": ("speedup", "tau", "tau_raw"), "served": ("tau", "tau_raw")}
"""Figures judged against the paper on whatever hardware; through servers, speed-ups have prefills in them."""
_UNLIKE = "not the paper's conditions, so every verdict is unknown"


def refuse_mix(rows: Sequence[ThroughputRow]) -> None:
    """Raises MeasurementError naming the fields in which rows differ that must not."""
    served = any(row.backend != "engine" for row in rows)  # each server has the k it was started with
    names = ("schema", "backend", "target", "thinking", "workload", "graphs", *(() if served else ("k",)))
    mixed = {name: {getattr(row, name) for row in rows} for name in names}
    named = [f"{name}: {', '.join(sorted(map(str, values)))}" for name, values in mixed.items() if len(values) > 1]
    if named:
        raise MeasurementError(f"rows of different conditions cannot be compared ({'; '.join(named)})")
    if len(by_pass(rows)) < len(rows):
        raise MeasurementError("one pass stands there twice: give the rows of one run")


def _power(rows: Sequence[ThroughputRow]) -> Iterator[str]:
    """The rollouts that a 5 % difference of τ takes, for the pass that needs most; speed has no such number."""
    found = [clusters_needed(tau_parts(row, raw=True)) for row in rows if row.drafter != BASELINE]
    most = max((need for need in found if need), key=lambda need: need.needed, default=None)
    if most is not None:
        yield (f"{most.words} would show a τ raw 5 % off a fixed value with 80 % power; there are {most.clusters}")
    elif found:
        yield too_few(max(len(row.rollouts) for row in rows if row.drafter != BASELINE))


def _spread(rows: Sequence[ThroughputRow]) -> Iterator[str]:
    """How far passes of one cell lie apart, where that is much, and which have no full step at all."""
    for (drafter, concurrency), passes in by_cell(rows).items():
        speeds = [row.tokens_per_s for row in good(passes) if row.tokens_per_s]
        if passes and passes[0].backend == "engine" and good(passes) and not speeds:
            yield f"{drafter} at concurrency {concurrency}: its rows were never all busy: serve more requests"
        if speeds and max(speeds) > 1.1 * min(speeds):
            yield (
                f"{drafter} at concurrency {concurrency}: passes gave {min(speeds):.1f} to {max(speeds):.1f} tokens/s"
            )


def _notes(rows: Sequence[ThroughputRow]) -> Iterator[str]:
    plain = [row for row in rows if row.drafter == BASELINE]
    first = min(plain, key=lambda row: row.concurrency, default=None)
    if first is not None and len(first.rollouts) < FEW_CLUSTERS:
        yield f"only {len(first.rollouts)} rollouts: intervals of τ are wide, and hold if rollouts are alike"
    yield from _power(rows)
    yield from _spread(rows)
    for row in rows:
        where = f"{row.drafter} at concurrency {row.concurrency}{f', pass {row.repeat + 1}' if row.repeat else ''}"
        if row.error:
            yield f"{where}: failed: {row.error}"
        for reason, count in row.left_out.items() if not row.repeat else ():
            yield f"{where}: {count} turns left out: {reason}"
        if row.contended:
            yield f"{where}: {note(row.other_cores)}"
        if row.degenerate_turns and not row.repeat:
            yield f"{where}: {row.degenerate_turns} of {row.turns} turns are repetition loops, and counted"
        if first is not None and row is not first and row.status == "ok" and not row.repeat:
            same, compared = identical_to(row, first.outputs)
            if same < compared:
                yield f"{where}: {same} of {compared} outputs are those of plain decoding at {first.concurrency}"
