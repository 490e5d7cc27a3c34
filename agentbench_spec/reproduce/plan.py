"""What a table of the paper takes: which workloads, drafters and settings, and how far they are the paper's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_spec.config import DecodeConfig, RunConfig, load_config
from agentbench_spec.config.backends import SERVED, Backend
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.paper import TableName, check_table, paper_target
from agentbench_spec.results.provenance import differing_keys
from agentbench_spec.runs.presets import ColumnPreset, Presets, TablePreset, ThroughputPreset, load_presets
from agentbench_spec.runs.scale.shards import refuse_on_ray


@dataclass(frozen=True, slots=True)
class ServersAsked:
    """The servers that a table was asked for from."""

    base_urls: Sequence[str] = ()
    launch: bool = False
    api_key: str | None = field(default=None, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    backend: Backend = SERVED[0]
    """Their engine."""


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
    servers: ServersAsked | None = None
    """Servers in place of our own engine."""
    on: str | None = None
    """What spreads each run over GPUs and machines: "ray"; None: nothing."""


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
    backend: Backend = "engine"

    @property
    def comparable(self) -> bool:
        """True if a verdict against the paper means something."""
        return not self.embedded and not self.changed and self.paper_target is not None


def plan(name: str, request: Request) -> Plan:
    """What a table takes. Raises ConfigError for an unknown table or setting, and for tables that need training."""
    table, presets = check_table(name), load_presets(request.presets)
    asked = request.target or (presets.embedded.target if request.embedded else None)
    preset, target = presets.table(table, asked, embedded=request.embedded), asked or "Qwen/Qwen3-4B"
    if preset.arms and request.drafters:
        raise ConfigError(f"{table} compares drafters that it trains itself: leave --drafter out, or use `run`")
    own = paper_target(target)
    shown = presets.embedded.orientation if request.embedded else own
    shipped = presets.embedded.shipped if request.embedded and target == presets.embedded.target else ()
    given, missing = _drafters(presets, preset, request, own, shipped)
    columns, changed = [], set()
    for column in _columns(presets, table, request.embedded):
        config, differences = column_config(presets, preset, column, request, target, given)
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
        settings_lines=_settings_lines(presets, table, request.embedded, shipped),
    )


def check_served(name: str) -> None:
    """Raises ConfigError for a table that cannot be measured on servers."""
    if name != "table4":
        raise ConfigError(
            f"{name} is measured turn by turn on our own engine; on servers only table4: for rows of single turns use "
            "`agentbench-spec run --backend sglang`"
        )


def check_spread(wanted: Plan, request: Request) -> None:
    """Raises ConfigError for a table that cannot be spread over GPUs, and where what spreads it is missing."""
    if request.on is None:
        return
    if wanted.name == "table4" or wanted.preset.arms or request.servers is not None:
        what = "trains its drafters" if wanted.preset.arms else "measures many rows on one GPU"
        raise ConfigError(f"--on {request.on}: {wanted.name} {what}, which is not cut into shards; leave --on out")
    for _, config in wanted.columns:
        refuse_on_ray(config)


def _changed(request: Request, settings: set[str]) -> list[str]:
    own = [f"presets {request.presets}"] if request.presets else []
    return own + sorted(settings)


def _settings_lines(presets: Presets, table: TableName, embedded: bool, shipped: Sequence[str]) -> list[str]:
    if not embedded:
        return presets.settings_lines(table)
    settings = {**presets.embedded.settings, **presets.tables[table].settings}
    line = f"offline form of {table}: {_words(settings)}"
    if presets.tables[table].arms and presets.training:
        data = f"{presets.training.train} rollouts of {presets.training.workload}"
        return [line, f"each drafter is trained here, on {data}: {_words(presets.training.settings)}"]
    return [line, *(presets.embedded.notes if shipped else ())]


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _title(table: TableName, preset: TablePreset, target: str, embedded: bool) -> str:
    number = re.sub(r"(\d)", r" \1", table, count=1).capitalize()
    if embedded:
        return f"{number} in form only ({preset.title}): offline data in place of the paper's, target {target}"
    return f"{number}: {preset.title}, {target}"


def _drafters(
    presets: Presets, preset: TablePreset, request: Request, target: str | None, shipped: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """(drafters to run as the configuration names them, drafter -> why it is not run).

    shipped: drafters that find their checkpoint for the target in the package.
    """
    known = {} if request.embedded else presets.checkpoints.get(target or "", {})
    extra = presets.embedded.drafters if request.embedded else ()
    run = {name: name for name in (*extra, *(own for own in preset.drafters if own in shipped))}
    run |= {name: f"{name}={known[name]}" for name in preset.drafters if name in known}
    run |= {name.partition("=")[0]: name for name in request.drafters if name != BASELINE}
    missing = {name: "no checkpoint" for name in preset.drafters if name not in run}
    first = [name for name in run if name not in preset.drafters]
    return [run[name] for name in (*first, *(d for d in preset.drafters if d in run))], missing


def _columns(presets: Presets, table: TableName, embedded: bool) -> Iterator[ColumnPreset]:
    preset = presets.tables[table]
    if not preset.groups:
        yield from preset.embedded if embedded else preset.columns
    for group, other in preset.groups.items():
        own = [column for column in _columns(presets, other, embedded) if column.title not in preset.without]
        for column in own:
            yield column.model_copy(update={"paper": group})


def column_config(
    presets: Presets,
    table: TablePreset,
    column: ColumnPreset,
    request: Request,
    target: str,
    drafters: Sequence[str],
) -> tuple[RunConfig, list[str]]:
    """The column's settings, and those of them that are not the preset's."""
    shared = presets.embedded.settings if request.embedded else presets.settings
    base: dict[str, Any] = {
        **shared,
        **table.settings,
        **({"decode.k": _most(table.k), "decode.sweep": list(table.k)} if table.k else {}),
        "target.source": target,
        "workload.name": column.workload,
        "workload.limit": column.limit,
        "workload.options": column.workload_options(target),
        "drafters": [BASELINE, *drafters],
    }
    preset = load_config(flags=base)
    wanted = load_config(assignments=request.assignments, flags={"workload.limit": request.limit}, base=_nested(preset))
    return wanted, differing_keys(_compared(preset), _compared(wanted))


def _most(ks: Sequence[int | str]) -> int:
    return max((k for k in ks if isinstance(k, int)), default=DecodeConfig().k)


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
        concurrency=wanted,
        requests_per_row=own.requests_per_row,
        requests_least=own.requests_least,
        passes=own.passes,
    )
