"""`run --backend sglang`, or another serving engine: the same rollouts and the same rows, decoded by its servers.

Each drafter is a **part**: a run folder of its own under `parts/`, measured on the servers that have this drafter. When
all parts are complete their rows are paired turn by turn and written as one run. A killed run is resumed part by part
and rollout by rollout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.config.backends import SERVED
from agentbench_spec.engine.machine import host_facts
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.provenance import make_manifest, write_json_atomic
from agentbench_spec.results.summary import Summary
from agentbench_spec.results.writer import RunWriter, refuse_early
from agentbench_spec.runs.execute import Finished
from agentbench_spec.runs.setup import Tell
from agentbench_spec.runs.source import Source, read_source
from agentbench_spec.serving import access, part
from agentbench_spec.serving.access import Connect
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.kvcost import Cost, draft_kv_costs
from agentbench_spec.serving.launch import launchables, launched
from agentbench_spec.serving.launchable import Launchable
from agentbench_spec.serving.live.live_traffic import read_tasks
from agentbench_spec.serving.paired_rows import pair_parts
from agentbench_spec.serving.refusals import refuse_settings, refuse_unequal
from agentbench_spec.serving.servers import Server, draft_config, refuse_unlike

SERVING = "serving.json"
_TRANSPORT = {"base_urls", "port", "start_timeout_s", "refused_grace_s", "request_timeout_s", "command"}
"""Settings that say how to reach a server, not what is measured: a resumed run may change them."""


@dataclass(frozen=True, slots=True)
class ServedRun(Finished):
    """What a finished run through servers leaves."""

    parts: dict[str, part.PartResult]
    costs: dict[str, list[Cost]] = field(default_factory=dict)
    card: None = None
    """The machine is the server's: nothing is measured on this one."""

    @property
    def notes(self) -> list[str]:
        """What the server side adds to the table on screen."""
        said = [line for result in self.parts.values() for line in result.lines()]
        return said + [
            f"{name}: draft-KV by {cost.method}: {cost.value:.4g} {cost.unit} ({cost.remark})"
            for name, costs in self.costs.items()
            for cost in costs
        ]


@dataclass(frozen=True, slots=True)
class Stage:
    """One drafter and the servers that have it; entering `servers` makes them reachable."""

    name: str
    servers: AbstractContextManager[list[Server]]
    count: int = 1
    """Servers that share the rollouts."""
    launches: bool = False
    """True if entering `servers` starts one."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is replayed, and the manifest of whoever replays it."""

    config: RunConfig
    source: Source
    manifest: Mapping[str, Any]


def run_served(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    argv: Sequence[str] | None = None,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
    tell: Tell = lambda line: None,
) -> ServedRun:
    """Replay the configured rollouts through the servers of `config.backend` and write the run folder.

    api_key: for the servers; None: the environment's OPENAI_API_KEY. Raises ConfigError for settings or servers that
    cannot be used, MeasurementError if all servers died (resume then) or the numbers are void.
    """
    environ = os.environ if environ is None else environ
    refuse_settings(config, environ)
    key = access.api_key(api_key, environ)
    refuse_early(folder, settings_of(config)[0], resume=resume)
    job = prepare(config, argv=argv, key=key, tell=tell)
    opened = RunWriter.resume if resume else RunWriter.create
    with opened(folder, job.manifest) as writer:
        tell(f"run folder: {folder}")
        results: dict[str, part.PartResult] = {}
        for stage in stages(config, folder, access.connector(config, key)):
            tell(f"{stage.name}: measuring")
            where = part_folder(folder, stage.name)
            if part.is_finished(where, job.source.rollouts):
                results[stage.name] = part.read_part(where)
                continue
            with stage.servers as servers:
                connect = access.connector(config, key)
                results[stage.name] = measure(job, stage.name, servers, connect, where, results.get(BASELINE))
        summary, costs = join(writer, config, results, folder)
    return ServedRun(folder, summary, read_run(folder)[1], results, costs)


def prepare(
    config: RunConfig, *, argv: Sequence[str] | None = None, key: str | None = None, tell: Tell = lambda line: None
) -> Job:
    """Load the rollouts, or list the tasks, and describe the measurement, the API key left out of it."""
    source = read_tasks(config, tell) if config.replay.history == "live" else read_source(config, tell=tell)
    settings, reach = settings_of(config)
    manifest = make_manifest(
        host=host_facts(),
        settings=settings,
        model={"target": settings["target"].get("source")},
        data=source.facts,
        argv=access.hide_key(sys.argv if argv is None else argv, key),
        packages=("httpx",),
    )
    return Job(config, source, {**manifest, "reach": reach})


def measure(
    job: Job,
    name: str,
    servers: Sequence[Server],
    connect: Connect,
    folder: Path,
    baseline: part.PartResult | None,
) -> part.PartResult:
    """What is missing of one drafter's part, on servers that are up. Raises as `measure_part` does."""
    if baseline is not None:
        refuse_unequal(baseline.resolved, servers[0])
    drafts = draft_config(servers[0], job.config.servers.draft_config)
    name_in_rows, rollouts = job.source.name, job.source.rollouts
    return part.measure_part(
        job.config, name_in_rows, rollouts, servers, connect, drafts, folder, job.manifest, baseline
    )


