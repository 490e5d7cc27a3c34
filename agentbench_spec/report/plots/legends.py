"""The legend of a figure: above its panel, where it hides no data, and never wider than that."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentbench_spec.report.plots.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

_LEGEND_PT = 9.0


def legend_above(axes: Axes, *, columns: int = 4, text_pt: float = _LEGEND_PT) -> None:
    """A legend in one line above the panel, left-aligned, where it can hide no data; none for a single series."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        columns = min(columns, len(handles))
        axes.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncols=columns,
            frameon=False,
            fontsize=text_pt,
            handlelength=1.6,
            columnspacing=1.2,
            borderpad=0.1,
            labelcolor=INK,
        )


def narrow_legends(figure: Figure, scale: float) -> None:
    """Fewer entries a line in legends that are wider than their panel, which would be squeezed to make them room.

    scale: size of text over that which figures are drawn with.
    """
    for axes in figure.axes:
        if axes.get_legend() is None or not axes.get_legend_handles_labels()[1]:
            continue
        for columns in range(3, 0, -1):
            figure.draw_without_rendering()
            if cast("Legend", axes.get_legend()).get_window_extent().x1 <= axes.get_window_extent().x1 + 1:
                break
            legend_above(axes, columns=columns, text_pt=_LEGEND_PT * scale)
