"""Rows of throughput runs to the paper's table 4: tokens per second, speed-up at the same concurrency, mean τ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.differences import clusters_needed, too_few
from agentbench_spec.results.intervals import FEW_CLUSTERS, Interval, independent_ratio, ratio_interval
from agentbench_spec.results.metrics import BASELINE, Mean, pooled_and_macro
from agentbench_spec.results.paper import published, verdict
from agentbench_spec.results.tables import Cell, Table
from agentbench_spec.results.throughput_rows import ThroughputRow, by_pass, identical_to
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
    found, missing, cells = by_pass(rows), missing or {}, {}
    backend = rows[0].backend if rows else "engine"
    columns = [f"concurrency {c}" for c in concurrency]
    for c, column in zip(concurrency, columns, strict=True):
        for drafter in (BASELINE, *drafters):
            for figure in figures:
                judged = comparable and (same_hardware or figure in _OF_ANY_MACHINE[backend])
                paper = published("table4", paper_target or "", f"{workload} (concurrency {c})", drafter, figure)
                row, plain = found.get((drafter, c)), found.get((BASELINE, c))
                if row is None or row.status != "ok" or plain is None:
                    why = missing.get(drafter) or (row.error if row else "not run")
                    cells[drafter, figure, column] = Cell(paper=paper, missing=why)
                    continue
                mean, interval = _figure(row, plain, figure)
                cells[drafter, figure, column] = Cell(
                    value=mean.pooled,
                    macro=mean.macro,
                    interval=interval,
                    paper=paper,
                    verdict=verdict(interval, paper) if judged else "unknown",
                    turns=row.turns,
                    left_out=sum(row.left_out.values()),
                )
    below = [*notes, *_notes(rows), _WHAT[backend], *([] if comparable else [_UNLIKE])]
    return Table("table4", title, target, paper_target, columns, (BASELINE, *drafters), figures, cells, below)


_STRETCHES = "its interval is over 20 stretches of one pass, so it shows how steady the pass was, not how passes differ"
_WHAT = {
    "engine": f"tokens/s: emitted tokens per second of decoding, prefills left out; {_STRETCHES}",
    "sglang": "tokens/s: output tokens per second and server, from the first send to the last byte, prefills and "
    f"queues in it; {_STRETCHES}",
}
_OF_ANY_MACHINE = {"engine": ("speedup", "tau", "tau_raw"), "sglang": ("tau", "tau_raw")}
"""Figures judged against the paper on whatever hardware; through servers, speed-ups have prefills in them."""
_UNLIKE = "not the paper's conditions, so every verdict is unknown"


def refuse_mix(rows: Sequence[ThroughputRow]) -> None:
    """Raises MeasurementError naming the fields in which rows differ that must not."""
    served = any(row.backend == "sglang" for row in rows)  # each server has the k it was started with
    names = ("schema", "backend", "target", "thinking", "workload", *(() if served else ("k",)))
    mixed = {name: {getattr(row, name) for row in rows} for name in names}
    named = [f"{name}: {', '.join(sorted(map(str, values)))}" for name, values in mixed.items() if len(values) > 1]
    if named:
        raise MeasurementError(f"rows of different conditions cannot be compared ({'; '.join(named)})")
    if len(by_pass(rows)) < len(rows):
        raise MeasurementError("two passes of one drafter at one concurrency: give the rows of one run")


def _figure(row: ThroughputRow, plain: ThroughputRow, figure: str) -> tuple[Mean, Interval | None]:
    if figure == "tokens_per_s":
        return Mean(row.tokens_per_s, None), ratio_interval(_stretches(row))
    if figure == "speedup":
        own, base = row.tokens_per_s, plain.tokens_per_s
        pooled = own / base if own and base else None
        return Mean(pooled, None), None if row.drafter == BASELINE else speedup_interval(row, plain)
    if figure not in ("tau", "tau_raw"):
        raise MeasurementError(f"no figure {figure!r} of a pass; known: tokens_per_s, speedup, tau, tau_raw")
    parts = _tau_parts(row, raw=figure == "tau_raw")
    return pooled_and_macro(parts), ratio_interval(parts)


def _tau_parts(row: ThroughputRow, *, raw: bool) -> list[tuple[str, float, float]]:
    return [(name, float(own[1 if raw else 0]), float(own[2])) for name, own in row.rollouts.items()]


def _stretches(row: ThroughputRow) -> list[tuple[int, float, float]]:
    return [(i, float(tokens), seconds) for i, (tokens, seconds) in enumerate(row.windows)]


def speedup_interval(row: ThroughputRow, plain: ThroughputRow) -> Interval | None:
    """Of the ratio of two passes' speeds; their stretches have nothing to do with each other."""
    return independent_ratio(*(ratio_interval(_stretches(each)) for each in (row, plain)))


def _power(rows: Sequence[ThroughputRow]) -> Iterator[str]:
    """The rollouts that a 5 % difference of τ takes, for the pass that needs most; speed has no such number."""
    found = [clusters_needed(_tau_parts(row, raw=True)) for row in rows if row.drafter != BASELINE]
    most = max((need for need in found if need), key=lambda need: need.needed, default=None)
    if most is not None:
        yield (
            f"{most.words} would show a τ raw 5 % off a fixed value with 80 % power; there are {most.clusters}. "
            "A pass is one measurement of speed: how far passes differ was not measured"
        )
    elif found:
        yield too_few(max(len(row.rollouts) for row in rows if row.drafter != BASELINE))


def _notes(rows: Sequence[ThroughputRow]) -> Iterator[str]:
    plain = [row for row in rows if row.drafter == BASELINE]
    first = min(plain, key=lambda row: row.concurrency, default=None)
    if first is not None and len(first.rollouts) < FEW_CLUSTERS:
        yield f"only {len(first.rollouts)} rollouts: intervals of τ are wide, and hold if rollouts are alike"
    yield from _power(rows)
    for row in rows:
        where = f"{row.drafter} at concurrency {row.concurrency}"
        if row.error:
            yield f"{where}: failed: {row.error}"
        for reason, count in row.left_out.items():
            yield f"{where}: {count} turns left out: {reason}"
        if row.contended:
            yield f"{where}: {note(row.other_cores)}"
        if row.degenerate_turns:
            yield f"{where}: {row.degenerate_turns} of {row.turns} turns are repetition loops, and counted"
        if first is not None and row is not first and row.status == "ok":
            same, compared = identical_to(row, first.outputs)
            if same < compared:
                yield f"{where}: {same} of {compared} outputs are those of plain decoding at {first.concurrency}"
