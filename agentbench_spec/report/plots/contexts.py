"""Draft-KV maintenance and speed-up as the context grows, with intervals clustered by rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Plot, panels
from agentbench_spec.report.plots.legends import legend_above
from agentbench_spec.report.plots.palette import INK, styles
from agentbench_spec.report.plots.whiskers import INTERVALS, Whisker, draw_whiskers, name_octaves
from agentbench_spec.results.derived.by_context import (
    ContextFigure,
    draft_kv_share_by_context,
    draft_kv_time_by_context,
    octave_text,
    speedup_by_context,
)
from agentbench_spec.results.findings.wording import percent, times
from agentbench_spec.results.intervals import ends
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draft_kv_against_context(rows: Iterable[TurnRow]) -> Plot | None:
    """Milliseconds an output token and share of the turn that draft-KV maintenance takes; None if it was not timed."""
    rows = list(rows)
    shares, times = draft_kv_share_by_context(rows).figures, draft_kv_time_by_context(rows).figures
    if not shares or not times:
        return None
    return Plot(
        name="draft-kv-context",
        title="Draft-KV maintenance by context",
        description=f"Time and share of the turn that ingest and append take, in octaves of prompt length. Share: "
        f"{_from_to(shares, percent)}. {INTERVALS}",
        columns=(
            *("drafter", "context", "ms per output token", "95 % low", "95 % high"),
            *("share of the turn, %", "95 % low", "95 % high", "turns", "rollouts"),
        ),
        data=tuple(
            (*_place(time), *_scaled(time, 1e3), *_scaled(share, 100), share.turns, share.rollouts)
            for time, share in zip(times, shares, strict=True)
        ),
        draw=partial(_draw_draft_kv, times, shares),
        keyed=True,
    )


def _draw_draft_kv(times: Sequence[ContextFigure], shares: Sequence[ContextFigure]) -> Figure:
    figure, (upper, lower) = panels((1, 1), height_in=4.6)
    looks = styles(own.drafter for own in times)
    draw_whiskers(upper, _whiskers(times, 1e3), looks, from_zero=True)
    draw_whiskers(lower, _whiskers(shares, 100), looks, from_zero=True)
    upper.set_ylabel("ms per output token")
    lower.set_ylabel("share of the turn, %")
    name_octaves(lower, sorted({own.octave for own in shares}))
    legend_above(upper)
    return figure


def speedup_against_context(rows: Iterable[TurnRow]) -> Plot | None:
    """Speed-up over plain decoding in every octave of prompt length; None if nothing was timed beside it."""
    found = speedup_by_context(rows).figures
    if not found:
        return None
    return Plot(
        name="speedup-context",
        title="Speed-up by context",
        description=f"Speed-up of decoding, paired by turn, in octaves of prompt length: {_from_to(found, times)}. A "
        f"dashed line marks 1.0. {INTERVALS}",
        columns=("drafter", "context", "speed-up", "95 % low", "95 % high", "paired turns", "rollouts"),
        data=tuple((*_place(own), *_scaled(own, 1), own.turns, own.rollouts) for own in found),
        draw=partial(_draw_speedups, found),
        keyed=True,
    )


def _draw_speedups(found: Sequence[ContextFigure]) -> Figure:
    figure, (axes,) = panels(height_in=3.4)
    draw_whiskers(axes, _whiskers(found, 1), styles(own.drafter for own in found))
    axes.axhline(1.0, color=INK, linewidth=1.2, linestyle="--", zorder=1)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.97), max(high, 1.03))
    axes.set_ylabel("speed-up")
    name_octaves(axes, sorted({own.octave for own in found}))
    legend_above(axes)
    return figure


def _whiskers(found: Sequence[ContextFigure], scale: float) -> list[Whisker]:
    return [
        Whisker(own.drafter, own.octave, value, low, high, row)
        for row, own in enumerate(found)
        for value, low, high in [_scaled(own, scale)]
    ]


def _place(own: ContextFigure) -> tuple[str, str]:
    return own.drafter, octave_text(own.octave)


def _scaled(own: ContextFigure, scale: float) -> tuple[float, float | None, float | None]:
    low, high = ends(own.interval)
    return scale * own.value, None if low is None else scale * low, None if high is None else scale * high


def _from_to(found: Sequence[ContextFigure], text: Callable[[float], str]) -> str:
    told = []
    for drafter in dict.fromkeys(own.drafter for own in found):
        own_figures = [own for own in found if own.drafter == drafter]
        first, last = own_figures[0], own_figures[-1]
        more = f" to {text(last.value)} at {octave_text(last.octave)}" if last is not first else ""
        told.append(f"{drafter} {text(first.value)} at {octave_text(first.octave)}{more}")
    return "; ".join(told)
