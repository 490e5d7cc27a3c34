"""τ against context length and against turn, with intervals clustered by rollout and the turns behind each point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Cell, Plot, label, legend_above, panels
from agentbench_spec.report.plots.palette import MUTED, Style, styles
from agentbench_spec.results import metrics
from agentbench_spec.results.by_turn import tau_by_turn
from agentbench_spec.results.intervals import Interval, tau_interval
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FAR = 1.5
"""Bands are drawn up to this many times the lowest and highest τ; the numbers hold their ends."""
_MANY_POINTS = 24
"""Above this, points are drawn without markers."""


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


def context_bucket(row: TurnRow) -> int | None:
    """Octave of the prompt length: i stands for 2**i up to 2**(i+1) - 1 tokens; None where it was not recorded."""
    return row.context_tokens.bit_length() - 1 if row.context_tokens else None


def tau_points(
    rows: Iterable[TurnRow],
    bucket: Callable[[TurnRow], int | None],
    x: Callable[[TurnRow], float],
) -> list[TauPoint]:
    """Pooled τ of every drafter but the baseline in every bucket that has a round.

    Raises MeasurementError if the rows were measured under different conditions.
    """
    rows = list(rows)
    metrics.one_condition(rows)
    groups: dict[tuple[str, int], list[TurnRow]] = {}
    for row in metrics.counted(rows):
        if row.drafter != BASELINE and row.rounds and (found := bucket(row)) is not None:
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
    points = tau_points(rows, context_bucket, lambda row: float(row.context_tokens or 0))
    return _plot(
        points,
        name="tau-context",
        title="τ against context length",
        x_name="context, tokens (log scale)",
        bucket_name=lambda bucket: f"{2**bucket:,} to {2 ** (bucket + 1) - 1:,}",
        buckets="octaves of prompt length",
        log=True,
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
        log=False,
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
    log: bool,
) -> Plot | None:
    if not points:
        return None
    return Plot(
        name=name,
        title=title,
        description=_words(points, buckets),
        columns=("drafter", x_name.partition(" (")[0], "τ", "95 % low", "95 % high", "turns", "rollouts"),
        data=tuple(_row(point, bucket_name(point.bucket)) for point in points),
        draw=partial(_draw_points, points, x_name, log),
    )


def _draw_points(points: Sequence[TauPoint], x_name: str, log: bool) -> Figure:
    figure, (main, counts) = panels((4, 1), height_in=3.8)
    looks = styles(point.drafter for point in points)
    for drafter in dict.fromkeys(point.drafter for point in points):
        _draw_drafter(main, [point for point in points if point.drafter == drafter], looks[drafter])
    low, high = main.get_ylim()  # the band of two rollouts would leave no room for the lines
    main.set_ylim(max(low, min(p.tau for p in points) / _FAR), min(high, max(p.tau for p in points) * _FAR))
    _draw_counts(counts, points, log=log)
    main.set_ylabel("τ, tokens per round")
    counts.set_xlabel(x_name)
    legend_above(main)
    return figure


def _draw_drafter(axes: Axes, own: Sequence[TauPoint], look: Style) -> None:
    xs, ys = [point.x for point in own], [point.tau for point in own]
    marker = look.marker if len(own) <= _MANY_POINTS else ""
    axes.plot(xs, ys, color=look.colour, marker=marker, linestyle=look.dash, label=label(own[0].drafter))
    known = [(point.x, point.interval) for point in own if point.interval is not None]
    if len(known) > 1:
        low, high = [i.low for _, i in known], [i.high for _, i in known]
        axes.fill_between([x for x, _ in known], low, high, color=look.colour, alpha=0.15, linewidth=0)
    elif known:
        axes.vlines(known[0][0], known[0][1].low, known[0][1].high, color=look.colour, linewidth=1.2)


def _draw_counts(axes: Axes, points: Sequence[TauPoint], *, log: bool) -> None:
    """Rollouts behind each bucket: where the right end rests on few, it says little."""
    widest: dict[int, TauPoint] = {}
    for point in points:
        if point.bucket not in widest or point.rollouts > widest[point.bucket].rollouts:
            widest[point.bucket] = point
    heights = [point.rollouts for point in widest.values()]
    if log:
        starts = [2.0**bucket for bucket in widest]
        axes.bar(starts, heights, width=[0.96 * start for start in starts], align="edge", color=MUTED)
    else:
        axes.bar(list(widest), heights, width=0.7, color=MUTED)
    axes.set_ylabel("rollouts")
    axes.set_ylim(0, max(heights) * 1.25)
    axes.locator_params(axis="y", nbins=2, integer=True)
    if log:
        _log_axis(axes, [point.bucket for point in points])
    else:
        axes.locator_params(axis="x", integer=True, nbins=10)


def _log_axis(axes: Axes, buckets: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    edges = range(min(buckets), max(buckets) + 2)
    axes.set_xlim(2 ** edges[0], 2 ** edges[-1])
    axes.xaxis.set_major_locator(FixedLocator([2.0**edge for edge in edges]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tokens_text(value)))


def tokens_text(tokens: float) -> str:
    """A token count for an axis: 512, 1K, 32K, 1M, in powers of 1024 where it is one."""
    whole = round(tokens)
    for size, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if whole >= size and whole % size == 0:
            return f"{whole // size}{letter}"
    return f"{whole:,}"


def _row(point: TauPoint, bucket: str) -> tuple[Cell, ...]:
    low, high = (point.interval.low, point.interval.high) if point.interval else (None, None)
    return point.drafter, bucket, point.tau, low, high, point.turns, point.rollouts


def _words(points: Sequence[TauPoint], buckets: str) -> str:
    ends = []
    for drafter in dict.fromkeys(point.drafter for point in points):
        own = [point for point in points if point.drafter == drafter]
        ends.append(f"{drafter} from {own[0].tau:.2f} in the first to {own[-1].tau:.2f} in the last")
    return (
        f"Pooled τ over {buckets}: {'; '.join(ends)}. Bands are 95 % intervals clustered by rollout; "
        "the bars below count the rollouts behind each point."
    )
