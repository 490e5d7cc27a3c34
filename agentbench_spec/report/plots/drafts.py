"""What a drafter keeps and how its guesses fare: bytes against context, acceptance by position, accepted lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Plot, label, panels
from agentbench_spec.report.plots.legends import legend_above
from agentbench_spec.report.plots.marks import Cell, line, mark
from agentbench_spec.report.plots.palette import INK, styles
from agentbench_spec.results import metrics
from agentbench_spec.results.derived.states import StateGrowth, state_growths
from agentbench_spec.results.findings.wording import bytes_text
from agentbench_spec.results.metrics import PLAIN
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FAR_APART = 50
"""Ratio of drafters' states above which bytes are drawn on a logarithmic axis."""

_KIB = 1024.0


def _drafting(rows: Iterable[TurnRow]) -> dict[str, list[TurnRow]]:
    """Counted rows of each drafter but plain decoding. Raises MeasurementError if conditions differ."""
    rows = list(rows)
    metrics.one_condition(rows)
    return {name: own for name, own in metrics.by_drafter(metrics.counted(rows)).items() if name not in PLAIN}


def state_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Drafter state at the end of a turn against text length; None if no drafter reported its state."""
    growths = state_growths(rows)
    if not growths:
        return None
    data = [(own.drafter, *point) for own in growths for point in _some(own.points)]
    return Plot(
        name="draft-bytes",
        title="Drafter state by context",
        description=(
            "Bytes that grow with the text, against the text that went through the target, at the ends of turns: "
            + "; ".join(map(_growth_words, growths))
            + "."
        ),
        columns=("drafter", "text, tokens", "state, bytes"),
        data=tuple(data),
        draw=partial(_draw_states, growths),
        keyed=True,
    )


_MOST_POINTS = 24
"""Turns drawn of each drafter, spread evenly from the shortest text to the longest."""


def _some(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    most, last = min(_MOST_POINTS, len(points)), len(points) - 1
    return [points[round(i * last / max(most - 1, 1))] for i in range(most)]


def _growth_words(own: StateGrowth) -> str:
    slope = own.bytes_per_token
    more = f" ({slope:,.0f} bytes a token)" if slope is not None and not own.constant else ""
    return f"{own.drafter} {own.points[0][1]:,} at {own.shortest:,} tokens, {own.last_bytes:,} at {own.longest:,}{more}"


def _draw_states(growths: Sequence[StateGrowth]) -> Figure:
    figure, (axes,) = panels()
    looks, row = styles(own.drafter for own in growths), 0
    for own in growths:
        look, points = looks[own.drafter], _some(own.points)
        line(axes.plot(*zip(*points, strict=True), color=look.colour, linewidth=0.9, alpha=0.6), row)
        axes.plot([], [], look.marker, color=look.colour, linestyle=look.dash, label=label(own.drafter))
        for x, y in points:
            mark(axes.plot(x, y, look.marker, color=look.colour, markersize=4), row)
            row += 1
    _size_axis(axes, [max(size for _, size in own.points) for own in growths])
    axes.set_xlabel("text at the end of the turn, tokens")
    axes.set_ylabel("drafter state")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    legend_above(axes)
    return figure


def _size_axis(axes: Axes, largest: Sequence[int]) -> None:
    """Sizes from zero on, on a logarithmic axis where the largest would flatten another to nothing."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    most = max(largest)
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value).replace(".0 ", " "))
    if most > _FAR_APART * min(filter(None, largest), default=most):
        axes.set_yscale("symlog", linthresh=_KIB)
        axes.set_yticks([0.0, *(_KIB * 16**i for i in range(8) if _KIB * 16**i <= most)])
        axes.set_ylim(-0.3 * _KIB, 2 * most)
        return
    if not most:
        axes.set_yticks([0.0])
        axes.set_ylim(-0.5, 1)
        return
    unit = _KIB ** int(math.log(most, _KIB))
    axes.yaxis.set_major_locator(FixedLocator([unit * tick for tick in MaxNLocator(6).tick_values(0, most / unit)]))
    axes.set_ylim(-0.03 * most, 1.08 * most)


