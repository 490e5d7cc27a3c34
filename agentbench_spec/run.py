"""A run from settings to a finished folder: load, warm up, replay every rollout, write rows, sum up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from agentbench_spec import embedded, linear, models, plugins
from agentbench_spec.card import Card, measure_card
from agentbench_spec.config import RunConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.errors import ConfigError
from agentbench_spec.loop import Limits
from agentbench_spec.metrics import BASELINE
from agentbench_spec.provenance import make_manifest
from agentbench_spec.render import Renderer, stop_ids
from agentbench_spec.replay import Replayer
from agentbench_spec.rollout import FileWorkload, Rollout, Workload
from agentbench_spec.rows import Conditions
from agentbench_spec.runfolder import RunWriter
from agentbench_spec.sampling import Sampling
from agentbench_spec.session import Session
from agentbench_spec.summary import Summary
from agentbench_spec.target import Target
from agentbench_spec.timing import Stopwatch, resolve_mode


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run leaves."""

    folder: Path
    summary: Summary
    card: Card
    lossless: bool
    """False if any greedy output differed from the baseline by more than a tie: the run is void."""


def run(config: RunConfig, folder: Path, *, resume: bool = False, argv: Sequence[str] | None = None) -> Outcome:
    """Replay the configured rollouts and write the run folder.

    Raises ConfigError for anything in the settings, the data or the folder that cannot be used.
    """
    if config.measure.threads:
        torch.set_num_threads(config.measure.threads)
    workload = open_workload(config.workload.name, config.workload.options)
    rollouts = list(workload.rollouts(limit=config.workload.limit, seed=config.measure.seed))
    if not rollouts:
        raise ConfigError(f"workload {config.workload.name!r} gave no rollouts")
    bench = Bench.open(config)
    card = measure_card(bench.target)
    manifest = make_manifest(
        settings=config.model_dump(mode="json"),
        model={**bench.provenance, "drafters": {name: d.spec.version for name, d in bench.drafters.items()}},
        data={"rollouts": len(rollouts), "sha256": _digest(rollouts)},
        argv=argv,
    )
    manifest |= {"card": card.as_dict(), "kernels": bench.kernels, "warm_up_s": bench.warm_up(rollouts[0])}
    opened = RunWriter.resume if resume else RunWriter.create
    with opened(folder, manifest) as writer:
        for rollout in _progress([r for r in rollouts if r.id not in writer.completed], len(rollouts)):
            _replay_into(writer, bench.replayer, rollout, rounds=config.measure.rounds)
        summary = writer.finish(include_degenerate=config.measure.include_degenerate, seed=config.measure.seed)
    return Outcome(folder, summary, card, all(d.losslessness.errors == 0 for d in summary.drafters))


def open_workload(name: str, options: Mapping[str, Any]) -> Workload:
    """The workload called `name`: a rollouts file where the name is one, else a plugin made with `options`."""
    if is_file(name):
        if options:
            raise ConfigError(f"{name} is a rollouts file; options apply to installed workloads only")
        return FileWorkload(Path(name))
    return plugins.load_workload(name, **options)


def is_file(workload: str) -> bool:
    """True if a workload's name is that of a rollouts file."""
    return workload.endswith((".jsonl", ".jsonl.gz"))


