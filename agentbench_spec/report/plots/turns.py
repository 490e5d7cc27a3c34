"""τ against context length and against turn, with intervals clustered by rollout and the turns behind each point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Plot, label, multiples, panels
from agentbench_spec.report.plots.legends import legend_above
from agentbench_spec.report.plots.marks import Cell, line, mark
from agentbench_spec.report.plots.palette import INK, Style, styles
from agentbench_spec.report.plots.whiskers import (
    INTERVALS,
    Whisker,
    draw_counts,
    draw_interval,
    draw_whiskers,
    name_octaves,
    near_values,
    separate,
)
from agentbench_spec.results import metrics
from agentbench_spec.results.by_turn import tau_by_turn
from agentbench_spec.results.derived.by_context import octave_of
from agentbench_spec.results.intervals import Interval, ends, tau_interval
from agentbench_spec.results.metrics import PLAIN
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MANY_POINTS = 24
"""Points of a panel above which they are drawn small."""


@dataclass(frozen=True, slots=True)
class TauPoint:
    """Pooled τ of one drafter over the turns of one bucket."""

    drafter: str
    bucket: int
    x: float
    """Where the point is drawn: the turn, or the median context of the bucket's turns."""
    turns: int
    rollouts: int
    tau: float
    interval: Interval | None


def tau_points(
    rows: Iterable[TurnRow],
    bucket: Callable[[TurnRow], int | None],
    x: Callable[[TurnRow], float],
) -> list[TauPoint]:
    """Pooled τ of every drafter but plain decoding in every bucket that has a round.

    Raises MeasurementError if the rows were measured under different conditions.
    """
    rows = list(rows)
    metrics.one_condition(rows)
    groups: dict[tuple[str, int], list[TurnRow]] = {}
    for row in metrics.counted(rows):
        if row.drafter not in PLAIN and row.rounds and (found := bucket(row)) is not None:
            groups.setdefault((row.drafter, found), []).append(row)
    return [
        _point(drafter, found, own, median(x(row) for row in own))
        for (drafter, found), own in sorted(groups.items(), key=lambda group: group[0][1])
    ]


def _point(drafter: str, bucket: int, own: Sequence[TurnRow], x: float) -> TauPoint:
    pooled = metrics.tau(own).pooled or 0.0
    rollouts = len({metrics.rollout_of(row) for row in own})
    return TauPoint(drafter, bucket, x, len(own), rollouts, pooled, tau_interval(own))


def tau_against_context(rows: Iterable[TurnRow]) -> Plot | None:
    """Pooled τ in every octave of prompt length; None if no drafter has a round."""
    points = tau_points(rows, octave_of, lambda row: float(row.context_tokens or 0))
    return _plot(
        points,
        name="tau-context",
        title="τ against context length",
        x_name="context, tokens",
        bucket_name=lambda bucket: f"{2**bucket:,} to {2 ** (bucket + 1) - 1:,}",
        buckets="octaves of prompt length",
        draw=_draw_contexts,
        keyed=True,
    )


def tau_against_turn(rows: Iterable[TurnRow]) -> Plot | None:
    """Pooled τ of every turn number, the first turn being 1; None if no drafter has a round."""
    rows = list(rows)
    points = tau_points(rows, lambda row: row.turn + 1, lambda row: float(row.turn + 1))
    plot = _plot(
        points,
        name="tau-turn",
        title="τ against turn",
        x_name="turn of the rollout",
        bucket_name=str,
        buckets="turns",
        draw=_draw_turns,
    )
    return None if plot is None else _with_matched(plot, points, rows)


def _with_matched(plot: Plot, points: Sequence[TauPoint], rows: Sequence[TurnRow]) -> Plot:
    """The numbers with a column more: τ as if all turns had outputs of the same lengths."""
    matched = {
        (drafter, found.turn + 1): found.tau_matched
        for drafter, own in metrics.by_drafter(rows).items()
        for found in tau_by_turn(own)
    }
    data = tuple((*row, matched[p.drafter, p.bucket]) for row, p in zip(plot.data, points, strict=True))
    return replace(plot, columns=(*plot.columns, "τ, length-matched"), data=data)


