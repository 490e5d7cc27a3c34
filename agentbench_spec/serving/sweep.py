"""Throughput over concurrency through servers: a part a (drafter, concurrency) cell, kept once it is finished.

cNNN/parts/NAME/     the run of one drafter at concurrency NNN
cNNN/                the parts of all drafters at NNN, paired turn by turn: a run folder like any other
throughput.jsonl     a line a cell, as the table over concurrency takes it
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import AgentBenchError, ConfigError
from agentbench_spec.results.folder import (
    MANIFEST,
    PARQUET,
    ROLLOUTS,
    SUMMARY,
    TURNS,
    finished_manifest,
    now,
    read_manifest,
)
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.provenance import differing_keys, write_json_atomic
from agentbench_spec.results.rows import SCHEMA
from agentbench_spec.results.throughput.pass_rows import ROWS, ThroughputRow, by_pass, read_rows, row_text
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.runs.presets import ThroughputPreset
from agentbench_spec.runs.setup import Tell
from agentbench_spec.serving import access, part
from agentbench_spec.serving.client import Unauthorised
from agentbench_spec.serving.kvcost import capacity_lines
from agentbench_spec.serving.passes import served_pass
from agentbench_spec.serving.refusals import refuse_settings
from agentbench_spec.serving.served_run import SERVING, Job, Stage, join, measure, part_folder, prepare, stages
from agentbench_spec.serving.servers import Server, draft_config
from agentbench_spec.writing import write_bytes


@dataclass(frozen=True, slots=True)
class Swept:
    """What is measured of a sweep."""

    rows: list[ThroughputRow]
    """A row a cell, by concurrency, the baseline first."""
    failed: Mapping[str, str]
    """Drafter -> why cells of it are missing; they are tried again by the next sweep."""
    notes: list[str]
    """What is odd about cells, and how many tokens each server has room for, in words."""


def sweep(
    config: RunConfig,
    folder: Path,
    plan: ThroughputPreset,
    *,
    argv: Sequence[str] | None = None,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
    tell: Tell = lambda line: None,
) -> Swept:
    """Measure the cells that `folder` lacks and return all of them.

    A launched server serves all concurrencies of its drafter. A drafter whose server does not start or dies leaves its
    cells missing, and the others go on. Raises ConfigError for settings or servers that cannot be used, if there is no
    baseline, or if a finished cell was measured under other settings; MeasurementError if the baseline fails.
    """
    environ = os.environ if environ is None else environ
    if config.replay.history == "live":
        raise ConfigError(
            "replay.history=live: servers of a throughput must be asked for one text by all drafters; leave it out"
        )
    refuse_settings(at(config, plan, max(plan.concurrency), 1), environ)
    key = access.api_key(api_key, environ)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(stages(config, folder, access.connector(config, key)))
    servers = max(stage.count for stage in wanted)
    jobs = {c: prepare(at(config, plan, c, servers), argv=argv, key=key) for c in sorted(plan.concurrency)}
    cells = _Cells(folder, jobs, key, tell)
    if wanted[0].name != BASELINE and any(not cells.finished(BASELINE, c) for c in jobs):
        raise ConfigError("no server here is without speculation: measure the baseline first, or give its URL too")
    _refuse_early(wanted, jobs[max(jobs)])
    for stage in wanted:
        cells.measure(stage)
    return cells.result()


def _refuse_early(wanted: Sequence[Stage], largest: Job) -> None:
    """Raises ConfigError for running servers that will not do at the largest concurrency, which comes last."""
    for stage in wanted:
        if not stage.launches:
            with stage.servers as servers:
                for server in servers:
                    draft = draft_config(server, largest.config.servers.draft_config)
                    server.refuse(largest.config, largest.source.rollouts, draft)


def at(config: RunConfig, plan: ThroughputPreset, concurrency: int, servers: int) -> RunConfig:
    """The settings of one concurrency: as many rollouts as the plan has for all rows of all servers."""
    requests = plan.requests(concurrency * servers)
    limit = min(config.workload.limit or requests, requests)
    update = {
        config.backend: config.servers.model_copy(update={"concurrency": concurrency}),
        "workload": config.workload.model_copy(update={"limit": limit}),
    }
    return config.model_copy(update=update)


class _OtherCell(ConfigError):
    """A finished cell is not what would be measured now."""


@dataclass(slots=True)
class _Cells:
    """The cells of one folder."""

    folder: Path
    jobs: Mapping[int, Job]
    key: str | None
    tell: Tell
    failed: dict[str, str] = field(default_factory=dict)

    def where(self, name: str, concurrency: int) -> Path:
        return part_folder(self._run(concurrency), name)

    def _run(self, concurrency: int) -> Path:
        return self.folder / f"c{concurrency:03d}"

    def finished(self, name: str, concurrency: int) -> bool:
        """True if the cell needs no server. Raises ConfigError if it was measured under other settings, or data."""
        where, job = self.where(name, concurrency), self.jobs[concurrency]
        if not (manifest := finished_manifest(where)):
            return False
        what = ("settings", "data")
        self._refuse_unlike(where, {n: manifest[n] for n in what}, {n: job.manifest[n] for n in what})
        return True

    def _refuse_unlike(self, where: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        if unlike := differing_keys(old, json.loads(json.dumps(new))):
            raise _OtherCell(
                f"{where} was measured under other settings: {', '.join(unlike)}; remove {self.folder}, or use another"
            )

    def measure(self, stage: Stage) -> None:
        """The missing cells of one drafter, on one start of its server.

        Raises if the baseline fails, if a key is refused, or if what is kept came from another server.
        """
        kept = [c for c in self.jobs if self.finished(stage.name, c)]
        missing = [c for c in self.jobs if c not in kept]
        if kept:
            self.tell(f"{stage.name}: kept at concurrency {', '.join(map(str, kept))}")
        if not missing and stage.launches:
            return
        try:
            with stage.servers as servers:
                for concurrency in kept:
                    where = self.where(stage.name, concurrency)
                    self._refuse_unlike(where, read_manifest(where)["model"]["server"], servers[0].resolved())
                for concurrency in missing:
                    self._measure(stage.name, concurrency, servers)
        except AgentBenchError as error:
            yours = isinstance(error, Unauthorised | _OtherCell)
            yours = yours or (isinstance(error, ConfigError) and not stage.launches)
            if stage.name == BASELINE or yours:
                raise
            self.failed[stage.name] = str(error)
            self.tell(f"{stage.name}: {error}")

    def _measure(self, name: str, concurrency: int, servers: Sequence[Server]) -> None:
        where, job = self.where(name, concurrency), self.jobs[concurrency]
        if where.exists():  # a throughput has no meaning across a restart
            shutil.rmtree(where)
        self.tell(f"{name} at concurrency {concurrency}: {len(job.source.rollouts)} rollouts")
        baseline = None if name == BASELINE else part.read_part(self.where(BASELINE, concurrency))
        measure(job, name, servers, access.connector(job.config, self.key), where, baseline)

    def result(self) -> Swept:
        """All finished cells, also of servers that are not there any more."""
        rows, notes = [], []
        for concurrency, job in self.jobs.items():
            results = {name: part.read_part(self.where(name, concurrency)) for name in self._names(concurrency)}
            notes += [f"at concurrency {concurrency}: {line}" for own in results.values() for line in own.oddities()]
            rows += [served_pass(own, concurrency) for own in results.values()]
            self._join(concurrency, job, results)
        notes += capacity_lines(results)  # of one server at all concurrencies
        self._write(rows)
        self._describe(rows, notes)
        return Swept(rows, self.failed, notes)

    def _describe(self, rows: Sequence[ThroughputRow], notes: Sequence[str]) -> None:
        """The folder's manifest, for the page of a table. The machine in it is the client's, and is called so."""
        manifest = dict(self.jobs[max(self.jobs)].manifest)
        host = manifest.pop("host", None)
        ended = {} if self.failed else {"finished": now()}
        own = {"client_host": host, "card": {"target": rows[0].target}, "notes": list(notes)}
        write_json_atomic(self.folder / MANIFEST, {"schema": SCHEMA, **manifest, **own, **ended})

    def _write(self, rows: Sequence[ThroughputRow]) -> None:
        """Put the rows into the folder's file; those of concurrencies that were not asked for now stay there."""
        known = by_pass(read_rows(self.folder)) | by_pass(rows)
        lines = [row_text(known[key]) for key in sorted(known, key=lambda key: (key[1], key[0] != BASELINE, key))]
        write_bytes(self.folder / ROWS, "".join(lines).encode())

    def _names(self, concurrency: int) -> Iterator[str]:
        found = sorted(path.name for path in (self._run(concurrency) / "parts").iterdir())
        yield from (name for name in sorted(found, key=lambda n: n != BASELINE) if self.finished(name, concurrency))

    def _join(self, concurrency: int, job: Job, results: Mapping[str, part.PartResult]) -> None:
        folder = self._run(concurrency)
        for name in (MANIFEST, TURNS, ROLLOUTS, PARQUET, SUMMARY, SERVING):
            (folder / name).unlink(missing_ok=True)
        with RunWriter.create(folder, job.manifest) as writer:
            join(writer, job.config, results, self.folder)