@dataclass(frozen=True, slots=True)
class Bench:
    """Target, drafters and replayer, loaded and ready."""

    target: Target
    drafters: dict[str, Drafter]
    renderer: Renderer
    replayer: Replayer
    kernels: dict[str, Any]
    provenance: dict[str, Any]

    @classmethod
    def open(cls, config: RunConfig) -> Bench:
        """Load what the settings name. Raises ConfigError for what cannot be loaded or does not fit together."""
        drafters = _load_drafters(config)
        wanted = config.target
        loaded = models.load(wanted.source, dtype=wanted.dtype, device=wanted.device, revision=wanted.revision)
        kernels = linear.accelerate(loaded.model, embedded.cache_root()) if wanted.fast_linears else {}
        capacity = wanted.capacity_tokens or loaded.model.config.max_position_embeddings
        target = Target(loaded.model, name=loaded.name, capacity=capacity, slack=config.decode.k + 1)
        target.self_check()
        for drafter in drafters.values():
            drafter.open(target.info, rows=1, capacity=capacity + config.decode.k + 1)
        stop = stop_ids(loaded.tokenizer, loaded.model.generation_config)
        renderer = Renderer(loaded.tokenizer, config.replay.thinking, stop=stop)
        conditions = _conditions(config, frozenset(stop), renderer.thinking, target)
        name = Path(config.workload.name).name if is_file(config.workload.name) else config.workload.name
        return cls(
            target=target,
            drafters=drafters,
            renderer=renderer,
            replayer=Replayer(target, drafters, renderer, conditions, name),
            kernels={shape: choice.as_dict() for shape, choice in kernels.items()},
            provenance=loaded.provenance,
        )

    def warm_up(self, rollout: Rollout, tokens: int = 64) -> dict[str, float]:
        """Run every decoder once over the start of a prompt, at the shapes of the run; seconds per drafter.

        First calls compile, allocate and page in; none of that belongs to a turn.
        """
        prompt = self.renderer.prompt(rollout, rollout.decode_points()[0])[:tokens]
        spent_s = {}
        for name, drafter in self.drafters.items():
            with Stopwatch(self.target.info.device) as watch:
                session = Session(self.target, {name: drafter}, chunk_tokens=self.replayer.conditions.chunk_tokens)
                self.replayer.rehearse(session, rollout, name, prompt)
                session.reset()
            spent_s[name] = round(watch.seconds, 6)
        return spent_s


def _load_drafters(config: RunConfig) -> dict[str, Drafter]:
    names = list(dict.fromkeys(name.partition("=")[0] for name in config.drafters))
    unused = sorted(set(config.drafter_options) - set(names))
    if unused:
        raise ConfigError(f"drafter_options.{unused[0]}: no such drafter in this run ({', '.join(names)})")
    drafters: dict[str, Drafter] = {}
    for given in dict.fromkeys((BASELINE, *config.drafters)):
        base = given.partition("=")[0]
        drafter = plugins.load_drafter(given, **config.drafter_options.get(base, {}))
        label = base if base not in drafters else given
        drafters[label] = drafter
    return drafters


def _conditions(config: RunConfig, stop: frozenset[int], thinking: bool | None, target: Target) -> Conditions:
    decode, replay, measure = config.decode, config.replay, config.measure
    return Conditions(
        limits=Limits(decode.k, decode.max_new_tokens, stop),
        sampling=Sampling(decode.temperature, decode.top_k, decode.top_p),
        decode_mode=decode.mode,
        history_mode=replay.history,
        prefix_mode=replay.prefix,
        thinking=thinking,
        clock=resolve_mode(measure.clock, target.info.device),
        seed=measure.seed,
        chunk_tokens=replay.chunk_tokens,
        max_turns=replay.max_turns,
        tie_tolerance=measure.tie_tolerance,
    )


def _replay_into(writer: RunWriter, replayer: Replayer, rollout: Rollout, *, rounds: bool) -> None:
    """Replay one rollout and declare it complete, failed or not: a failed one is not tried again on resume."""
    failure: str | None = None
    for measured in replayer.replay(rollout):
        writer.turn(measured.rows, measured.rounds if rounds else ())
        failure = failure or next((row.error for row in measured.rows if row.status == "error"), None)
    writer.rollout_done(rollout.id, status="error" if failure else "ok", error=failure)


def _progress(rollouts: Sequence[Rollout], total: int) -> Iterable[Rollout]:
    return tqdm(rollouts, total=total, initial=total - len(rollouts), desc="rollouts", unit="rollout")


def _digest(rollouts: Iterable[Rollout]) -> str:
    sha = hashlib.sha256()
    for rollout in rollouts:
        sha.update(rollout.model_dump_json().encode())
    return sha.hexdigest()
