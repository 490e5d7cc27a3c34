"""A sheet of results as a table on screen."""

from __future__ import annotations

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
    table, screen = _table_of(found), console
    least = Measurement.get(console, console.options.update(max_width=1000), table).minimum
    if least > console.width:  # a table wider than a narrow screen, so that no figure is cut
        table, screen = _table_of(found, least=True), Screen(width=2 * least)
    screen.print(table)
    for note in found.notes:
        say(note, "yellow" if "NOT LOSSLESS" in note or note.startswith("warning") else "dim")


def _table_of(found: Sheet, *, least: bool = False) -> Table:
    """least: each column as wide as its longest word."""
    table = plain_table()
    table.title, table.title_justify = found.title, "left"
    for i, heading in enumerate(found.headings):
        words = [word for text in (heading, *(line[i] for line in found.lines)) for word in text.split()]
        table.add_column(Text(heading), width=max(map(cell_len, words), default=1) if least else None)
    for line in found.lines:
        table.add_row(*map(Text, line))
    return table
