"""What findings are made of: a sentence with its topic, and the words that all of them use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentbench_spec.results.derived.by_context import Trend, octave_text
from agentbench_spec.results.intervals import FEW_CLUSTERS, Interval, spread_text


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the rows say, for readers who read nothing else."""

    topic: str
    """A word or two that say what it is about."""
    text: str
    """A sentence, or a few; every number in it follows from rows."""


def times(value: float, interval: Interval | None = None) -> str:
    """ "1.57x [1.31, 1.93]"."""
    return f"{value:.2f}x{spread_text(interval)}"


def percent(value: float, interval: Interval | None = None) -> str:
    """ "1.4 % [1.2, 1.6]"; a share too small for one digit keeps two that say something."""
    digits = 1 if 100 * value >= 0.95 or not value else 2
    ends = None if interval is None else f" [{100 * interval.low:.{digits}f}, {100 * interval.high:.{digits}f}]"
    return f"{100 * value:.{digits}f} %{ends or ''}"


def many(number: int, noun: str) -> str:
    """ "1 turn", "2 turns", "2 repetition loops"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else ""


def capital(text: str) -> str:
    """The text as a sentence begins."""
    return text[:1].upper() + text[1:]


def over(rollouts: int, turns: int, interval: Interval | None) -> str:
    """ "over 6 rollouts (34 turns)"; says where rollouts are not independent of each other."""
    independent = f", {interval.clusters} of them independent" if interval and interval.clusters < rollouts else ""
    return f"over {many(rollouts, 'rollout')}{independent} ({many(turns, 'turn')})"


def caution(rollouts: int, interval: Interval | None) -> str:
    """What to add to a value with this interval: nothing, that it rests on few rollouts, or that there is none."""
    if interval is None:
        why = "one rollout has no interval" if rollouts == 1 else "no interval can be given"
        return f" {capital(why)}, so how sure this is is not known."
    if interval.clusters < FEW_CLUSTERS:
        return f" Only {interval.clusters} independent rollouts: the interval holds only if rollouts are alike."
    return ""


def of_context(trend: Trend) -> str:
    """ "from 1K-2K to 8K-16K tokens of context"."""
    return f"from {octave_text(trend.first.octave)} to {octave_text(trend.last.octave)} tokens of context"


def apart(trend: Trend) -> str:
    """How sure a change between two stretches of context is."""
    if trend.interval is None:
        return "not tested, too few rollouts in one of them"
    few = f", {trend.interval.clusters} rollouts" if trend.interval.clusters < FEW_CLUSTERS else ""
    ratio = f"ratio {trend.ratio:.2f}{spread_text(trend.interval)}{few}"
    return ratio if trend.told_apart else f"not told apart, {ratio}"


def bytes_text(count_bytes: float) -> str:
    """Bytes in the largest binary unit that leaves a number of 1 or more."""
    value, units = float(count_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:,.0f} B" if units[0] == "B" else f"{value:,.1f} {units[0]}"
