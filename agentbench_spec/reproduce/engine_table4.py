"""The part of `reproduce` that measures table 4."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from agentbench_spec.config import RunConfig
from agentbench_spec.reproduce.mean_tau import mean_tau_table
from agentbench_spec.reproduce.missing import Failures
from agentbench_spec.reproduce.plan import Plan
from agentbench_spec.reproduce.reuse import refuse_other_measurement, run_folder
from agentbench_spec.reproduce.table4 import throughput_table
from agentbench_spec.results.folder import finished_manifest, read_manifest
from agentbench_spec.results.paper import PAPER_GPU
from agentbench_spec.results.tables import Table
from agentbench_spec.results.throughput.pass_rows import read_rows
from agentbench_spec.runs.setup import Tell
from agentbench_spec.runs.throughput import run_throughput, settings_of


def measure_table4(wanted: Plan, results: Path, tell: Tell, failures: Failures) -> tuple[list[Table], list[Path]]:
    """One table a workload; none, and no run, if not one can be measured."""
    tables, runs, measured = [], [], []
    for column, config in wanted.columns:
        folder = failures.attempt(column.title, config, partial(_measured, wanted, config, results, tell), tell)
        if folder is None:
            continue
        rows = read_rows(folder)
        runs.append(folder)
        measured.append((column.title, rows))
        standin = "a generated stand-in for " if column.standin else ""
        tables.append(
            throughput_table(
                f"{wanted.title}: {standin}{column.title}",
                column.paper_workload,
                rows,
                wanted.drafters,
                wanted.throughput.concurrency,
                wanted.preset.figures,
                target=wanted.target,
                paper_target=wanted.paper_target,
                comparable=wanted.comparable and not column.standin,
                same_hardware=_is_papers_gpu(),
                missing=wanted.missing,
                notes=read_manifest(folder).get("notes", []),
            )
        )
    if not tables:
        return [], []
    lacks = [f"{column}: not run: {why}" for column, why in failures.why.items()]
    tables = [replace(table, notes=[*table.notes, *lacks]) for table in tables]
    return [*tables, mean_tau_table(wanted.title, wanted, measured)], runs


def _measured(wanted: Plan, config: RunConfig, results: Path, tell: Tell) -> Path:
    """The finished run of a column: reused, continued or made. Raises what measuring raises."""
    folder = run_folder(results, settings_of(config, wanted.throughput))
    if manifest := finished_manifest(folder):
        most = wanted.throughput.requests(max(wanted.throughput.concurrency))
        refuse_other_measurement(folder, manifest, config, most)
        tell(f"reusing {folder}, finished {manifest['finished']}")
    else:
        run_throughput(config, wanted.throughput, folder, tell)
    return folder


def _is_papers_gpu() -> bool:
    return torch.cuda.is_available() and PAPER_GPU in torch.cuda.get_device_name()
