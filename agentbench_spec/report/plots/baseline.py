"""Plain decoding's step over the run: a speed-up rests on it, and a stall of the machine shows here first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Plot, panels
from agentbench_spec.report.plots.legends import legend_above
from agentbench_spec.report.plots.marks import mark
from agentbench_spec.report.plots.palette import INK, MUTED
from agentbench_spec.results import metrics
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class BaselineStep:
    """The mean plain step of one turn."""

    rollout: str
    turn: int
    timed_s: float
    """As the clock had it."""
    steady_s: float
    """With stalled rounds at the time of their like."""
    attempts: int | None
    disturbed: bool


def baseline_steps(rows: Iterable[TurnRow]) -> list[BaselineStep]:
    """One point a turn that plain decoding was timed on, in the order of the run."""
    own = [row for row in metrics.counted(rows) if row.drafter == BASELINE and row.decode_s and row.rounds]
    return [
        BaselineStep(
            row.rollout,
            row.turn,
            (row.decode_s or 0.0) / (row.rounds or 1),
            (steady.decode_s or 0.0) / (row.rounds or 1),
            row.attempts,
            bool(row.disturbed),
        )
        for row, steady in zip(own, steadied(own), strict=True)
    ]


def baseline_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Milliseconds of a plain step, turn by turn; None with fewer than two turns."""
    rows = list(rows)
    metrics.one_condition(rows)
    steps = baseline_steps(rows)
    if len(steps) < 2:
        return None
    timed = [1e3 * step.timed_s for step in steps]
    off = sum(step.disturbed for step in steps)
    return Plot(
        name="baseline-step",
        title="Plain decoding's step over the run",
        description=(
            f"Mean milliseconds of a plain step in each of {len(steps)} turns, in the order in which they ran: from "
            f"{min(timed):.1f} to {max(timed):.1f}. Speed-ups are taken from the steady step, in which stalled rounds "
            f"take the time of their like; {off} turns stayed disturbed in every attempt."
        ),
        columns=("turn of the run", "rollout", "turn", "timed, ms", "steady, ms", "attempts", "disturbed"),
        data=tuple(
            (
                number,
                s.rollout,
                s.turn + 1,
                1e3 * s.timed_s,
                1e3 * s.steady_s,
                s.attempts,
                "yes" if s.disturbed else "no",
            )
            for number, s in enumerate(steps, 1)
        ),
        draw=partial(_draw, steps),
    )


def _draw(steps: Sequence[BaselineStep]) -> Figure:
    figure, (axes,) = panels(height_in=2.6)
    places = range(1, len(steps) + 1)
    axes.plot([], [], ".", color=INK, label="as timed")
    for place, step in zip(places, steps, strict=True):
        mark(axes.plot(place, 1e3 * step.timed_s, ".", color=INK), place - 1)
    axes.plot(places, [1e3 * step.steady_s for step in steps], color=MUTED, linewidth=1.2, label="steady")
    if disturbed := [(place, 1e3 * step.timed_s) for place, step in zip(places, steps, strict=True) if step.disturbed]:
        axes.plot(*zip(*disturbed, strict=True), "x", color=INK, markersize=8, label="disturbed")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("turn of the run")
    axes.set_ylabel("ms per plain step")
    axes.locator_params(axis="x", integer=True)
    legend_above(axes, columns=3)
    return figure
