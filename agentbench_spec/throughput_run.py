"""A throughput run from settings to a folder: every drafter at every concurrency, over the same rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentbench_spec import plugins
from agentbench_spec.config import RunConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.errors import ConfigError
from agentbench_spec.loop import Limits
from agentbench_spec.metrics import BASELINE
from agentbench_spec.presets import ThroughputPreset
from agentbench_spec.provenance import make_manifest, write_json_atomic
from agentbench_spec.render import Renderer, stop_ids
from agentbench_spec.rollout import Rollout
from agentbench_spec.run import Tell, load_target
from agentbench_spec.runfolder import MANIFEST, now, read_manifest
from agentbench_spec.source import data_facts, file_name, load_rollouts, open_workload
from agentbench_spec.target import Target
from agentbench_spec.throughput import Request, Server, free_memory_bytes, row_bytes, rows_that_fit
from agentbench_spec.throughput_rows import ThroughputRow, append_row, by_pass, drop_torn_line, fill, read_rows

_WARM_UP_TOKENS = 64


def settings_of(config: RunConfig, plan: ThroughputPreset) -> dict[str, Any]:
    """The settings of a throughput run, as its manifest holds them."""
    chosen = {name: getattr(plan, name) for name in ("requests_per_row", "requests_least")}
    return {**config.model_dump(mode="json"), "throughput": {"concurrency": list(plan.concurrency), **chosen}}


def run_throughput(
    config: RunConfig, plan: ThroughputPreset, folder: Path, tell: Tell = lambda line: None
) -> list[ThroughputRow]:
    """Measure what the folder does not hold yet and return all its rows.

    Raises ConfigError for settings that cannot be used, and if not even one row fits into memory.
    """
    if config.decode.temperature or config.decode.mode != "generate" or config.replay.history != "recorded":
        raise ConfigError("throughput is measured greedily, in mode generate, over recorded history: set them so")
    if config.measure.threads:
        torch.set_num_threads(config.measure.threads)
    workload = open_workload(config.workload.name, config.workload.options)
    limit = config.workload.limit or plan.requests(max(plan.concurrency))
    rollouts = load_rollouts(workload, limit=limit, seed=config.measure.seed)
    bench = _Bench.open(config, plan, rollouts, tell)
    manifest = make_manifest(
        settings=settings_of(config, plan), model=bench.provenance, data=data_facts(workload, rollouts)
    )
    _begin(folder, {"schema": 1, **manifest, "notes": bench.notes})
    done = by_pass(read_rows(folder))
    for concurrency in bench.concurrency:
        for name in dict.fromkeys((BASELINE, *config.drafters)):
            row = bench.blank(name, concurrency)
            if (row.drafter, concurrency) not in done:
                tell(f"{row.workload}: {row.drafter} at concurrency {concurrency}")
                _measure(bench, row, name, plan.requests(concurrency))
                append_row(folder, row)
    write_json_atomic(folder / MANIFEST, {**read_manifest(folder), "finished": now()})
    return read_rows(folder)


def _begin(folder: Path, manifest: dict[str, Any]) -> None:
    """Start the folder, or go on with it. Raises ConfigError if it holds another measurement."""
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json_atomic(folder / MANIFEST, manifest)
        return
    if read_manifest(folder).get("settings_digest") != manifest["settings_digest"]:
        raise ConfigError(f"{folder} was made with other settings, data or model; choose another folder")
    drop_torn_line(folder)


def _measure(bench: _Bench, row: ThroughputRow, name: str, requests: int) -> None:
    """Fill `row` by a pass; a drafter that fails leaves its error there, and the others go on."""
    try:
        drafter = bench.open_drafter(name, row.concurrency)
        work = bench.conversations[:requests]
        bench.warm_up(drafter, row.concurrency)
        server = Server(
            bench.target, drafter, bench.limits, rows=row.concurrency, chunk_tokens=bench.config.replay.chunk_tokens
        )
        fill(row, server.serve(work))
    except ConfigError:
        raise
    except Exception as error:
        if name == BASELINE:
            raise
        row.status, row.error = "error", f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class _Bench:
    """A target with as many rows as fit, and the rollouts as token ids."""

    config: RunConfig
    target: Target
    limits: Limits
    thinking: bool | None
    conversations: list[list[Request]]
    concurrency: list[int]
    provenance: dict[str, Any]
    notes: list[str]
    """Concurrencies that do not fit into memory."""

    @classmethod
    def open(cls, config: RunConfig, plan: ThroughputPreset, rollouts: Sequence[Rollout], tell: Tell) -> _Bench:
        wanted = config.target
        loaded, _ = load_target(wanted, tell)
        stop = stop_ids(loaded.tokenizer, loaded.model.generation_config)
        renderer = Renderer(loaded.tokenizer, config.replay.thinking, stop=stop)
        work = [list(_requests(renderer, rollout, config.replay.max_turns)) for rollout in rollouts]
        window = wanted.capacity_tokens or loaded.model.config.max_position_embeddings
        limits = Limits(config.decode.k, config.decode.max_new_tokens, frozenset(stop))
        capacity = min(window, max(len(r.prompt) for own in work for r in own) + limits.max_new_tokens)
        per_row = row_bytes(loaded.model.config, loaded.model.dtype, capacity + limits.k + 1, limits.k)
        fit, notes = rows_that_fit(sorted(plan.concurrency), per_row, free_memory_bytes(loaded.model.device))
        for note in notes:
            tell(note)
        if not fit:
            raise ConfigError(notes[0] if notes else "concurrency: name at least one")
        target = Target(loaded.model, name=loaded.name, capacity=capacity, rows=fit[-1], slack=limits.k + 1)
        target.self_check()
        return cls(config, target, limits, renderer.thinking, work, fit, loaded.provenance, notes)

    def blank(self, name: str, concurrency: int) -> ThroughputRow:
        """The row of a pass that was not run yet."""
        return ThroughputRow(
            target=self.target.info.name,
            workload=file_name(self.config.workload.name),
            drafter=name.partition("=")[0],
            k=self.limits.k,
            thinking=self.thinking,
            concurrency=concurrency,
        )

    def open_drafter(self, name: str, rows: int) -> Drafter:
        """The drafter, loaded anew, for so many rows."""
        options = self.config.drafter_options
        given = {**options.get(name.partition("=")[0], {}), **options.get(name, {})}
        drafter = plugins.load_drafter(name, **given)
        drafter.open(self.target.info, rows=rows, capacity=self.target.capacity + self.limits.k + 1)
        return drafter

    def warm_up(self, drafter: Drafter, rows: int) -> None:
        """One short batch over the starts of prompts: first calls compile, allocate and page in."""
        starts = [
            [Request(own[0].rollout, 0, own[0].prompt[:_WARM_UP_TOKENS])] for own in self.conversations[:rows] if own
        ]
        few = replace(self.limits, max_new_tokens=min(self.limits.max_new_tokens, 2 * (self.limits.k + 1)))
        Server(self.target, drafter, few, rows=rows).serve(starts)


def _requests(renderer: Renderer, rollout: Rollout, max_turns: int | None) -> Iterator[Request]:
    for turn, message in enumerate(rollout.decode_points()[:max_turns]):
        yield Request(rollout.id, turn, renderer.prompt(rollout, message))
