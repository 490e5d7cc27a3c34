"""What passes over many rollouts at once say, a sentence for the fewest and one for the most at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentbench_spec.report.plots import ThroughputPoint
from agentbench_spec.results.findings.wording import Finding, listed


def throughput_findings(points: Iterable[ThroughputPoint]) -> list[Finding]:
    """The highest throughput at the lowest and at the highest concurrency; nothing without two methods to compare."""
    points = list(points)
    ends = sorted({point.concurrency for point in points})
    found = []
    for concurrency in dict.fromkeys([*ends[:1], *ends[-1:]]):
        own = sorted((p for p in points if p.concurrency == concurrency), key=lambda p: -p.tokens_per_s)
        if len(own) > 1:
            found.append(Finding(f"{concurrency:,} at once", _text(own)))
    return found


def _text(own: Sequence[ThroughputPoint]) -> str:
    best, *others = own
    text = f"{best.drafter} has the highest throughput, {_value(best)}"
    close = [other.drafter for other in others if _overlap(best, other)]
    text += f"; its interval does not tell it apart from {listed(close)}" if close else ""
    rest = [other for other in others if other.drafter not in close]
    told = ", ".join(f"{other.drafter} {_value(other)}" for other in rest)
    return f"{text}." + (f" The others: {told}." if told else "")


def _value(point: ThroughputPoint) -> str:
    ends = "" if point.low is None or point.high is None else f" [{point.low:,.1f}, {point.high:,.1f}]"
    return f"{point.tokens_per_s:,.1f} tokens/s{ends}"


def _overlap(best: ThroughputPoint, other: ThroughputPoint) -> bool:
    """True also where an interval is not known: then nothing is told apart."""
    return best.low is None or other.high is None or best.low <= other.high
