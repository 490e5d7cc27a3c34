"""Where the time of an output token goes, phase by phase: of each method, and of each method as the context grows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Plot, label, multiples, panels
from agentbench_spec.report.plots.legends import legend_above
from agentbench_spec.report.plots.marks import mark
from agentbench_spec.report.plots.palette import INK, MUTED, PAGE, PHASE_COLOURS
from agentbench_spec.report.plots.whiskers import places_of
from agentbench_spec.results import metrics
from agentbench_spec.results.derived.by_context import octave_of, octave_text, tokens_text
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PHASES = {
    "prefill": "prefill_s",
    "ingest": "draft_ingest_s",
    "draft": "draft_s",
    "verify": "verify_s",
    "accept": "accept_s",
    "append": "draft_append_s",
    "other": "other_s",
}
"""Phase -> column of the row, in the order of a turn."""


@dataclass(frozen=True, slots=True)
class PhaseStack:
    """Where the time of an output token goes for one drafter."""

    drafter: str
    turns: int
    seconds_per_token: dict[str, float | None]
    """By phase; None if some turn did not measure it."""


def phase_stacks(rows: Iterable[TurnRow]) -> list[PhaseStack]:
    """Seconds per output token (prefill token included) in each phase, over the turns timed by phase.

    Raises MeasurementError if the rows were measured under different conditions.
    """
    rows = list(rows)
    metrics.one_condition(rows)
    stacks = []
    for drafter, own in metrics.by_drafter(metrics.counted(rows)).items():
        timed = [row for row in own if row.verify_s is not None and row.output_tokens]
        if timed:
            tokens = sum(row.output_tokens or 0 for row in timed)
            sums = {phase: _sum(timed, column) for phase, column in PHASES.items()}
            per_token = {phase: None if total is None else total / tokens for phase, total in sums.items()}
            stacks.append(PhaseStack(drafter, len(timed), per_token))
    return stacks


def _sum(rows: Sequence[TurnRow], column: str) -> float | None:
    values = [getattr(row, column) for row in rows]
    return None if None in values else float(sum(values))


def phase_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Stacked milliseconds per output token and drafter; None if no phase was timed."""
    stacks = phase_stacks(rows)
    if not stacks:
        return None
    return Plot(
        name="phases",
        title="Where the time of a token goes",
        description=_phase_words(stacks),
        columns=("drafter", *_COLUMNS),
        data=tuple((stack.drafter, *_cells(stack)) for stack in stacks),
        draw=partial(_draw_phases, stacks),
    )


def _draw_phases(stacks: Sequence[PhaseStack]) -> Figure:
    figure, (axes,) = panels(height_in=1.6 + 0.42 * len(stacks))
    places = range(len(stacks))
    axes.set_yticks(places, [label(stack.drafter) for stack in stacks])
    left = [0.0] * len(stacks)
    for phase in PHASES:
        widths = [1e3 * (stack.seconds_per_token[phase] or 0.0) for stack in stacks]
        outline = MUTED if phase == "other" else PAGE["light"]
        options = {"color": PHASE_COLOURS[phase], "edgecolor": outline, "linewidth": 0.6}
        bars = axes.barh(places, widths, left=left, height=0.62, label=phase, **options)  # type: ignore[arg-type]
        for place, bar in enumerate(bars):
            mark(bar, place)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.text(total + 0.01 * max(left), place, f"{total:.1f}", va="center", color=INK)
    axes.set_xlim(0, 1.12 * max(left) or 1)
    axes.set_xlabel("milliseconds per output token")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    long = max(len(label(stack.drafter)) for stack in stacks) > _LONG
    legend_above(axes, columns=2 if long else 4)
    return figure


_COLUMNS = (*(f"{phase}, ms per token" for phase in PHASES), "turns")


def _cells(stack: PhaseStack) -> tuple[float | int | None, ...]:
    return (*(_ms(stack.seconds_per_token[phase]) for phase in PHASES), stack.turns)


_LONG = 14
"""Characters of a method's name above which the panel beside it is narrow."""


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _phase_words(stacks: Sequence[PhaseStack]) -> str:
    totals = (f"{s.drafter} {1e3 * sum(v or 0 for v in s.seconds_per_token.values()):.1f}" for s in stacks)
    gaps = [
        f"{stack.drafter}: {', '.join(phase for phase, value in stack.seconds_per_token.items() if value is None)}"
        for stack in stacks
        if None in stack.seconds_per_token.values()
    ]
    missing = f" Not measured, and not drawn: {'; '.join(gaps)}." if gaps else ""
    return (
        f"Milliseconds per output token, stacked by phase: {'; '.join(totals)}. Greys are the target's work, oranges "
        f"what the drafter costs (ingest and append are draft-KV maintenance), a bare outline is the harness.{missing}"
    )


