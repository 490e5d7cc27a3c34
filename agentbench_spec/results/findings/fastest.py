"""Which method is fastest, by how much, how sure that is, and whether it changes as the context grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentbench_spec.results import metrics
from agentbench_spec.results.costs import decode_parts, paired
from agentbench_spec.results.derived.by_context import octave_text, speedup_by_context
from agentbench_spec.results.differences import paired_difference
from agentbench_spec.results.findings.wording import Finding, apart, capital, caution, listed, of_context, over, times
from agentbench_spec.results.intervals import LEVEL, Interval
from agentbench_spec.results.metrics import BASELINE, PLAIN
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import DrafterSummary, Summary


def methods(summary: Summary) -> list[DrafterSummary]:
    """The drafters that are compared: plain decoding is none of them, however often it was run."""
    return [own for own in summary.drafters if own.drafter not in PLAIN]


def fastest(summary: Summary) -> DrafterSummary | None:
    """The method of the highest measured speed-up; None if no method was timed beside plain decoding."""
    timed = [own for own in methods(summary) if own.speedup.pooled is not None]
    return max(timed, key=lambda own: own.speedup.pooled or 0.0, default=None)


def speed_findings(rows: Sequence[TurnRow], summary: Summary, *, include_degenerate: bool) -> Iterator[Finding]:
    """The fastest method, the others, prefill counted, and the change with context."""
    best = fastest(summary)
    if best is None:
        yield Finding("Speed", _no_speed(rows, summary, include_degenerate=include_degenerate))
        return
    yield Finding("Speed", _fastest_text(rows, summary, best, include_degenerate=include_degenerate))
    others = sorted(methods(summary), key=lambda own: -(own.speedup.pooled or 0.0))
    others = [own for own in others if own is not best]
    if others:
        yield Finding("Others", _others_text(others))
    if best.speedup.e2e is not None:
        yield Finding("With prefill", _e2e_text(summary, best))
    yield Finding("Speed by context", _context_text(rows, best.drafter, include_degenerate=include_degenerate))


def _above_one(interval: Interval | None) -> bool:
    return interval is not None and interval.low > 1


def _below_one(interval: Interval | None) -> bool:
    return interval is not None and interval.high < 1


def _fastest_text(rows: Sequence[TurnRow], summary: Summary, best: DrafterSummary, *, include_degenerate: bool) -> str:
    name, interval, alone = best.drafter, best.speedup_interval, len(methods(summary)) == 1
    value = times(best.speedup.pooled or 0.0, interval)
    pairs = paired(rows, name, include_degenerate=include_degenerate)
    rollouts = len({metrics.rollout_of(row) for base, row in pairs if decode_parts(base, row)})
    where, careful = over(rollouts, best.speedup.pairs, interval), caution(rollouts, interval)
    if interval is None:
        highest = "reads" if alone else "measured fastest:"
        return f"{name} {highest} {value} the speed of plain decoding {where}.{careful}"
    if _below_one(interval):
        if alone:
            return f"{name} slows decoding down: {value} the speed of plain decoding {where}.{careful}"
        return f"No method is faster than plain decoding: the best, {name}, reads {value} {where}.{careful}"
    if not _above_one(interval):
        return _unsure_text(summary, name, f"{value} {where}", alone=alone) + careful
    found = {own.drafter: own.speedup.pooled for own in methods(summary) if own.speedup.pooled is not None}
    others = [other for other in found if other != name]
    rivals = _not_told_apart(rows, name, others, include_degenerate=include_degenerate)
    if alone:
        return f"{name} is faster than plain decoding: {value} {where}.{careful}"
    if not rivals:
        return f"{name} is fastest: {value} the speed of plain decoding {where}.{careful}"
    close = listed([f"{rival} ({times(found[rival])})" for rival in rivals])
    return (
        f"{name} measured fastest: {value} the speed of plain decoding {where}; the same turns do not tell it apart "
        f"from {close}.{careful}"
    )


def _unsure_text(summary: Summary, name: str, value: str, *, alone: bool) -> str:
    """The highest value has 1 in its interval; a lower one with a narrower interval may not."""
    sure = [own for own in methods(summary) if _above_one(own.speedup_interval)]
    if sure:
        shown = listed([f"{own.drafter} {times(own.speedup.pooled or 0.0, own.speedup_interval)}" for own in sure])
        return f"{name} measured highest, {value}, but its interval includes 1; shown to be faster: {shown}."
    if alone:
        return f"{name} is not shown to be faster than plain decoding: {value}; the interval includes 1."
    return (
        f"No method is shown to be faster than plain decoding: {name} measured highest, {value}, and its interval "
        "includes 1."
    )


def _not_told_apart(
    rows: Sequence[TurnRow], name: str, others: Sequence[str], *, include_degenerate: bool
) -> list[str]:
    """Methods that are not shown to take more seconds a token on the same turns than `name`.

    Tested one by one: that one method beats all others is said only if each test says so, and such a claim needs no
    correction for their number (an intersection-union test; Berger, 1982).
    """
    kept = metrics.counted(rows, include_degenerate=include_degenerate)
    tested = [paired_difference(kept, name, other, "s_per_token") for other in others]
    return [found.other for found in tested if found.p is None or found.p >= 1 - LEVEL or (found.ratio or 1) >= 1]


def _others_text(others: Sequence[DrafterSummary]) -> str:
    timed = [own for own in others if own.speedup.pooled is not None]
    told = [f"{own.drafter} {times(own.speedup.pooled or 0.0, own.speedup_interval)}" for own in timed]
    missing = [own.drafter for own in others if own.speedup.pooled is None]
    text = f"The others: {', '.join(told)}." if told else ""
    slower = [own.drafter for own in timed if _below_one(own.speedup_interval)]
    text += f" Slower than plain decoding: {listed(slower)}." if slower else ""
    return (text + (f" No speed-up is known of {listed(missing)}." if missing else "")).strip()


def _e2e_text(summary: Summary, best: DrafterSummary) -> str:
    counted = "With prefill and ingest counted"
    value = times(best.speedup.e2e or 0.0, best.speedup_e2e_interval)
    text = f"{counted}, {best.drafter} reads {value}"
    interval = best.speedup_e2e_interval
    if interval is not None and not _above_one(interval) and not _below_one(interval):
        text += ", and the interval includes 1"
    top = max(methods(summary), key=lambda own: own.speedup.e2e or 0.0)
    if top is not best:
        text += f"; highest by that count is {top.drafter}, {times(top.speedup.e2e or 0.0, top.speedup_e2e_interval)}"
    return text + "."


def _context_text(rows: Sequence[TurnRow], drafter: str, *, include_degenerate: bool) -> str:
    found = speedup_by_context(rows, include_degenerate=include_degenerate)
    trend = found.trend(drafter)
    if trend is not None:
        first, last = times(trend.first.value), times(trend.last.value)
        return f"{capital(of_context(trend))} {drafter} goes from {first} to {last} ({apart(trend)})."
    octaves = [octave_text(own.octave) for own in found.figures if own.drafter == drafter]
    where = f"all prompts have {octaves[0]} tokens" if octaves else "prompt lengths were not recorded"
    return f"Not known how {drafter}'s speed-up changes with context: {where}."


def _no_speed(rows: Sequence[TurnRow], summary: Summary, *, include_degenerate: bool) -> str:
    """Why there is no speed-up, and what is known of speed instead."""
    plain = [own for own in summary.drafters if own.drafter == BASELINE]
    if not methods(summary):
        only = plain[0] if plain else summary.drafters[0]
        took = f", {_ms(only)} a token {over(only.rollouts, only.turns, None)}" if only.decode_s_per_token else ""
        return f"Only plain decoding was run{took}: there is nothing to compare it with."
    why = (
        "no turn was timed by both plain decoding and a method"
        if plain
        else f"plain decoding (`{BASELINE}`) was not run"
    )
    timed = sorted(
        (own for own in methods(summary) if own.decode_s_per_token), key=lambda own: own.decode_s_per_token or 0.0
    )
    if not timed:
        return f"No speed-up is known: {why}."
    best, *rest = timed
    told = f"{best.drafter} takes {_ms(best)} a token {over(best.rollouts, best.turns, None)}"
    if not rest:
        return f"No speed-up is known: {why}. {told}."
    names = [own.drafter for own in rest]
    close = _not_told_apart(rows, best.drafter, names, include_degenerate=include_degenerate)
    apart_from = f", not told apart from {listed(close)}" if close else ", less than each of the others"
    return f"No speed-up is known: {why}. Among the methods {told}{apart_from}."


def _ms(own: DrafterSummary) -> str:
    return f"{1e3 * (own.decode_s_per_token or 0.0):.1f} ms"
