"""Values with their intervals, method beside method in each stretch of contexts: nothing hides behind another band."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import label
from agentbench_spec.report.plots.marks import line, mark
from agentbench_spec.report.plots.palette import GRID, MUTED, Style
from agentbench_spec.results.derived.by_context import octave_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INTERVALS = (
    "Upright lines are 95 % intervals clustered by rollout; one that leaves the panel ends in an arrow's head there."
)
"""What `draw_interval` draws, for the words of a figure."""
_FAR = 1.5
"""Intervals are drawn up to this many times the lowest and highest value; the numbers hold their ends."""
_SPREAD = 0.76
"""Part of a stretch that its methods take up."""
_HEAD_PT = 4.0
"""Size of the arrow's head on an interval that goes on beyond the panel."""
_ONE_LINE = 6
"""Stretches up to which a name stands on one line."""


@dataclass(frozen=True, slots=True)
class Whisker:
    """One value of one method in one octave of contexts."""

    drafter: str
    octave: int
    value: float
    low: float | None
    high: float | None
    """Ends of the 95 % interval; None where there is none."""
    row: int
    """Row of the plot's data that holds it."""

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of its interval; without one the value twice."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high


def draw_whiskers(
    axes: Axes, whiskers: Sequence[Whisker], looks: Mapping[str, Style], *, from_zero: bool = False
) -> None:
    """Draw them, the y axis cut to what is there; from_zero: keep zero in sight. Empty octaves take no room."""
    places = places_of(own.octave for own in whiskers)
    drafters = list(dict.fromkeys(own.drafter for own in whiskers))
    step = _SPREAD / len(drafters)
    low, high = _limits(whiskers, from_zero=from_zero)
    for j, drafter in enumerate(drafters):
        own, look = sorted((w for w in whiskers if w.drafter == drafter), key=lambda w: w.octave), looks[drafter]
        xs = [places[w.octave] + (j - (len(drafters) - 1) / 2) * step for w in own]
        line(axes.plot(xs, [w.value for w in own], color=look.colour, linewidth=0.9, alpha=0.5), own[0].row)
        for x, w in zip(xs, own, strict=True):
            draw_interval(axes, x, w.ends, (low, high), w.row, look.colour)
            mark(axes.plot(x, w.value, look.marker, color=look.colour), w.row)
        axes.plot([], [], look.marker, color=look.colour, linestyle=look.dash, label=label(drafter))
    room = 0.05 * (high - low)
    axes.set_ylim(low - room, high + room)
    separate(axes, len(places))


def draw_interval(
    axes: Axes,
    x: float,
    ends: tuple[float, float],
    limits: tuple[float, float],
    row: int,
    colour: str,
    *,
    linewidth: float = 1.4,
    alpha: float = 1.0,
) -> None:
    """An upright line from end to end; where an end lies beyond the limits it is cut there, under an arrow's head."""
    low, high = (min(max(end, limits[0]), limits[1]) for end in ends)
    mark(axes.vlines(x, low, high, color=colour, linewidth=linewidth, alpha=alpha), row)
    for head, at, beyond in (("v", low, ends[0] < low), ("^", high, ends[1] > high)):
        if beyond:
            line(axes.plot(x, at, head, color=colour, markersize=_HEAD_PT, alpha=alpha, clip_on=False), row)


def places_of(octaves: Iterable[int]) -> dict[int, int]:
    """Where each octave that has a value stands on the axis."""
    return {octave: place for place, octave in enumerate(sorted(set(octaves)))}


def _limits(whiskers: Sequence[Whisker], *, from_zero: bool) -> tuple[float, float]:
    low, high = near_values([own.value for own in whiskers], [end for own in whiskers for end in own.ends])
    room = 0.0 if high > low else 0.1 * high or 1.0
    return 0.0 if from_zero else low - room, high + room


def near_values(values: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """What of an axis is drawn: an interval of two rollouts would leave no room for the values."""
    return max(min(ends), min(values) / _FAR), min(max(ends), max(values) * _FAR)


def separate(axes: Axes, stretches: int) -> None:
    """Lines between the stretches instead of through their middles."""
    axes.set_xlim(-0.5, stretches - 0.5)
    axes.grid(visible=False, axis="x")
    for edge in range(1, stretches):
        axes.axvline(edge - 0.5, color=GRID, linewidth=0.7, zorder=0)


def name_octaves(axes: Axes, octaves: Sequence[int]) -> None:
    """Name the stretches below the axis: 1K-2K, on two lines where there are many."""
    names = [octave_text(octave) for octave in octaves]
    names = names if len(names) <= _ONE_LINE else [name.replace("-", "-\n") for name in names]
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("prompt length, tokens")


def draw_counts(axes: Axes, places: Sequence[int], rollouts: Sequence[tuple[int, int]]) -> None:
    """Rollouts behind each stretch: one that rests on few says little. rollouts: their number, and the row of it."""
    for place, (count, row) in zip(places, rollouts, strict=True):
        mark(axes.bar(place, count, width=0.9, color=MUTED), row)
    axes.set_ylim(0, max(count for count, _ in rollouts) * 1.25)
    axes.locator_params(axis="y", nbins=2, integer=True)
