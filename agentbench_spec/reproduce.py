"""`agentbench-spec reproduce TABLE`: run, or reuse, what a table of the paper takes, and lay it out beside the paper.

A run folder is named after the digest of its settings. One that is finished is reused if its data is still the same;
one that was killed is continued. So a table can be asked for again, and another table may share its runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.metrics import BASELINE
from agentbench_spec.paper import TableName, check_table, paper_target
from agentbench_spec.presets import ColumnPreset, Presets, TablePreset, ThroughputPreset, load_presets
from agentbench_spec.provenance import differing_keys, settings_digest, write_json_atomic
from agentbench_spec.runfolder import MANIFEST, read_manifest, read_run
from agentbench_spec.source import data_facts, load_rollouts, open_workload
from agentbench_spec.tables import Column, Table, replay_table

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    target: str | None = None
    """None: the paper's first target, or the embedded one."""
    embedded: bool = False
    """Offline data in place of the paper's."""
    drafters: Sequence[str] = ()
    """NAME=CHECKPOINT in place of a preset's checkpoint, or further drafters."""
    limit: int | None = None
    """Rollouts a column, in place of the preset's."""
    concurrency: Sequence[int] = ()
    assignments: Sequence[str] = ()
    """Settings in place of the preset's, "section.key=value"."""
    presets: Path | None = None
    """A presets file in place of the package's."""
    results: Path = Path("results/reproduce")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will be run for a table."""

    name: TableName
    preset: TablePreset
    title: str
    target: str
    paper_target: str | None
    """The paper's target whose values are shown."""
    drafters: list[str]
    """Those of the table, with a checkpoint or without."""
    missing: dict[str, str]
    """Drafter -> why it is not run."""
    columns: list[tuple[ColumnPreset, RunConfig]]
    throughput: ThroughputPreset
    changed: list[str]
    """Settings that are not the preset's; a verdict against the paper needs none."""
    embedded: bool
    settings_lines: list[str]

    @property
    def comparable(self) -> bool:
        """True if a verdict against the paper means something."""
        return not self.embedded and not self.changed and self.paper_target is not None


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A finished table."""

    plan: Plan
    tables: list[Table]
    runs: list[Path] = field(default_factory=list)
    """Run folders the table is made from."""


def plan(name: str, request: Request) -> Plan:
    """What a table takes. Raises ConfigError for an unknown table or setting, and for tables that need training."""
    table, presets = check_table(name), load_presets(request.presets)
    preset = presets.table(table)
    target = request.target or (presets.embedded.target if request.embedded else "Qwen/Qwen3-4B")
    own = paper_target(target)
    shown = presets.embedded.orientation if request.embedded else own
    given, missing = _drafters(presets, preset, request, own)
    columns, changed = [], set()
    for column in _columns(presets, table, request.embedded):
        config, differences = _config(presets, column, request, target, given)
        columns.append((column, config))
        changed |= set(differences)
    return Plan(
        name=table,
        preset=preset,
        title=_title(table, preset, target, request.embedded),
        target=target,
        paper_target=shown,
        drafters=list(dict.fromkeys([name.partition("=")[0] for name in given] + list(preset.drafters))),
        missing=missing,
        columns=columns,
        throughput=_throughput(preset, request),
        changed=_changed(request, changed),
        embedded=request.embedded,
        settings_lines=presets.settings_lines(table),
    )


def _changed(request: Request, settings: set[str]) -> list[str]:
    own = [f"presets {request.presets}"] if request.presets else []
    return own + sorted(settings)


def _title(table: TableName, preset: TablePreset, target: str, embedded: bool) -> str:
    number = re.sub(r"(\d)", r" \1", table, count=1).capitalize()
    if embedded:
        return f"{number} in form only ({preset.title}): offline data in place of the paper's, target {target}"
    return f"{number}: {preset.title}, {target}"


def _drafters(
    presets: Presets, preset: TablePreset, request: Request, target: str | None
) -> tuple[list[str], dict[str, str]]:
    """(drafters to run as the configuration names them, drafter -> why it is not run)."""
    given = {name.partition("=")[0]: name for name in request.drafters if name != BASELINE}
    known = {} if request.embedded else presets.checkpoints.get(target or "", {})
    extra = presets.embedded.drafters if request.embedded else ()
    run = {name: name for name in extra} | {name: f"{name}={known[name]}" for name in preset.drafters if name in known}
    run |= given
    missing = {name: "no checkpoint" for name in preset.drafters if name not in run}
    first = [name for name in run if name not in preset.drafters]
    return [run[name] for name in (*first, *(d for d in preset.drafters if d in run))], missing


def _columns(presets: Presets, table: TableName, embedded: bool) -> Iterator[ColumnPreset]:
    preset = presets.table(table)
    if not preset.groups:
        yield from preset.embedded if embedded else preset.columns
    for group, other in preset.groups.items():
        for column in _columns(presets, other, embedded):
            yield column.model_copy(update={"paper": group})


def _config(
    presets: Presets, column: ColumnPreset, request: Request, target: str, drafters: Sequence[str]
) -> tuple[RunConfig, list[str]]:
    """The column's settings, and those of them that are not the preset's."""
    shared = presets.embedded.settings if request.embedded else presets.settings
    base: dict[str, Any] = {
        **shared,
        **column.settings,
        "target.source": target,
        "workload.name": column.workload,
        "workload.limit": column.limit,
        "workload.options": column.workload_options(target),
        "drafters": [BASELINE, *drafters],
    }
    preset = load_config(flags=base)
    wanted = load_config(assignments=request.assignments, flags={"workload.limit": request.limit}, base=_nested(preset))
    return wanted, differing_keys(_compared(preset), _compared(wanted))


def _nested(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _compared(config: RunConfig) -> dict[str, Any]:
    """The settings that decide what is measured: not where, and not by which drafters."""
    tree = config.model_dump(mode="json")
    return {name: part for name, part in tree.items() if name in ("workload", "decode", "replay")} | {
        "measure": {"seed": config.measure.seed}
    }


def _throughput(preset: TablePreset, request: Request) -> ThroughputPreset:
    own = preset.embedded_throughput if request.embedded and preset.embedded_throughput else preset
    wanted = tuple(request.concurrency) or own.concurrency
    if min(wanted) < 1:
        raise ConfigError(f"concurrency: expected 1 or more, found {min(wanted)}")
    return ThroughputPreset(
        concurrency=wanted, requests_per_row=own.requests_per_row, requests_least=own.requests_least
    )


def reproduce(name: str, request: Request, tell: Tell = lambda line: None) -> Reproduced:
    """Run or reuse what the table needs. Raises ConfigError if nothing of it can be run, and as `run` does."""
    wanted = plan(name, request)
    for line in wanted.settings_lines:
        tell(line)
    if not [drafter for drafter in wanted.drafters if drafter not in wanted.missing]:
        raise ConfigError(
            f"no drafter has a checkpoint for {wanted.target}: give one, --drafter dlite=FOLDER_OR_HUB_ID"
        )
    if name == "table4":
        from agentbench_spec.reproduce_throughput import measure_table4

        tables, runs = measure_table4(wanted, request.results, tell)
    else:
        columns, runs = _measured(wanted, request.results, tell)
        tables = [_table(wanted, columns)]
    done = Reproduced(wanted, tables, runs)
    if not runs:
        reasons = "; ".join(column.missing or "" for column in columns)
        raise ConfigError(f"not one column of {name} can be run: {reasons}")
    return done


def _measured(wanted: Plan, results: Path, tell: Tell) -> tuple[list[Column], list[Path]]:
    columns, runs = [], []
    for preset, config in wanted.columns:
        absent = data_is_absent(config)
        if absent is None:
            tell(f"{preset.title}: {config.workload.name}")
            folder = measured_run(config, results, tell)
            runs.append(folder)
        rows = [] if absent else read_run(folder)[1]
        standin = preset.standin or (wanted.embedded and preset.workload == "synthetic_agent")
        columns.append(Column(preset.title, rows, preset.paper_workload, standin, absent))
    return columns, list(dict.fromkeys(runs))


def data_is_absent(config: RunConfig) -> str | None:
    """Why the workload cannot be had; None if it can."""
    try:
        open_workload(config.workload.name, config.workload.options, lenient=config.workload.lenient)
    except ConfigError as error:
        return str(error)
    return None


def run_folder(results: Path, settings: dict[str, Any]) -> Path:
    """The folder of a run with these settings: named after target, workload and digest."""
    names = [settings["target"]["source"], settings["workload"]["name"]]
    plain = [re.sub(r"[^\w.-]+", "-", Path(name).name) for name in names]
    return results / "runs" / "-".join([*plain, settings_digest(settings)[:12]])


def measured_run(config: RunConfig, results: Path, tell: Tell) -> Path:
    """The finished run with these settings: reused, continued or made. Raises ConfigError as `run` does."""
    from agentbench_spec.run import run

    settings = config.model_dump(mode="json")
    folder = run_folder(results, settings)
    begun = (folder / MANIFEST).is_file()
    if begun and (manifest := read_manifest(folder)).get("finished"):
        refuse_other_data(folder, manifest, config)
        tell(f"reusing {folder}, finished {manifest['finished']}")
        return folder
    run(config, folder, resume=begun, tell=tell)
    return folder


def refuse_other_data(folder: Path, manifest: dict[str, Any], config: RunConfig, limit: int | None = None) -> None:
    """Raises ConfigError if the workload no longer gives the rollouts that a finished run was made from."""
    workload = open_workload(config.workload.name, config.workload.options, lenient=config.workload.lenient)
    rollouts = load_rollouts(workload, limit=limit or config.workload.limit, seed=config.measure.seed)
    if data_facts(workload, rollouts)["sha256"] != manifest["data"]["sha256"]:
        raise ConfigError(f"{folder} was made from other data of {config.workload.name}; remove it, or use --results")


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
    return results / "-".join([done.name, target, *(["offline"] if done.embedded else [])])


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
        "runs": [str(run) for run in done.runs],
        "notes": [note for table in done.tables for note in table.notes],
        "differences": [
            {"column": column, **asdict(found)} for table in done.tables for column, found in table.differences
        ],
    }
    path = folder / f"{done.plan.name}.json"
    write_json_atomic(path, json.loads(json.dumps(tree, allow_nan=False)))
    return path
