"""Figures of a cell of the throughput table, from the passes of a drafter and of plain decoding at one concurrency.

A pass serves the same rollouts as its siblings, so passes of one drafter differ by what the machine does, and a run
over other rollouts would differ by what they accept. An interval of a speed holds both: the spread between passes,
which are paired with the plain pass of the same round, and the spread of accepted lengths between rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.intervals import Interval, combined, ratio_interval
from agentbench_spec.results.metrics import BASELINE, Mean, pooled_and_macro
from agentbench_spec.results.throughput.pass_rows import ThroughputRow

FIGURES = ("tokens_per_s", "speedup", "tau", "tau_raw", "busy_rows", "draft_kv_share")


def good(passes: Sequence[ThroughputRow]) -> list[ThroughputRow]:
    """The passes that came to their end."""
    return [row for row in passes if row.status == "ok"]


def pass_figure(
    passes: Sequence[ThroughputRow], plain: Sequence[ThroughputRow], figure: str
) -> tuple[Mean, Interval | None]:
    """A figure of the passes of one drafter, and its interval. plain: the baseline's passes, at the same concurrency.

    Raises MeasurementError for an unknown figure.
    """
    if figure == "tokens_per_s":
        return _speed(passes, [row.tokens_per_s for row in passes])
    if figure == "speedup":
        mean, interval = _speed(passes, _ratios(passes, plain))
        return mean, None if passes[0].drafter == BASELINE else interval
    if figure in ("tau", "tau_raw"):
        parts = tau_parts(passes[0], raw=figure == "tau_raw")
        return pooled_and_macro(parts), ratio_interval(parts)
    if figure in ("busy_rows", "draft_kv_share"):
        values = [value for row in passes if (value := getattr(row, figure)) is not None]
        return Mean(fmean(values) if values else None, None), None
    raise MeasurementError(f"no figure {figure!r} of a pass; known: {', '.join(FIGURES)}")


def tau_parts(row: ThroughputRow, *, raw: bool) -> list[tuple[str, float, float]]:
    """(rollout, tokens, rounds) of a pass; raw: unclipped tokens."""
    return [(name, float(own[1 if raw else 0]), float(own[2])) for name, own in row.rollouts.items()]


def _ratios(passes: Sequence[ThroughputRow], plain: Sequence[ThroughputRow]) -> list[float | None]:
    """Speed over the plain pass of the same round."""
    base = {row.repeat: row.tokens_per_s for row in plain if row.tokens_per_s}
    return [row.tokens_per_s / base[row.repeat] if row.tokens_per_s and row.repeat in base else None for row in passes]


def _speed(passes: Sequence[ThroughputRow], values: Sequence[float | None]) -> tuple[Mean, Interval | None]:
    logs = [math.log(value) for value in values if value]
    if not logs:
        return Mean(None, None), None
    value = math.exp(fmean(logs))
    accepted = ratio_interval(tau_parts(passes[0], raw=False))
    if len(logs) < 2 or accepted is None:
        return Mean(value, None), None
    between = stdev(logs) / math.sqrt(len(logs))
    errors = [(between, len(logs) - 1.0), (accepted.error, accepted.df)]
    return Mean(value, None), combined(value, errors, accepted.clusters)
