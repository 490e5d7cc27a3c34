"""Which number each mark of a figure stands for: said on hover in a page, and hidden with its method.

A draw function names the row of the plot's data that a mark shows; the id that this leaves in the svg becomes a title
with the row's values and, where the figure has a key of methods, the name of the method.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from markupsafe import escape

if TYPE_CHECKING:
    from matplotlib.artist import Artist

Cell = str | int | float | None

METHOD_COLUMNS = ("drafter", "method")
LOW, HIGH = "95 % low", "95 % high"


def mark(artists: Artist | Iterable[Artist], row: int) -> None:
    """Say that these marks show row `row` of the plot's data."""
    _name(artists, f"row-{row}")


def line(artists: Artist | Iterable[Artist], row: int) -> None:
    """Say that these belong to the method of row `row`, and show no value of their own."""
    _name(artists, f"of-{row}")


def _name(artists: Artist | Iterable[Artist], name: str) -> None:
    from matplotlib.artist import Artist

    for artist in [artists] if isinstance(artists, Artist) else artists:
        artist.set_gid(name)


def series_of(columns: Sequence[str], row: Sequence[Cell]) -> str | None:
    """The method of a row; None if the figure tells none apart."""
    return next((str(value) for name, value in zip(columns, row, strict=True) if name in METHOD_COLUMNS), None)


def value_text(columns: Sequence[str], row: Sequence[Cell]) -> str:
    """A row in words: the first cell, then each name with its value, an interval behind what it is of."""
    told: list[str] = []
    low = None
    for name, value in list(zip(columns, row, strict=True))[1:]:
        if name == LOW:
            low = value
        elif name == HIGH:
            if told and low is not None and value is not None:
                told[-1] += f" [{cell_text(low)}, {cell_text(value)}]"
        elif value is not None:
            told.append(f"{name.strip()} {cell_text(value)}")
    return f"{row[0]}: {', '.join(told)}"


def cell_text(value: Cell) -> str:
    """A number as a reader wants it."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def with_values(
    svg: str, columns: Sequence[str], data: Sequence[Sequence[Cell]], *, prefix: str = "", methods: bool = False
) -> str:
    """The svg with a title in each named mark; prefix: what its ids begin with; methods: name the method, too."""

    def opened(found: re.Match[str]) -> str:
        row = data[int(found["row"])]
        name = series_of(columns, row) if methods else None
        series = f' data-series="{escape(name)}"' if name is not None else ""
        if found["kind"] == "of":
            return f"<g{series}>"
        return f'<g class="mark" data-row="{found["row"]}"{series}><title>{escape(value_text(columns, row))}</title>'

    return re.sub(rf'<g id="{re.escape(prefix)}(?P<kind>row|of)-(?P<row>\d+)">', opened, svg)
