"""`reproduce --dry-run`: what each column of a table still takes, and what of it is there already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.reproduce.plan import Plan, Request, plan
from agentbench_spec.reproduce.reuse import data_is_absent, run_folder
from agentbench_spec.results.folder import completed_rollouts, finished_manifest
from agentbench_spec.runs.scale.dry_run import DryRun, dry_run
from agentbench_spec.runs.scale.footprint import Ask, ask_hub
from agentbench_spec.runs.scale.speeds import Speeds
from agentbench_spec.runs.setup import Tell
from agentbench_spec.runs.throughput import settings_of


@dataclass(frozen=True, slots=True)
class Ahead:
    """What one column still takes."""

    column: str
    folder: Path | None = None
    """Of its run, where the data can be had."""
    missing: str | None = None
    """Why it cannot be run."""
    finished: bool = False
    """The run is there and is reused."""
    dry: DryRun | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        own = {"column": self.column, "missing": self.missing, "finished": self.finished}
        where = {"run": str(self.folder) if self.folder else None}
        return {**own, **where, **(self.dry.as_dict() if self.dry else {})}


def columns_ahead(
    name: str, request: Request, speeds: Speeds | None, tell: Tell, *, ask: Ask = ask_hub
) -> Iterator[Ahead]:
    """Every column of a table, in order. Raises ConfigError for tables of which nothing can be told beforehand."""
    if request.servers is not None:
        raise ConfigError("--dry-run plans for our own engine: leave out the servers, or run table4 with --limit 1")
    wanted = plan(name, request)
    if wanted.preset.arms:
        raise ConfigError(
            f"--dry-run: {name} trains its drafters first, which takes most of its time; see docs/reproduce.md"
        )
    for column, config in wanted.columns:
        if absent := data_is_absent(config):
            yield Ahead(column.title, missing=absent)
            continue
        yield _ahead(column.title, config, wanted, request.results, speeds, tell, ask)


def _ahead(
    title: str, config: RunConfig, wanted: Plan, results: Path, speeds: Speeds | None, tell: Tell, ask: Ask
) -> Ahead:
    batched = wanted.name == "table4"
    settings = settings_of(config, wanted.throughput) if batched else config.model_dump(mode="json")
    folder = run_folder(results, settings)
    if finished_manifest(folder):
        return Ahead(title, folder, finished=True)
    if batched:
        return Ahead(title, folder, dry=_batched(config, wanted, tell, ask))
    return Ahead(title, folder, dry=dry_run(config, speeds, done=completed_rollouts(folder), ask=ask, tell=tell))


def _batched(config: RunConfig, wanted: Plan, tell: Tell, ask: Ask) -> DryRun:
    """The rollouts of the largest concurrency; speeds of single turns say nothing of a batch's time."""
    own = wanted.throughput
    most = config.workload.limit or own.requests(max(own.concurrency))
    workload = config.workload.model_copy(update={"limit": most})
    found = dry_run(config.model_copy(update={"workload": workload}), ask=ask, tell=tell)
    served = ", ".join(f"{own.requests(c)} at concurrency {c}" for c in own.concurrency)
    found.forecast.notes.append(
        f"served {own.passes} times by each method, rollouts: {served}; memory for the KV is that of one row; how long "
        "a batch takes does not follow from speeds of single turns"
    )
    return found
