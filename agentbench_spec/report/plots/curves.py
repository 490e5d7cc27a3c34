"""Lines over something that was set: K, or steps of training. One panel a figure, one line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
class CurvePoint:
    """One mark."""

    series: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval; None where there is none."""


def curve_plot(
    name: str, title: str, description: str, x_label: str, figures: Mapping[str, Sequence[CurvePoint]]
) -> Plot | None:
    """A panel for each of `figures`, axis label -> points; None without points."""
    drawn = {y_label: sorted(points, key=lambda point: point.x) for y_label, points in figures.items() if points}
    if not drawn:
        return None
    return Plot(
        name=name,
        title=title,
        description=description,
        columns=("figure", "method", x_label, "value", "95 % low", "95 % high"),
        data=tuple((y, p.series, p.x, p.y, p.low, p.high) for y, points in drawn.items() for p in points),
        draw=partial(_draw, x_label, drawn),
        keyed=True,
    )


def _draw(x_label: str, drawn: Mapping[str, Sequence[CurvePoint]]) -> Figure:
    figure, axes = panels([1] * len(drawn), height_in=1.2 + 2.2 * len(drawn))
    looks = styles(point.series for points in drawn.values() for point in points)
    first = 0
    for panel, (y_label, points) in zip(axes, drawn.items(), strict=True):
        for name in dict.fromkeys(point.series for point in points):
            own, look = [(row, point) for row, point in enumerate(points, first) if point.series == name], looks[name]
            marker = look.marker if len(own) <= _MARKED else None
            xs, ys = [point.x for _, point in own], [point.y for _, point in own]
            line(panel.plot(xs, ys, color=look.colour, linestyle=look.dash), own[0][0])
            panel.plot([], [], color=look.colour, marker=marker, linestyle=look.dash, label=label(name))
            for row, point in own:
                mark(panel.plot(point.x, point.y, marker or ".", color=look.colour), row)
                if point.low is not None and point.high is not None:
                    mark(panel.vlines(point.x, point.low, point.high, color=look.colour, linewidth=1.2), row)
        first += len(points)
        panel.set_ylabel(y_label)
    axes[-1].locator_params(axis="x", integer=True)
    axes[-1].set_xlabel(x_label)
    legend_above(axes[0], columns=3)
    return figure


_MARKED = 20
"""Points of a line up to which each has its mark."""