def join(
    writer: RunWriter, config: RunConfig, results: Mapping[str, part.PartResult], logs: Path
) -> tuple[Summary, dict[str, list[Cost]]]:
    """Write finished parts as one run: rows paired turn by turn, and what exists per server only beside them.

    logs: folder of the launched servers' output.
    """
    folder = writer.folder
    plain = results.get(BASELINE)
    costs = {name: draft_kv_costs(result, plain, log_of(logs, name)) for name, result in results.items()}
    pair_parts(writer, list(results.values()), {name: part_folder(folder, name) for name in results})
    write_json_atomic(folder / SERVING, _serving(results, costs))
    return writer.finish(include_degenerate=config.measure.include_degenerate), costs


def part_folder(folder: Path, name: str) -> Path:
    """Where the run of one drafter lies."""
    return folder / "parts" / name


def log_of(folder: Path, name: str) -> Path:
    """Output of the server that `--launch` started for one drafter."""
    return folder / f"server-{name}.log"


def settings_of(config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that decide what is measured, and those that only say how the servers are reached.

    A target and drafters that were not given are left out: the servers name theirs.
    """
    settings = config.model_dump(mode="json")
    for other in SERVED:
        if other != config.backend:
            settings.pop(other, None)
    reach = {name: settings[config.backend].pop(name) for name in sorted(_TRANSPORT)}
    if config.named_target is None:
        del settings["target"]["source"]
    if "drafters" not in config.model_fields_set:
        del settings["drafters"]
    return settings, reach


def stages(config: RunConfig, folder: Path, connect: Connect) -> Iterator[Stage]:
    """The drafters of a run in order, the baseline first."""
    if config.servers.launch:
        for drafter in launchables(config):
            yield Stage(drafter.name, _launching(drafter, config, folder, connect), launches=True)
        return
    for name, servers in by_drafter(describe_all(config, connect)).items():
        yield Stage(name, nullcontext(servers), sum(server.size for server in servers))


@contextmanager
def _launching(drafter: Launchable, config: RunConfig, folder: Path, connect: Connect) -> Iterator[list[Server]]:
    with launched(drafter, config, log_of(folder, drafter.name)) as base_url:
        server = describe(base_url, config, connect)
        if drafter.algorithm and server.told == BASELINE:
            raise ConfigError(f"{base_url}: launched for {drafter.name}, and the server says that nothing drafts in it")
        yield [replace(server, label=drafter.name)]


def describe_all(config: RunConfig, connect: Connect) -> list[Server]:
    """Every server named by URL, once it is ready. Raises ConfigError if one tells nothing and has no label."""
    servers = [describe(base_url, config, connect) for base_url in dict.fromkeys(config.servers.base_urls)]
    given = config.drafters if "drafters" in config.model_fields_set else ()
    named = [name.partition("=")[0] for name in given]
    untold = [server.base_url for server in servers if server.told is None]
    labels = dict(zip(untold, _labels(named, untold), strict=True)) if untold else {}
    likely = {server.base_url: name for server in servers for name in named if name in server.aliases}
    return [replace(server, label=(likely | labels).get(server.base_url)) for server in servers]


def _labels(named: Sequence[str], untold: Sequence[str]) -> Sequence[str]:
    """The drafters' names of servers that do not tell theirs: one for all, or as many as there are, in order."""
    for names in (named, [name for name in named if name != BASELINE]):
        if len(names) == 1:
            return [names[0]] * len(untold)
        if len(names) == len(untold):
            return names
    raise ConfigError(
        f"{untold[0]} does not say what drafts in it; name its drafter: --drafter NAME, once for all such "
        "servers or once for each in the order of their URLs"
    )


def describe(base_url: str, config: RunConfig, connect: Connect) -> Server:
    """One server's description of itself. Raises ConfigError if it is not there, not ready, or wants another key."""
    with connect(base_url) as client:
        client.wait_ready(config.servers.start_timeout_s, grace_s=config.servers.refused_grace_s)
        return engine_of(config.backend).describe(client)


def by_drafter(servers: Sequence[Server]) -> dict[str, list[Server]]:
    """Servers that share the rollouts, the baseline's first.

    Raises ConfigError if two servers of one drafter differ in what decides their numbers.
    """
    groups: dict[str, list[Server]] = {}
    for server in servers:
        groups.setdefault(server.drafter, []).append(server)
    for own in groups.values():
        for other in own[1:]:
            refuse_unlike(own[0], other)
    return dict(sorted(groups.items(), key=lambda item: item[0] != BASELINE))


def _serving(results: Mapping[str, part.PartResult], costs: Mapping[str, Sequence[Cost]]) -> dict[str, Any]:
    """What only exists per server or per window, and so stands in no row."""
    return {
        name: {
            "resolved": result.resolved,
            "windows": result.windows,
            "output_tokens_per_s": result.output_tokens_per_s,
            "prefix_reuse": result.reuse,
            "token_capacity": result.token_capacity,
            "draft_kv": [cost.as_dict() for cost in costs.get(name, ())],
        }
        for name, result in results.items()
    }