def position_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Acceptance of draft position 1, 2, ..., unconditional and given that the one before was accepted."""
    tables = {name: _positions(own) for name, own in _drafting(rows).items()}
    tables = {name: table for name, table in tables.items() if table}
    if not tables:
        return None
    return Plot(
        name="acceptance-position",
        title="Acceptance by draft position",
        description=(
            "Share of proposed drafts that were accepted: "
            + "; ".join(_position_words(name, table) for name, table in tables.items())
            + ". Below: the same given that the position before was accepted, and the rounds that proposed it."
        ),
        columns=("drafter", "position", "accepted / proposed", "given the one before", "rounds"),
        data=tuple((name, i, *own) for name, table in tables.items() for i, own in enumerate(table, 1)),
        draw=partial(_draw_positions, tables),
        keyed=True,
    )


_Position = tuple[float, float | None, int]
"""Accepted over proposed, the same given the position before, and the rounds that proposed it."""


def _positions(rows: Sequence[TurnRow]) -> list[_Position]:
    proposed = [count for row in rows for _, count in metrics.positions(row)]
    table = metrics.acceptance_by_position(rows)
    return [(*shares, sum(count >= i for count in proposed)) for i, shares in enumerate(table, 1)]


def _draw_positions(tables: dict[str, list[_Position]]) -> Figure:
    figure, axes = panels((1, 1, 0.7), height_in=5.2)
    looks, first = styles(tables), 0
    for drafter, table in tables.items():
        look = looks[drafter]
        for panel, part, scale in zip(axes, range(3), (100, 100, 1), strict=True):
            known = [(i, scale * value) for i, own in enumerate(table) if (value := own[part]) is not None]
            line(panel.plot([i + 1 for i, _ in known], [y for _, y in known], color=look.colour, linewidth=1.2), first)
            for i, y in known:
                mark(panel.plot(i + 1, y, look.marker, color=look.colour, markersize=5), first + i)
        axes[0].plot([], [], look.marker, color=look.colour, linestyle=look.dash, label=label(drafter))
        first += len(table)
    for panel, name in zip(axes, ("accepted, %\nof proposed", "given the one\nbefore, %", "rounds"), strict=True):
        panel.set_ylabel(name)
        panel.set_ylim(bottom=0)
    axes[2].yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes[2].locator_params(axis="y", nbins=3, integer=True)
    axes[2].locator_params(axis="x", integer=True)
    axes[2].set_xlabel("draft position")
    legend_above(axes[0])
    return figure


def _position_words(drafter: str, table: Sequence[_Position]) -> str:
    return f"{drafter} {100 * table[0][0]:.0f} % at 1, {100 * table[-1][0]:.0f} % at {len(table)}"


def histogram_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Share of rounds by accepted drafts, one panel a drafter; None if no round was recorded."""
    counts = {name: found for name, own in _drafting(rows).items() if (found := metrics.accepted_histogram(own))}
    if not counts:
        return None
    return Plot(
        name="accepted-lengths",
        title="Accepted drafts per round",
        description=(
            "Share of rounds by the number of accepted drafts. Rounds in which none was accepted: "
            + "; ".join(f"{name} {100 * found[0] / sum(found):.0f} %" for name, found in counts.items())
            + "."
        ),
        columns=("drafter", "accepted drafts", "rounds", "share of rounds"),
        data=tuple(row for name, found in counts.items() for row in _histogram_rows(name, found)),
        draw=partial(_draw_histograms, counts),
    )


def _draw_histograms(counts: dict[str, list[int]]) -> Figure:
    figure, axes = panels([1] * len(counts), height_in=0.8 + 1.15 * len(counts))
    looks, row = styles(counts), 0
    for panel, (drafter, found) in zip(axes, counts.items(), strict=True):
        shares = [100 * count / sum(found) for count in found]
        for bar in panel.bar(range(len(shares)), shares, width=0.75, color=looks[drafter].colour):
            mark(bar, row)
            row += 1
        panel.set_title(f"{label(drafter)}, {sum(found):,} rounds", loc="left", fontsize=10, color=INK, pad=3)
        panel.set_ylim(0, 100)
        panel.set_yticks([0, 50, 100])
    axes[-1].set_xticks(range(max(map(len, counts.values()))))
    axes[-1].set_xlabel("drafts accepted in a round")
    figure.supylabel("rounds, %", fontsize=10, color=INK)
    return figure


def _histogram_rows(drafter: str, counts: Sequence[int]) -> list[tuple[Cell, ...]]:
    return [(drafter, length, count, count / sum(counts)) for length, count in enumerate(counts)]
