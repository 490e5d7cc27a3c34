"""The table of a run on screens of several widths: names stay, and stay different."""

from __future__ import annotations

import io

import pytest
from reportkit import two_rollouts
from rich.console import Console

from agentbench_spec.cli.sheets import _least, _table_of, parts
from agentbench_spec.results.export import Sheet
from agentbench_spec.results.summary import render, shortened, summarise


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_line_fits_and_the_names_are_there(width: int) -> None:
    """Fails if a name is folded or cut away, or a line is wider than the screen."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(summarise(two_rollouts())))
    lines = console.export_text().splitlines()
    names = {row.drafter for row in two_rollouts()}
    assert all(len(line) <= width for line in lines)
    assert all(any(line.strip().startswith(f"{name} ") for line in lines) for name in names)


@pytest.mark.parametrize("width", [8, 12, 20])
def test_names_that_differ_stay_different(width: int) -> None:
    """Fails if names that differ only in their middle or at one end are shown alike, or wider than there is room."""
    names = [f"package.module:factory=acme/{middle}-model-v1" for middle in ("a" * 40, "b" * 40)]
    names += ["dlite=checkpoint/one/long/folder/1", "dlite=checkpoint/one/long/folder/2", "none"]
    short = shortened(names, width)
    assert len(set(short)) == len(names) and all(len(name) <= width for name in short) and short[-1] == "none"


@pytest.mark.parametrize("labels", [["method"], ["method", "figure"]])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_sheet_comes_in_parts_that_fit_and_lose_nothing(width: int, labels: list[str]) -> None:
    """Fails if a part is wider than the screen or without the names, or a column of figures is lost or there twice."""
    names = ["none", "dlite=checkpoint/one/long/folder/1", "dlite=checkpoint/one/long/folder/2"]
    headings = [*labels, *(f"workload {i}" for i in range(5))]
    own = ["speed-up"] * (len(labels) - 1)
    lines = [[name, *own, *(f"{i}.00 [0.90, 1.10]" for i in range(5))] for name in names]
    found = list(parts(Sheet("a table", headings, lines, ["note"], labels=len(labels)), width))
    assert all(_least(_table_of(part)) <= width for part in found)
    assert [h for part in found for h in part.headings[len(labels) :]] == headings[len(labels) :]
    assert all(len({line[0] for line in part.lines}) == len(names) for part in found)
    shown = [[cell for part in found for cell in part.lines[i][len(labels) :]] for i in range(len(names))]
    assert shown == [line[len(labels) :] for line in lines]
