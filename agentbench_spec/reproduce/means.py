"""Means of cells that were measured apart, and their ratios, with the errors of all parts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from agentbench_spec.results.intervals import Interval, combined
from agentbench_spec.results.tables import Cell


def mean_cell(parts: Sequence[Cell]) -> Cell:
    """The mean of values measured apart; no interval if one of them has none."""
    if not parts:
        return Cell(missing="not run")
    mean = fmean(_values(parts))
    return Cell(value=mean, interval=_interval(mean, parts), turns=sum(cell.turns for cell in parts))


def ratio_cell(top: Sequence[Cell], bottom: Sequence[Cell]) -> Cell:
    """The mean of `top` over the mean of `bottom`, all measured apart."""
    if not top or not bottom:
        return Cell(missing="not run")
    ratio = fmean(_values(top)) / fmean(_values(bottom))
    return Cell(value=ratio, interval=_interval(ratio, top, bottom), turns=sum(cell.turns for cell in (*top, *bottom)))


def _interval(value: float, *means: Sequence[Cell]) -> Interval | None:
    """A mean's logarithm moves by each part's, times the part's share in the sum."""
    errors, clusters = [], []
    for parts in means:
        whole = sum(_values(parts))
        for cell in parts:
            if cell.value is None or cell.interval is None:
                return None
            errors.append((cell.value / whole * cell.interval.error, cell.interval.df))
            clusters.append(cell.interval.clusters)
    return combined(value, errors, min(clusters))


def _values(parts: Sequence[Cell]) -> list[float]:
    return [cell.value for cell in parts if cell.value is not None]
