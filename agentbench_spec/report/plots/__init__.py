"""Figures of a run: rows in, `Plot` out, written as svg and png or put into a page.

Each function takes the rows of one run and leaves out what the headline figures leave out; it returns None where there
is nothing to draw. matplotlib is needed only when one is called (ConfigError with the install command without it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentbench_spec.report.plots.baseline import baseline_plot
from agentbench_spec.report.plots.canvas import Plot
from agentbench_spec.report.plots.concurrency import ThroughputPoint, throughput_plot
from agentbench_spec.report.plots.contexts import draft_kv_against_context, speedup_against_context
from agentbench_spec.report.plots.drafts import histogram_plot, position_plot, state_plot
from agentbench_spec.report.plots.phases import phase_plot, phases_against_context
from agentbench_spec.report.plots.speed import model_plot, speedup_bars
from agentbench_spec.report.plots.turns import tau_against_context, tau_against_turn
from agentbench_spec.results.rows import TurnRow

__all__ = [
    "FIGURES",
    "Plot",
    "ThroughputPoint",
    "baseline_plot",
    "draft_kv_against_context",
    "draw_all",
    "drawn",
    "histogram_plot",
    "model_plot",
    "phase_plot",
    "phases_against_context",
    "position_plot",
    "speedup_against_context",
    "speedup_bars",
    "state_plot",
    "tau_against_context",
    "tau_against_turn",
    "throughput_plot",
]

_Figure = Callable[[Iterable[TurnRow]], Plot | None]

_NEEDS: dict[_Figure, str] = {
    draft_kv_against_context: "draft-KV maintenance by context needs turns whose prefill, ingest and append were timed",
    speedup_against_context: "speed-up by context needs turns that plain decoding and a method were both timed in",
    phases_against_context: "phases by context need turns that were timed phase by phase",
    tau_against_context: "τ by context needs rounds of a method, and prompt lengths",
    tau_against_turn: "τ by turn needs rounds of a method",
    position_plot: "acceptance by position needs the proposed and accepted drafts of each round",
    state_plot: "state by context needs a method that told the bytes of its state",
    speedup_bars: "speed-up needs turns that plain decoding and a method were both timed in",
    phase_plot: "phases need turns that were timed phase by phase",
    model_plot: "the model of a round needs both clocks, of plain decoding and of a method",
    histogram_plot: "accepted drafts per round need the accepted drafts of each round",
    baseline_plot: "plain decoding's step over the run needs two timed turns of plain decoding",
}
"""Every figure that is drawn from rows, in the order of the report, and what it cannot be drawn without."""

FIGURES: tuple[_Figure, ...] = tuple(_NEEDS)
"""Every figure that is drawn from rows, in the order of the report."""


_FIRST = FIGURES.index(speedup_bars)
"""Those before it answer what one asks first: what draft state costs, and how the gain changes as the context grows."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The figures of one run as a page shows them."""

    first: list[Plot]
    """Right below the findings."""
    more: list[Plot]
    """Below the results."""
    missing: list[str]
    """What the figures would need that these rows have no data for."""


def drawn(rows: Iterable[TurnRow]) -> Drawn:
    """Every figure the rows have data for. Raises MeasurementError if they were measured under different conditions."""
    rows = list(rows)
    found = {figure: figure(rows) for figure in FIGURES}
    first, more = FIGURES[:_FIRST], FIGURES[_FIRST:]
    return Drawn(
        first=[plot for figure in first if (plot := found[figure])],
        more=[plot for figure in more if (plot := found[figure])],
        missing=[needs for figure, needs in _NEEDS.items() if found[figure] is None],
    )


def draw_all(rows: Iterable[TurnRow], throughput: Iterable[ThroughputPoint] = ()) -> list[Plot]:
    """The same in one list, and throughput. Raises MeasurementError if conditions differ."""
    found = drawn(rows)
    return [*found.first, *found.more, *filter(None, [throughput_plot(throughput)])]
