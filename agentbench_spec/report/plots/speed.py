"""Speed-up of every drafter, and how it compares with a simple model of a round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentbench_spec.report.plots.canvas import Plot, label, panels
from agentbench_spec.report.plots.legends import legend_above
from agentbench_spec.report.plots.marks import Cell, mark
from agentbench_spec.report.plots.palette import INK, MUTED, PAGE, styles
from agentbench_spec.results import costs, metrics
from agentbench_spec.results.intervals import Interval, ends, speedup_intervals
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class SpeedupModel:
    """Measured speed-up of one drafter beside the model τ·T(1) / (T(K+1) + T_draft), over paired turns.

    The model knows only the two passes of a round; what it promises beyond the measured value went into accepting,
    appending to the draft state and the harness. T comes from the attribution clock, the speed-up from the wall clock.
    """

    drafter: str
    tau: float
    step_s: float
    """T(1): verify seconds of a baseline round."""
    verify_s: float
    """T(K+1): verify seconds of a round of this drafter, whatever number of drafts it proposed."""
    draft_s: float
    """T_draft: propose seconds of a round."""
    measured: float
    interval: Interval | None

    @property
    def predicted(self) -> float:
        """The model's speed-up."""
        return self.tau * self.step_s / (self.verify_s + self.draft_s)


def speedup_models(rows: Iterable[TurnRow]) -> list[SpeedupModel]:
    """One model per drafter whose turns were timed on both clocks, the baseline's too.

    Raises MeasurementError if the rows were measured under different conditions.
    """
    rows = list(rows)
    metrics.one_condition(rows)
    found = (_model(costs.paired(rows, name), name) for name in metrics.by_drafter(rows) if name != BASELINE)
    return [model for model in found if model is not None]


def _model(pairs: Sequence[costs.Pair], drafter: str) -> SpeedupModel | None:
    pairs = [pair for pair in pairs if pair[0].rounds and pair[1].rounds]
    own = [row for _, row in pairs]
    tau, measured = metrics.tau(own).pooled, costs.speedup(pairs).pooled
    step_s = _round_seconds([base for base, _ in pairs], "verify_s")
    verify_s, draft_s = _round_seconds(own, "verify_s"), _round_seconds(own, "draft_s")
    if tau is None or measured is None or not step_s or not verify_s or draft_s is None:
        return None
    return SpeedupModel(drafter, tau, step_s, verify_s, draft_s, measured, speedup_intervals(pairs).pooled)


def _round_seconds(rows: Sequence[TurnRow], name: str) -> float | None:
    seconds = [getattr(row, name) for row in rows]
    rounds = sum(row.rounds or 0 for row in rows)
    return None if not rounds or None in seconds else float(sum(seconds)) / rounds


def speedup_bars(rows: Iterable[TurnRow]) -> Plot | None:
    """Pooled speed-up over plain decoding with its interval, and a line at 1.0; None if nothing was timed.

    Nothing is clipped: a drafter that slows decoding down ends left of the line.
    """
    rows = list(rows)
    metrics.one_condition(rows)
    found: list[tuple[str, float, Interval | None, int]] = []
    for drafter in metrics.by_drafter(rows):
        pairs = costs.paired(rows, drafter)
        own = costs.speedup(pairs)
        if drafter != BASELINE and own.pooled is not None:
            found.append((drafter, own.pooled, speedup_intervals(pairs).pooled, own.pairs))
    if not found:
        return None
    return Plot(
        name="speedup",
        title="Speed-up over plain decoding",
        description=_speedup_words(found),
        columns=("drafter", "speed-up", "95 % low", "95 % high", "paired turns"),
        data=tuple((name, value, *ends(interval), turns) for name, value, interval, turns in found),
        draw=partial(_draw_speedups, found),
    )


_FAR = 2.0
"""An interval is drawn up to this many times its value; the numbers hold its ends."""


