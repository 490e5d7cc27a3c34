"""Tokens per second against the number of rollouts decoded side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Plot, label, panels
from agentbench_spec.report.plots.legends import legend_above
from agentbench_spec.report.plots.marks import line, mark
from agentbench_spec.report.plots.palette import styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ThroughputPoint:
    """Throughput of one drafter at one concurrency."""

    drafter: str
    concurrency: int
    """Rollouts decoded at once."""
    tokens_per_s: float
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval; None where there is none."""


def throughput_plot(points: Iterable[ThroughputPoint]) -> Plot | None:
    """Throughput of every drafter against concurrency, on a base-2 axis; None without points."""
    points = sorted(points, key=lambda point: point.concurrency)
    if not points:
        return None
    best = {point.drafter: point for point in sorted(points, key=lambda point: point.tokens_per_s)}
    return Plot(
        name="throughput",
        title="Throughput against concurrency",
        description="Highest throughput: "
        + "; ".join(f"{p.drafter} {p.tokens_per_s:,.1f} tokens/s at {p.concurrency}" for p in best.values())
        + "."
        + (
            " Upright lines are 95 % intervals over stretches of one pass."
            if any(p.low is not None for p in points)
            else ""
        ),
        columns=("drafter", "concurrency", "tokens/s", "95 % low", "95 % high"),
        data=tuple((p.drafter, p.concurrency, p.tokens_per_s, p.low, p.high) for p in points),
        draw=partial(_draw_throughput, points),
        keyed=True,
    )


def _draw_throughput(points: Sequence[ThroughputPoint]) -> Figure:
    figure, (axes,) = panels()
    looks = styles(point.drafter for point in points)
    for drafter in dict.fromkeys(point.drafter for point in points):
        own, look = [point for point in points if point.drafter == drafter], looks[drafter]
        xs, ys = [point.concurrency for point in own], [point.tokens_per_s for point in own]
        rows = [row for row, point in enumerate(points) if point.drafter == drafter]
        line(axes.plot(xs, ys, color=look.colour, linestyle=look.dash), rows[0])
        axes.plot([], [], color=look.colour, marker=look.marker, linestyle=look.dash, label=label(drafter))
        for row, point in zip(rows, own, strict=True):
            mark(axes.plot(point.concurrency, point.tokens_per_s, look.marker, color=look.colour), row)
            if point.low is not None and point.high is not None:
                mark(axes.vlines(point.concurrency, point.low, point.high, color=look.colour, linewidth=1.2), row)
    axes.set_xscale("log", base=2)
    ticks = sorted({point.concurrency for point in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rollouts at once (log scale)")
    axes.set_ylabel("output tokens per second")
    legend_above(axes)
    return figure