def _plot(
    points: Sequence[TauPoint],
    *,
    name: str,
    title: str,
    x_name: str,
    bucket_name: Callable[[int], str],
    buckets: str,
    draw: Callable[[Sequence[TauPoint]], Figure],
    keyed: bool = False,
) -> Plot | None:
    if not points:
        return None
    return Plot(
        name=name,
        title=title,
        description=_words(points, buckets),
        columns=("drafter", x_name, "τ", "95 % low", "95 % high", "turns", "rollouts"),
        data=tuple(_row(point, bucket_name(point.bucket)) for point in points),
        draw=partial(draw, points),
        keyed=keyed,
    )


def _draw_contexts(points: Sequence[TauPoint]) -> Figure:
    figure, (main, counts) = panels((4, 1), height_in=3.8)
    draw_whiskers(main, _whiskers(points), styles(own.drafter for own in points))
    rollouts = _rollouts(points)
    draw_counts(counts, range(len(rollouts)), list(rollouts.values()))
    counts.set_ylabel("rollouts")
    separate(counts, len(rollouts))
    main.set_ylabel("τ, tokens per round")
    name_octaves(counts, list(rollouts))
    legend_above(main)
    return figure


def _whiskers(points: Sequence[TauPoint]) -> list[Whisker]:
    return [Whisker(own.drafter, own.bucket, own.tau, *ends(own.interval), row) for row, own in enumerate(points)]


def _rollouts(points: Sequence[TauPoint]) -> dict[int, tuple[int, int]]:
    """Bucket, in order -> the most rollouts that a method has there, and the row of that method."""
    found: dict[int, tuple[int, int]] = {}
    for row, own in enumerate(points):
        if own.rollouts > found.get(own.bucket, (0, 0))[0]:
            found[own.bucket] = own.rollouts, row
    return dict(sorted(found.items()))


def _draw_turns(points: Sequence[TauPoint]) -> Figure:
    """A panel a method, and one for the rollouts behind each turn: no interval hides another's."""
    drafters = list(dict.fromkeys(own.drafter for own in points))
    figure, (*axes, counts) = multiples(len(drafters) + 1, same_y=False)
    looks = styles(drafters)
    limits = near_values([own.tau for own in points], [end for own in _whiskers(points) for end in own.ends])
    room = 0.06 * (limits[1] - limits[0]) or 0.1
    for panel, drafter in zip(axes, drafters, strict=True):
        own = [(row, point) for row, point in enumerate(points) if point.drafter == drafter]
        _draw_drafter(panel, own, looks[drafter], limits)
        panel.set_title(label(drafter), loc="left", fontsize=10, color=INK, pad=3)
        panel.set_ylim(limits[0] - room, limits[1] + room)
        if panel.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            panel.set_ylabel("τ")
    rollouts = _rollouts(points)
    draw_counts(counts, list(rollouts), list(rollouts.values()))
    counts.set_title("rollouts behind each turn", loc="left", fontsize=10, color=INK, pad=3)
    counts.locator_params(axis="x", integer=True, nbins=8)
    counts.set_xlim(min(rollouts) - 0.7, max(rollouts) + 0.7)
    figure.supxlabel("turn of the rollout", fontsize=10, color=INK)
    return figure


def _draw_drafter(axes: Axes, own: Sequence[tuple[int, TauPoint]], look: Style, limits: tuple[float, float]) -> None:
    xs, ys = [point.x for _, point in own], [point.tau for _, point in own]
    line(axes.plot(xs, ys, color=look.colour, linewidth=1.2), own[0][0])
    for row, point in own:
        if point.interval is not None:
            both = point.interval.low, point.interval.high
            draw_interval(axes, point.x, both, limits, row, look.colour, linewidth=1.2, alpha=0.6)
        size = 4.5 if len(own) <= _MANY_POINTS else 2.5
        mark(axes.plot(point.x, point.tau, look.marker, color=look.colour, markersize=size), row)


def _row(point: TauPoint, bucket: str) -> tuple[Cell, ...]:
    return point.drafter, bucket, point.tau, *ends(point.interval), point.turns, point.rollouts


def _words(points: Sequence[TauPoint], buckets: str) -> str:
    told = []
    for drafter in dict.fromkeys(point.drafter for point in points):
        own = [point for point in points if point.drafter == drafter]
        told.append(f"{drafter} from {own[0].tau:.2f} in the first to {own[-1].tau:.2f} in the last")
    return f"Pooled τ over {buckets}: {'; '.join(told)}. {INTERVALS} Bars count the rollouts behind each value."
