"""`reproduce table4` with `--backend` of a serving engine: the throughput table of the paper, measured on servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.reproduce.mean_tau import mean_tau_table
from agentbench_spec.reproduce.plan import Plan, Request, ServersAsked, check_served, plan
from agentbench_spec.reproduce.reuse import data_is_absent, run_folder
from agentbench_spec.reproduce.table4 import throughput_table
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.tables import Table
from agentbench_spec.results.throughput.pass_rows import ThroughputRow
from agentbench_spec.runs.presets import ColumnPreset
from agentbench_spec.runs.setup import Tell
from agentbench_spec.serving import access
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.refusals import refuse_settings
from agentbench_spec.serving.served_run import describe_all, settings_of
from agentbench_spec.serving.sweep import Swept, sweep


def served_table4(name: str, request: Request, asked: ServersAsked, tell: Tell) -> tuple[Plan, list[Table], list[Path]]:
    """What was run, one table a workload, and the folders of their cells.

    Raises ConfigError for another table, for servers or settings that cannot be used, or if no workload can be had.
    """
    check_served(name)
    served, other = _named(request, asked)
    wanted = plan(name, served)
    wanted = replace(wanted, changed=[*wanted.changed, *other])
    if asked.launch and not [drafter for drafter in wanted.drafters if drafter not in wanted.missing]:
        raise ConfigError(
            f"no drafter has a checkpoint for {wanted.target}: give one, --drafter EAGLE3=FOLDER_OR_HUB_ID"
        )
    columns = [(column, _config(config, served, asked)) for column, config in wanted.columns]
    for line in (*_settings_lines(wanted, asked.backend), *(f"not the preset's: {key}" for key in wanted.changed)):
        tell(line)
    measured, absent = [], []
    for column, config in columns:
        if reason := data_is_absent(config):
            absent.append(f"{column.title}: not run: {reason}")
            tell(absent[-1])
            continue
        folder = run_folder(request.results, _digested(config, wanted))
        tell(f"{column.title}: {folder}")
        swept = sweep(config, folder, wanted.throughput, api_key=asked.api_key, environ=asked.environ, tell=tell)
        measured.append((column, folder, swept))
    if not measured:
        raise ConfigError(f"not one column of table4 can be run: {'; '.join(absent)}")
    done = _as_served(wanted, [swept for _, _, swept in measured], asked)
    if asked.launch and all(name in done.missing for name in done.drafters):
        raise MeasurementError("; ".join(f"{name}: {why}" for name, why in done.missing.items()))
    tables = [_table(done, column, swept, absent) for column, _, swept in measured]
    by_workload = [(column.title, swept.rows) for column, _, swept in measured]
    tables.append(mean_tau_table(f"{done.title}, served by {engine_of(asked.backend).title}", done, by_workload))
    return done, tables, [folder for _, folder, _ in measured]


def _named(request: Request, asked: ServersAsked) -> tuple[Request, list[str]]:
    """The request with the servers' target where none was given; and in words, where they serve another one."""
    lower = [word.partition("=") for word in request.drafters]
    named = replace(request, drafters=[f"{name.lower()}{sign}{draft}" for name, sign, draft in lower])
    if not asked.base_urls:
        return named, []
    probe = load_config(flags={"backend": asked.backend, "servers.base_urls": list(asked.base_urls), **_label(named)})
    refuse_settings(probe, asked.environ)
    key = access.api_key(asked.api_key, asked.environ)
    served = {server.target for server in describe_all(probe, access.connector(probe, key))}
    if request.target is None and (None in served or len(served) > 1):
        raise ConfigError(
            f"the servers name {len(served - {None})} models; name theirs with --target, for its tokenizer"
        )
    if request.target is None:
        return replace(named, target=str(served.pop())), []
    others = [path for path in served if path and Path(path).name.lower() != Path(request.target).name.lower()]
    return named, [f"target ({request.target}, the servers say {path})" for path in others]


def _label(request: Request) -> dict[str, Any]:
    return {"drafters": list(request.drafters)} if request.drafters else {}


