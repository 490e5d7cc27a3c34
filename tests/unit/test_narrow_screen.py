"""The table of a run on screens of several widths: names stay, and stay different."""

from __future__ import annotations

import io

import pytest
from reportkit import two_rollouts
from rich.console import Console

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
