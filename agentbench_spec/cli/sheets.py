"""A sheet of results as tables on screen, in as many parts as a narrow one needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentbench_spec.cli.console import Screen, console, plain_table, say

if TYPE_CHECKING:
    from agentbench_spec.results.export import Sheet


def print_sheet(found: Sheet) -> None:
    """The table and its notes, on stderr."""
    for part in parts(found, console.width):
        table = _table_of(part)
        least = _least(table)
        screen = console if least <= console.width else Screen(width=least)  # no figure is cut, however narrow it is
        screen.print(table)
    for note in found.notes:
        say(note, "yellow" if "NOT LOSSLESS" in note or note.startswith("warning") else "dim")


def parts(found: Sheet, width: int) -> Iterator[Sheet]:
    """The sheet as sheets of at most `width` cells: labels in each, long ones without their middle, no figure cut."""
    labels, figures = range(found.labels), range(found.labels, len(found.headings))
    if _least(_table_of(found)) > width and figures:
        found = _with_short_labels(found, width)
    shown: list[int] = []
    for i in figures:
        if shown and _least(_table_of(_chosen(found, [*labels, *shown, i]))) > width:
            yield _chosen(found, [*labels, *shown])
            shown = []
        shown.append(i)
    yield _chosen(found, [*labels, *shown])


def _with_short_labels(found: Sheet, width: int) -> Sheet:
    """The longest labels cut until one column of figures fits beside them, to eight cells at the least."""
    from agentbench_spec.results.summary import shortened

    columns = [[line[i] for line in found.lines] for i in range(found.labels)]
    needed = [_longest_word([found.headings[i], *column]) for i, column in enumerate(columns)]
    room = list(needed)
    widest = max(_least(_table_of(_chosen(found, [i]))) for i in range(found.labels, len(found.headings)))
    while sum(room) + found.labels + widest + 2 > width and max(room) > 8:
        room[room.index(max(room))] -= 1
    short = [
        column if cells == word else shortened(column, cells)
        for column, cells, word in zip(columns, room, needed, strict=True)
    ]
    lines = [[*(column[j] for column in short), *line[found.labels :]] for j, line in enumerate(found.lines)]
    return replace(found, lines=lines)


def _chosen(found: Sheet, columns: Sequence[int]) -> Sheet:
    lines = [[line[i] for i in columns] for line in found.lines]
    return replace(found, headings=[found.headings[i] for i in columns], lines=lines)


def _longest_word(texts: Sequence[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=1)


def _least(table: Table) -> int:
    """Cells of the table where each column is as wide as its longest word."""
    return Measurement.get(console, console.options.update(max_width=1000), table).minimum


def _table_of(found: Sheet) -> Table:
    table = plain_table()
    table.title, table.title_justify = found.title, "left"
    for i, heading in enumerate(found.headings):
        table.add_column(Text(heading), min_width=_longest_word([heading, *(line[i] for line in found.lines)]))
    for line in found.lines:
        table.add_row(*map(Text, line))
    return table
