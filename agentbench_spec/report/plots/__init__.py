"""Figures of a run: rows in, `Plot` out, written as svg and png or put into a page.

Each function takes the rows of one run and leaves out what the headline figures leave out; it returns None where there
is nothing to draw. matplotlib is needed only when one is called (ConfigError with the install command without it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentbench_spec.report.plots.baseline import baseline_plot
from agentbench_spec.report.plots.canvas import Plot
from agentbench_spec.report.plots.concurrency import ThroughputPoint, throughput_plot
from agentbench_spec.report.plots.drafts import histogram_plot, position_plot, state_plot
from agentbench_spec.report.plots.speed import model_plot, phase_plot, speedup_bars
from agentbench_spec.report.plots.turns import tau_against_context, tau_against_turn
from agentbench_spec.results.rows import TurnRow

__all__ = [
    "FIGURES",
    "Plot",
    "ThroughputPoint",
    "baseline_plot",
    "draw_all",
    "histogram_plot",
    "model_plot",
    "phase_plot",
    "position_plot",
    "speedup_bars",
    "state_plot",
    "tau_against_context",
    "tau_against_turn",
    "throughput_plot",
]

FIGURES: tuple[Callable[[Iterable[TurnRow]], Plot | None], ...] = (
    speedup_bars,
    baseline_plot,
    model_plot,
    tau_against_context,
    tau_against_turn,
    phase_plot,
    state_plot,
    position_plot,
    histogram_plot,
)
"""Every figure that is drawn from rows, in the order of the report."""


def draw_all(rows: Iterable[TurnRow], throughput: Iterable[ThroughputPoint] = ()) -> list[Plot]:
    """Every figure the rows have data for. Raises MeasurementError if they were measured under different conditions."""
    rows = list(rows)
    drawn = [*(figure(rows) for figure in FIGURES), throughput_plot(throughput)]
    return [plot for plot in drawn if plot is not None]