_Stacks = Mapping[tuple[str, int], PhaseStack]
"""By drafter and octave of prompt length."""


def phases_against_context(rows: Iterable[TurnRow]) -> Plot | None:
    """The same in every octave of prompt length, a panel a drafter; None if no phase was timed."""
    rows = list(rows)
    metrics.one_condition(rows)
    octaves = {octave for row in rows if (octave := octave_of(row)) is not None}
    stacks = {
        (stack.drafter, octave): stack
        for octave in sorted(octaves)
        for stack in phase_stacks(row for row in rows if octave_of(row) == octave)
    }
    if not stacks:
        return None
    return Plot(
        name="phases-context",
        title="Where the time of a token goes, by context",
        description=_context_words(stacks),
        columns=("drafter", "context", *_COLUMNS),
        data=tuple((drafter, octave_text(octave), *_cells(stack)) for (drafter, octave), stack in stacks.items()),
        draw=partial(_draw_by_context, stacks),
    )


def _draw_by_context(stacks: _Stacks) -> Figure:
    from matplotlib.patches import Patch

    drafters = list(dict.fromkeys(drafter for drafter, _ in stacks))
    places, rows = places_of(octave for _, octave in stacks), {key: row for row, key in enumerate(stacks)}
    figure, (*axes, free) = multiples(len(drafters) + 1)
    for panel, drafter in zip(axes, drafters, strict=True):
        for (name, octave), stack in stacks.items():
            if name == drafter:
                _draw_column(panel, places[octave], stack, rows[name, octave])
        panel.set_title(label(drafter), loc="left", fontsize=10, color=INK, pad=3)
        step = math.ceil(len(places) / _MOST_NAMES)
        named = list(places.items())[::step]
        panel.set_xticks([place for _, place in named], [tokens_text(2**octave) for octave, _ in named], fontsize=9)
        panel.tick_params(axis="x", length=0)
        panel.set_xlim(-0.6, len(places) - 0.4)
        panel.grid(visible=False, axis="x")
    for panel in axes[-2:]:
        panel.tick_params(labelbottom=True)  # below one of them stands the legend
    handles = [Patch(facecolor=PHASE_COLOURS[phase], edgecolor=MUTED, linewidth=0.6) for phase in PHASES]
    narrow = {"ncols": 2, "handlelength": 1.2, "handletextpad": 0.5, "columnspacing": 1.0, "borderpad": 0.0}
    free.legend(handles, list(PHASES), loc="center left", frameon=False, fontsize=9, labelcolor=INK, **narrow)
    free.set_axis_off()
    figure.supylabel("milliseconds per output token", fontsize=10, color=INK)
    figure.supxlabel("prompt length: from so many tokens to twice as many", fontsize=10, color=INK)
    return figure


_MOST_NAMES = 5
"""Stretches that a small panel has room to name."""


def _draw_column(panel: Axes, place: int, stack: PhaseStack, row: int) -> None:
    bottom = 0.0
    for phase in PHASES:
        height = 1e3 * (stack.seconds_per_token[phase] or 0.0)
        outline = MUTED if phase == "other" else PAGE["light"]
        options = {"color": PHASE_COLOURS[phase], "edgecolor": outline, "linewidth": 0.6}
        mark(panel.bar(place, height, bottom=bottom, width=0.7, **options), row)  # type: ignore[arg-type]
        bottom += height


def _context_words(stacks: _Stacks) -> str:
    ends = []
    for drafter in dict.fromkeys(drafter for drafter, _ in stacks):
        totals = [
            (octave_text(octave), 1e3 * sum(v or 0 for v in stack.seconds_per_token.values()))
            for (name, octave), stack in stacks.items()
            if name == drafter
        ]
        first, last = totals[0], totals[-1]
        more = f" to {last[1]:.1f} at {last[0]}" if len(totals) > 1 else ""
        ends.append(f"{drafter} {first[1]:.1f} at {first[0]}{more}")
    return (
        f"Milliseconds per output token in octaves of prompt length, a panel a drafter: {'; '.join(ends)}. Greys are "
        "the target's work, oranges what the drafter costs (ingest and append are draft-KV maintenance), a bare "
        "outline is the harness. A phase that some turn did not measure is not drawn."
    )
