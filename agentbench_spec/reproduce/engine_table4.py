"""The part of `reproduce` that measures table 4."""

from __future__ import annotations

from pathlib import Path

import torch

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.reproduce.mean_tau import mean_tau_table
from agentbench_spec.reproduce.plan import Plan
from agentbench_spec.reproduce.reuse import data_is_absent, refuse_other_measurement, run_folder
from agentbench_spec.reproduce.table4 import throughput_table
from agentbench_spec.results.folder import MANIFEST, read_manifest
from agentbench_spec.results.tables import Table
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, read_rows
from agentbench_spec.runs.setup import Tell
from agentbench_spec.runs.throughput import run_throughput, settings_of


def measure_table4(wanted: Plan, results: Path, tell: Tell) -> tuple[list[Table], list[Path]]:
    """One table a workload. Raises ConfigError if the data of none of them can be had."""
    tables, runs, absent, measured = [], [], [], []
    for column, config in wanted.columns:
        if reason := data_is_absent(config):
            absent.append(f"{column.title}: not run: {reason}")
            tell(absent[-1])
            continue
        folder = run_folder(results, settings_of(config, wanted.throughput))
        rows = _rows(wanted, config, folder, tell)
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
                notes=[*read_manifest(folder).get("notes", []), *absent],
            )
        )
    if not tables:
        raise ConfigError(f"not one column of table4 can be run: {'; '.join(absent)}")
    return [*tables, mean_tau_table(wanted.title, wanted, measured)], runs


def _rows(wanted: Plan, config: RunConfig, folder: Path, tell: Tell) -> list[ThroughputRow]:
    if (folder / MANIFEST).is_file() and (manifest := read_manifest(folder)).get("finished"):
        most = wanted.throughput.requests(max(wanted.throughput.concurrency))
        refuse_other_measurement(folder, manifest, config, most)
        tell(f"reusing {folder}, finished {manifest['finished']}")
        return read_rows(folder)
    return run_throughput(config, wanted.throughput, folder, tell)


def _is_papers_gpu() -> bool:
    return torch.cuda.is_available() and "H800" in torch.cuda.get_device_name()
