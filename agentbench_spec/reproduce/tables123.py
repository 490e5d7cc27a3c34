"""`agentbench-spec reproduce TABLE`: run or reuse what a table of the paper takes, and lay it out beside the paper."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from agentbench_spec.errors import ConfigError
from agentbench_spec.report.plots.canvas import Plot
from agentbench_spec.reproduce.figure1b import fall_table
from agentbench_spec.reproduce.ksweep import sweep_plots, sweep_tables
from agentbench_spec.reproduce.missing import Failures, missing_lines
from agentbench_spec.reproduce.plan import Plan, Request, check_spread, plan
from agentbench_spec.reproduce.reuse import measured_run
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.provenance import write_json_atomic
from agentbench_spec.results.tables import Column, Table, replay_table
from agentbench_spec.runs.contention import note
from agentbench_spec.runs.setup import Tell

__all__ = ["Reproduced", "Request", "plan", "reproduce", "table_folder", "write_record"]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A finished table."""

    plan: Plan
    tables: list[Table]
    runs: list[Path] = field(default_factory=list)
    """Run folders the table is made from."""
    plots: list[Plot] = field(default_factory=list)
    """Figures of the whole table."""
    missing: list[str] = field(default_factory=list)
    """What the table lacks, each with the command that adds it."""
    failed: list[str] = field(default_factory=list)
    """Columns whose data was there and whose run failed."""


def reproduce(name: str, request: Request, tell: Tell = lambda line: None) -> Reproduced:
    """Run or reuse what the table needs. Raises ConfigError if nothing of it can be run, and as `run` does."""
    if request.servers is not None:
        from agentbench_spec.reproduce.served_table4 import served_table4

        return Reproduced(*served_table4(name, request, request.servers, tell))
    wanted = plan(name, request)
    check_spread(wanted, request)
    for line in (*wanted.settings_lines, *(f"not the preset's: {name}" for name in wanted.changed)):
        tell(line)
    if wanted.preset.arms:
        from agentbench_spec.reproduce.trained import measure_trained

        table, run, plots = measure_trained(wanted, request, tell)
        return Reproduced(wanted, [table], [run], plots)
    if not [drafter for drafter in wanted.drafters if drafter not in wanted.missing]:
        raise ConfigError(
            f"no drafter has a checkpoint for {wanted.target}: give one, --drafter dlite=FOLDER_OR_HUB_ID"
        )
    failures = Failures()
    if name == "table4":
        from agentbench_spec.reproduce.engine_table4 import measure_table4

        tables, runs = measure_table4(wanted, request.results, tell, failures)
    else:
        columns, runs = _measured(wanted, request, tell, failures)
        tables = _tables(wanted, columns) if runs else []
    if not runs:
        raise ConfigError(f"not one column of {name} can be run: {'; '.join(dict.fromkeys(failures.why.values()))}")
    plots = sweep_plots(tables) if wanted.preset.k else []
    lacks = list(missing_lines(wanted, request, failures.why.items()))
    return Reproduced(wanted, tables, runs, plots, lacks, failures.failed)


def _measured(wanted: Plan, request: Request, tell: Tell, failures: Failures) -> tuple[list[Column], list[Path]]:
    columns, runs = [], []
    for preset, config in wanted.columns:
        standin = preset.standin or (wanted.embedded and preset.workload == "synthetic_agent")
        title = f"{preset.title} (stand-in)" if standin else preset.title
        measure = partial(measured_run, config, request.results, tell, request.on)
        folder = failures.attempt(title, config, measure, tell)
        manifest, rows = ({}, []) if folder is None else read_run(folder)
        runs += [] if folder is None else [folder]
        doubts = [note(manifest.get("other_cores"))] if manifest.get("contended") else []
        why = None if folder else failures.why[title]
        columns.append(Column(title, rows, preset.paper_workload, standin, why, doubts))
    return columns, list(dict.fromkeys(runs))


def _tables(wanted: Plan, columns: Sequence[Column]) -> list[Table]:
    if wanted.preset.k:
        return sweep_tables(wanted, columns)
    table = _table(wanted, columns)
    return [table, fall_table(table, wanted)] if wanted.preset.groups else [table]


def _table(wanted: Plan, columns: Sequence[Column]) -> Table:
    return replay_table(
        wanted.name,
        wanted.title,
        columns,
        [BASELINE, *wanted.drafters],
        wanted.preset.figures,
        target=wanted.target,
        paper_target=wanted.paper_target,
        comparable=wanted.comparable,
        missing=wanted.missing,
    )


def table_folder(results: Path, done: Plan) -> Path:
    """Where a table's files go if nothing else is asked for."""
    target = re.sub(r"[^\w.-]+", "-", Path(done.target).name)
    return results / "-".join([done.name, target, *(["offline"] if done.embedded else []), *_served(done)])


def _served(done: Plan) -> list[str]:
    return [] if done.backend == "engine" else [done.backend]


def write_record(done: Reproduced, folder: Path) -> Path:
    """Write what the table was made from, and how drafters compare, beside it; returns the file."""
    tree = {
        "table": done.plan.name,
        "title": done.plan.title,
        "target": done.plan.target,
        "comparable": done.plan.comparable,
        "changed": done.plan.changed,
        "settings": done.plan.settings_lines,
        "missing": done.plan.missing,
        "to_add": done.missing,
        "runs": [str(run) for run in done.runs],
        "notes": [note for table in done.tables for note in table.notes],
        "differences": [
            {"column": column, **asdict(found)} for table in done.tables for column, found in table.differences
        ],
    }
    path = folder / f"{done.plan.name}.json"
    write_json_atomic(path, json.loads(json.dumps(tree, allow_nan=False)))
    return path