def _config(config: RunConfig, request: Request, asked: ServersAsked) -> RunConfig:
    """The column's settings for servers; those given by URL name their drafters themselves."""
    tree = config.model_dump(mode="json")
    tree["backend"] = asked.backend
    tree["drafter_options"] = {name.lower(): own for name, own in config.drafter_options.items()}
    tree.setdefault(asked.backend, {})
    tree[asked.backend] |= {"base_urls": list(asked.base_urls), "launch": asked.launch}
    if asked.launch:
        tree["drafter_options"] |= _chains(config, tree["drafter_options"], asked.backend)
    else:
        del tree["drafters"]
        tree |= _label(request)
    return RunConfig.model_validate(tree)


def _chains(config: RunConfig, given_options: Mapping[str, dict[str, Any]], backend: str) -> dict[str, dict[str, Any]]:
    """The table's K as options of the algorithms that take it, where none of these options was given."""
    k = config.decode.k
    found = {}
    for name in (given.partition("=")[0] for given in config.drafters):
        own = given_options.get(name, {})
        options = engine_of(backend).chain(name, k)
        if options and not options.keys() & own.keys():
            found[name] = {**own, **options}
    return found


def _digested(config: RunConfig, wanted: Plan) -> dict[str, Any]:
    """What names the folder: not the concurrencies, whose cells stand alone, and not how servers are reached."""
    settings = settings_of(config)[0]
    requests = {name: getattr(wanted.throughput, name) for name in ("requests_per_row", "requests_least")}
    return {**settings, "target": {"source": wanted.target, **settings["target"]}, "throughput": requests}


def _settings_lines(wanted: Plan, backend: str) -> list[str]:
    kept = [line for line in wanted.settings_lines if not line.startswith("left open by the paper: engine:")]
    return [*kept, f"left open by the paper: engine: {engine_of(backend).title}, as started here or as the servers say"]


def _as_served(wanted: Plan, swept: Sequence[Swept], asked: ServersAsked) -> Plan:
    """The plan with the drafters that servers really had, and where they left the preset's K."""
    rows = [row for own in swept for row in own.rows if row.drafter != BASELINE]
    found = list(dict.fromkeys(row.drafter for row in rows))
    failed = {name: why for own in swept for name, why in own.failed.items()}
    drafters = list(dict.fromkeys([*found, *wanted.drafters]))
    absent = {} if asked.base_urls else wanted.missing
    missing = {name: absent.get(name, "no server with it was given") for name in drafters if name not in found}
    return replace(
        wanted,
        drafters=drafters,
        missing={**missing, **failed},
        changed=[*wanted.changed, *_other_k(rows, wanted)],
        settings_lines=_settings_lines(wanted, asked.backend),
        backend=asked.backend,
    )


def _other_k(rows: Sequence[ThroughputRow], wanted: Plan) -> list[str]:
    k = wanted.columns[0][1].decode.k
    return list(dict.fromkeys(f"k of {row.drafter} ({k} -> {row.k})" for row in rows if row.k != k))


def _table(done: Plan, column: ColumnPreset, swept: Swept, absent: Sequence[str]) -> Table:
    standin = "a generated stand-in for " if column.standin else ""
    return throughput_table(
        f"{done.title}, served by {engine_of(done.backend).title}: {standin}{column.title}",
        column.paper_workload,
        swept.rows,
        done.drafters,
        done.throughput.concurrency,
        done.preset.figures,
        target=done.target,
        paper_target=done.paper_target,
        comparable=done.comparable and not column.standin,
        missing=done.missing,
        notes=[*_failures(swept), *_shared(swept.rows), *swept.notes, *absent],
    )


def _failures(swept: Swept) -> list[str]:
    return [f"{name}: failed: {why}" for name, why in swept.failed.items()]


def _shared(rows: Sequence[ThroughputRow]) -> list[str]:
    several = {row.drafter: row.servers for row in rows if (row.servers or 1) > 1}
    return [f"{name}: {count} servers shared the rollouts, each at this concurrency" for name, count in several.items()]