def _draw_speedups(found: Sequence[tuple[str, float, Interval | None, int]]) -> Figure:
    figure, (axes,) = panels(height_in=1.1 + 0.42 * len(found))
    looks = styles(name for name, *_ in found)
    names = [name for name, *_ in found]
    places = range(len(found))
    axes.set_yticks(places, map(label, names))
    values, colours = [value for _, value, *_ in found], [looks[name].colour for name in names]
    bars = axes.barh(places, values, height=0.6, color=colours)
    for place, bar in enumerate(bars):
        mark(bar, place)
    most = _FAR * max(1.0, *(value for _, value, *_ in found))  # two rollouts' interval would leave no room for a bar
    highs = [min(most, max(value, interval.high if interval else 0)) for _, value, interval, _ in found]
    end = max(highs)
    for place, (_, value, interval, _) in enumerate(found):
        if interval:  # on a rim of the page's colour, so that it shows on any bar
            axes.hlines(place, interval.low, interval.high, color=PAGE["light"], linewidth=4.5)
            axes.hlines(place, interval.low, interval.high, color=INK, linewidth=1.6)
        box = {"facecolor": PAGE["light"], "edgecolor": "none", "pad": 1.5}  # the dashed line must not cross a number
        axes.text(highs[place] + 0.02 * end, place, f"{value:.2f}", va="center", color=INK, bbox=box)
    axes.axvline(1.0, color=INK, linewidth=1.2, linestyle="--")
    axes.set_xlim(0, max(1.12, 1.12 * end))
    axes.set_xlabel("speed-up (dashed: 1.0, no gain)")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    return figure


def _speedup_words(found: Sequence[tuple[str, float, Interval | None, int]]) -> str:
    each = (
        f"{name} {value:.2f}" + (f" (95 % interval {interval.low:.2f} to {interval.high:.2f})" if interval else "")
        for name, value, interval, _ in found
    )
    return f"Pooled speed-up of decoding, paired by turn: {'; '.join(each)}. A dashed line marks 1.0."


def model_plot(rows: Iterable[TurnRow]) -> Plot | None:
    """Measured speed-up beside what τ·T(1) / (T(K+1) + T_draft) promises; None if the phases were not timed."""
    models = speedup_models(rows)
    if not models:
        return None
    return Plot(
        name="speedup-model",
        title="Measured speed-up against the model of a round",
        description=(
            "Model is τ·T(1) / (T(K+1) + T_draft). "
            + "; ".join(f"{m.drafter}: model {m.predicted:.2f}, measured {m.measured:.2f}" for m in models)
            + ". The model leaves out, of both sides, accepting, the draft state and the harness."
        ),
        columns=("drafter", "τ", "T(1), ms", "T(K+1), ms", "T_draft, ms", "model", "measured", "95 % low", "95 % high"),
        data=tuple(_model_row(model) for model in models),
        draw=partial(_draw_models, models),
    )


def _draw_models(models: Sequence[SpeedupModel]) -> Figure:
    figure, (axes,) = panels(height_in=1.4 + 0.42 * len(models))
    looks = styles(model.drafter for model in models)
    for place, model in enumerate(models):
        look = looks[model.drafter]
        if model.interval:
            axes.hlines(place, model.interval.low, model.interval.high, color=MUTED, linewidth=1)
        axes.plot([model.measured, model.predicted], [place, place], color=look.colour, linewidth=4, alpha=0.45)
        shape = {"color": look.colour, "markersize": 9, "markerfacecolor": PAGE["light"]}
        mark(axes.plot(model.predicted, place, "D", **shape), place)  # type: ignore[arg-type]
        mark(axes.plot(model.measured, place, "o", color=look.colour, markersize=5), place)
    axes.plot([], [], "o", color=MUTED, label="measured, with its interval")
    axes.plot([], [], "D", color=MUTED, markerfacecolor=PAGE["light"], label="model τ·T(1) / (T(K+1) + T_draft)")
    axes.axvline(1.0, color=INK, linewidth=1.2, linestyle="--")
    axes.set_yticks(range(len(models)), [label(model.drafter) for model in models])
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.set_xlim(*_room_around([1.0, *(end for model in models for end in _drawn(model))]))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("speed-up over plain decoding")
    legend_above(axes, columns=1)
    return figure


def _drawn(model: SpeedupModel) -> tuple[float, ...]:
    low, high = model.measured / _FAR, model.measured * _FAR
    ends = (max(low, model.interval.low), min(high, model.interval.high)) if model.interval else ()
    return (model.measured, model.predicted, *ends)


def _room_around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.1
    return low - room, high + room


def _model_row(model: SpeedupModel) -> tuple[Cell, ...]:
    seconds = (1e3 * model.step_s, 1e3 * model.verify_s, 1e3 * model.draft_s)
    return (model.drafter, model.tau, *seconds, model.predicted, model.measured, *ends(model.interval))
