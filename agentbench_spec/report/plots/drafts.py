"""What a drafter keeps and how its guesses fare: bytes against context, acceptance by position, accepted lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Cell, Plot, label, legend_above, panels
from agentbench_spec.report.plots.palette import INK, styles
from agentbench_spec.report.plots.turns import tokens_text
from agentbench_spec.results import metrics
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FAR_APART = 50
"""Ratio of drafters' states above which bytes are drawn on a logarithmic axis."""

_KIB = 1024.0


def _drafting(rows: Iterable[TurnRow]) -> dict[str, list[TurnRow]]:
    """Counted rows of each drafter but the baseline. Raises MeasurementError if conditions differ."""
    rows = list(rows)
    metrics.one_condition(rows)
    return {name: own for name, own in metrics.by_drafter(metrics.counted(rows)).items() if name != BASELINE}


def state_sizes(rows: Iterable[TurnRow]) -> dict[str, list[tuple[int, int]]]:
    """For each drafter, (text tokens that went through the target, state bytes) at the end of every turn, ordered."""
    sizes = {}
    for drafter, own in _drafting(rows).items():
        points = sorted(
            (row.context_tokens + row.output_tokens - 1, row.draft_state_bytes)
            for row in own
            if row.context_tokens is not None and row.output_tokens and row.draft_state_bytes is not None
        )
        if points:
            sizes[drafter] = points
    return sizes


def state_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Drafter state at the end of a turn against text length; None if no drafter reported its state."""
    sizes = state_sizes(rows)
    if not sizes:
        return None
    return Plot(
        name="draft-bytes",
        title="Drafter state against text length",
        description=(
            "Bytes that grow with the text, one mark a turn: "
            + "; ".join(f"{drafter} at most {max(y for _, y in p):,} bytes" for drafter, p in sizes.items())
            + "."
        ),
        columns=("drafter", "turns", "shortest text, tokens", "its bytes", "longest text, tokens", "its bytes "),
        data=tuple((drafter, len(p), *p[0], *p[-1]) for drafter, p in sizes.items()),
        draw=partial(_draw_states, sizes),
    )


def _draw_states(sizes: dict[str, list[tuple[int, int]]]) -> Figure:
    figure, (axes,) = panels()
    looks = styles(sizes)
    for drafter, points in sizes.items():
        xs, ys = [x for x, _ in points], [y / _KIB for _, y in points]
        axes.plot(
            xs, ys, look.marker if (look := looks[drafter]) else "", color=look.colour, label=label(drafter), alpha=0.8
        )
    largest = [max(y for _, y in points) for points in sizes.values()]
    if max(largest) > _FAR_APART * max(min(largest), 1):
        axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("text at the end of the turn, tokens")
    axes.set_ylabel("drafter state, KiB")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: tokens_text(value))
    legend_above(axes)
    return figure


def position_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Acceptance of draft position 1, 2, ..., unconditional and given that the one before was accepted."""
    tables = {name: metrics.acceptance_by_position(own) for name, own in _drafting(rows).items()}
    tables = {name: table for name, table in tables.items() if table}
    if not tables:
        return None
    return Plot(
        name="acceptance-position",
        title="Acceptance by draft position",
        description=(
            "Share of proposed drafts that were accepted: "
            + "; ".join(_position_words(name, table) for name, table in tables.items())
            + ". Dotted lines: the same given that the position before was accepted."
        ),
        columns=("drafter", "position", "accepted / proposed", "given the one before"),
        data=tuple((name, i, *pair) for name, table in tables.items() for i, pair in enumerate(table, 1)),
        draw=partial(_draw_positions, tables),
    )


def _draw_positions(tables: dict[str, list[tuple[float, float | None]]]) -> Figure:
    figure, (axes,) = panels()
    looks = styles(tables)
    for drafter, table in tables.items():
        look, places = looks[drafter], range(1, len(table) + 1)
        axes.plot(places, [100 * u for u, _ in table], color=look.colour, marker=look.marker, label=label(drafter))
        chained = [(place, 100 * c) for place, (_, c) in zip(places, table, strict=True) if c is not None]
        axes.plot([x for x, _ in chained], [y for _, y in chained], color=look.colour, linestyle=":", linewidth=1.3)
    axes.plot([], [], color=INK, linestyle=":", label="given the one before")
    axes.set_ylim(0, 102)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("draft position")
    axes.set_ylabel("accepted, % of proposed")
    legend_above(axes)
    return figure


def _position_words(drafter: str, table: Sequence[tuple[float, float | None]]) -> str:
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
    looks = styles(counts)
    for panel, (drafter, found) in zip(axes, counts.items(), strict=True):
        shares = [100 * count / sum(found) for count in found]
        panel.bar(range(len(shares)), shares, width=0.75, color=looks[drafter].colour)
        panel.set_title(f"{label(drafter)}, {sum(found):,} rounds", loc="left", fontsize=10, color=INK, pad=3)
        panel.set_ylim(0, 100)
        panel.set_yticks([0, 50, 100])
    axes[-1].set_xticks(range(max(map(len, counts.values()))))
    axes[-1].set_xlabel("drafts accepted in a round")
    figure.supylabel("rounds, %", fontsize=10, color=INK)
    return figure


def _histogram_rows(drafter: str, counts: Sequence[int]) -> list[tuple[Cell, ...]]:
    return [(drafter, length, count, count / sum(counts)) for length, count in enumerate(counts)]
