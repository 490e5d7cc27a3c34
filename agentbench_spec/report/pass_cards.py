"""Runs of passes over many rows at once on a page: their benchmark cards, and the best K by concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from agentbench_spec.report.cards import Heading, heading
from agentbench_spec.report.grids import Grid, policy_grid
from agentbench_spec.results.derived.policy import OF_PASSES, choices_of_passes, one_but_for_k
from agentbench_spec.results.folder import read_manifest
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.throughput.pass_rows import ROWS, by_cell, read_rows


def holds_passes(run: Path) -> bool:
    """True for the folder of a throughput run."""
    return (run / ROWS).is_file()


def throughput_card(run: Path) -> Heading:
    """The benchmark card of a throughput run; its baseline's step is that of plain decoding on one row."""
    alone = by_cell(read_rows(run)).get((BASELINE, 1), [])
    steps = [row.decode_s / row.steps for row in alone if row.decode_s and row.steps]
    step_s = median(steps) if steps else None
    return heading(run.resolve().name, read_manifest(run), step_s)


def pass_policy_grids(runs: Sequence[Path]) -> list[Grid]:
    """The table of the best K by concurrency, if the throughput runs differ in k and in nothing else."""
    rows = [read_rows(run) for run in runs]
    choices = choices_of_passes(rows) if one_but_for_k(rows, OF_PASSES) else []
    return policy_grid(choices, "How many tokens to draft, by rollouts decoded at once")
