"""A run from settings to a finished folder: load, warm up, replay every rollout, write rows, sum up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agentbench_spec import embedded, linear, models, plugins
from agentbench_spec.card import Card, measure_card
from agentbench_spec.config import RunConfig, TargetConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.errors import ConfigError, unknown_name
from agentbench_spec.loop import Limits
from agentbench_spec.metrics import BASELINE
from agentbench_spec.progress import Progress
from agentbench_spec.provenance import make_manifest
from agentbench_spec.records import TurnRow
from agentbench_spec.render import Renderer, stop_ids
from agentbench_spec.replay import Replayer, rehearsal_tokens
from agentbench_spec.rollout import Rollout, Workload
from agentbench_spec.rows import Conditions
from agentbench_spec.runfolder import RunWriter, read_run, refuse_early
from agentbench_spec.sampling import Sampling
from agentbench_spec.session import Session
from agentbench_spec.source import data_facts, file_name, is_file, load_rollouts, open_workload
from agentbench_spec.summary import Summary
from agentbench_spec.target import Target
from agentbench_spec.timing import Stopwatch, resolve_mode

Tell = Callable[[str], None]
"""Takes one line for the screen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run leaves."""

    folder: Path
    summary: Summary
    card: Card
    rows: list[TurnRow]
    notes: list[str]
    """What was bent or left out on the way, in words."""

    @property
    def lossless(self) -> bool | None:
        """False if a greedy output differed from the baseline by more than a tie: a void run. None: not compared."""
        return lossless(self.summary)

    @property
    def measured(self) -> bool:
        """False if not one turn was decoded: there is nothing to read in the run."""
        return measured(self.rows)


def measured(rows: Iterable[TurnRow]) -> bool:
    """True if at least one turn was decoded."""
    return any(row.status == "ok" for row in rows)


def failed_drafters(rows: Iterable[TurnRow]) -> list[str]:
    """Drafters of which not one turn was decoded, because they failed."""
    rows = list(rows)
    ok = {row.drafter for row in rows if row.status == "ok"}
    return sorted({row.drafter for row in rows if row.status == "error"} - ok)


def lossless(summary: Summary) -> bool | None:
    """False if any drafter's output is an error, None if none was compared with the baseline (sampling, no drafter)."""
    found = [own.losslessness for own in summary.drafters if own.drafter != BASELINE and own.losslessness.compared]
    return all(each.errors == 0 for each in found) if found else None


def reasons(rows: Iterable[TurnRow], most: int = 5) -> list[str]:
    """Why turns were not measured: an example of each kind of reason with the drafters and rows it stands for."""
    kinds: dict[tuple[str, str], list[TurnRow]] = {}
    for row in rows:
        if row.status != "ok":
            kinds.setdefault((row.status, re.sub(r"[\d,]+", "#", row.error or "")), []).append(row)
    lines = [
        f"{status}: {' '.join((same[0].error or '').split())} ({same[0].rollout} turn {same[0].turn}; "
        f"{len(same)} rows, {', '.join(dict.fromkeys(row.drafter for row in same))})"
        for (status, _), same in kinds.items()
    ]
    return lines[:most] + ([f"{len(lines) - most} more kinds of reason in the rows"] if len(lines) > most else [])


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    argv: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
) -> Outcome:
    """Replay the configured rollouts and write the run folder.

    tell: takes the lines that say what is going on. Raises ConfigError for anything in the settings, the data or the
    folder that cannot be used; what can be seen without the model is refused before it is loaded.
    """
    settings = config.model_dump(mode="json")
    refuse_early(folder, settings, resume=resume)
    if config.measure.threads:
        torch.set_num_threads(config.measure.threads)
    given = config.workload
    workload = open_workload(given.name, given.options, lenient=given.lenient, target=config.target.source)
    rollouts = load_rollouts(workload, limit=config.workload.limit, seed=config.measure.seed)
    data = data_facts(workload, rollouts)
    for left_out in data["left_out"]:
        tell(f"left out: {left_out}")
    bench = Bench.open(config, tell, workload=_row_name(config.workload.name, workload))
    card = measure_card(bench.target)
    for line in card.lines(()):
        tell(line)
    manifest = make_manifest(
        settings=settings,
        model={**bench.provenance, "drafters": {name: d.spec.version for name, d in bench.drafters.items()}},
        data=data,
        argv=argv,
    )
    manifest |= {"card": card.as_dict(), "kernels": bench.kernels, "warm_up_s": bench.warm_up(rollouts)}
    opened = RunWriter.resume if resume else RunWriter.create
    with opened(folder, manifest) as writer:
        tell(f"run folder: {folder}")
        _replay_all(writer, bench.replayer, rollouts, config)
        notes = list(dict.fromkeys([*writer.manifest.get("notes", []), *bench.renderer.notes]))
        writer.manifest["notes"] = notes
        summary = writer.finish(include_degenerate=config.measure.include_degenerate, seed=config.measure.seed)
    return Outcome(folder, summary, card, read_run(folder)[1], [*map("left out: {}".format, data["left_out"]), *notes])


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
    def open(cls, config: RunConfig, tell: Tell = lambda line: None, *, workload: str | None = None) -> Bench:
        """Load what the settings name; workload: its name in the rows, None: as the settings have it.

        Raises ConfigError for what cannot be loaded or does not fit together.
        """
        drafters = _load_drafters(config)
        wanted = config.target
        loaded, kernels = load_target(wanted, tell)
        capacity = _capacity(config, loaded.model.config.max_position_embeddings)
        target = _fit(loaded, capacity, slack=config.decode.k + 1)
        target.self_check()
        for name, drafter in drafters.items():
            drafter.open(target.info, rows=1, capacity=capacity + config.decode.k + 1)
            for network in drafter.networks() if wanted.fast_linears else ():
                kernels[name] = _accelerated(network)
        stop = stop_ids(loaded.tokenizer, loaded.model.generation_config)
        renderer = Renderer(loaded.tokenizer, config.replay.thinking, stop=stop)
        conditions = _conditions(config, frozenset(stop), renderer.thinking, target)
        return cls(
            target=target,
            drafters=drafters,
            renderer=renderer,
            replayer=Replayer(target, drafters, renderer, conditions, workload or file_name(config.workload.name)),
            kernels=kernels,
            provenance=loaded.provenance,
        )

    def warm_up(self, rollouts: Sequence[Rollout], tokens: int = 64) -> dict[str, float | None]:
        """Run every decoder once over the start of a prompt, at the shapes of the run; seconds per drafter.

        First calls compile, allocate and page in; none of that belongs to a turn. None: the drafter failed, which its
        rows will tell. Raises ConfigError if not one rollout can be rendered.
        """
        rollout, prompt = self._first_prompt(rollouts)
        room = self.target.capacity - rehearsal_tokens(self.replayer.conditions.limits)
        return {name: self._rehearse(name, rollout, prompt[: min(tokens, room)]) for name in self.drafters}

    def _first_prompt(self, rollouts: Sequence[Rollout]) -> tuple[Rollout, list[int]]:
        reason: Exception = ConfigError("no rollout has a message to decode")
        for rollout in (r for r in rollouts if r.decode_points()):
            try:
                return rollout, self.renderer.prompt(rollout, rollout.decode_points()[0])
            except Exception as error:  # one bad rollout becomes a row; only if all are bad there is nothing to run
                reason = error
        raise ConfigError(f"none of the {len(rollouts)} rollouts can be replayed; the last one: {reason}")

    def _rehearse(self, name: str, rollout: Rollout, prompt: Sequence[int]) -> float | None:
        limit = self.drafters[name].spec.max_positions
        if limit is not None:
            prompt = prompt[: max(1, limit - rehearsal_tokens(self.replayer.conditions.limits))]
        try:
            with Stopwatch(self.target.info.device) as watch:
                session = Session(self.target, {name: self.drafters[name]}, chunk_tokens=len(prompt))
                self.replayer.rehearse(session, rollout, name, prompt)
                session.reset()
        except Exception:
            if name == BASELINE:
                raise
            return None
        return round(watch.seconds, 6)


def _row_name(given: str, workload: Workload) -> str:
    """A file's name; an installed workload's own, since a stand-in must not pass for what it stands in for."""
    return file_name(given) if is_file(given) or ":" in given else workload.name


def _capacity(config: RunConfig, window: int) -> int:
    """Tokens to allocate for. Raises ConfigError if they are beyond the window or leave no room for a reply."""
    wanted = config.target.capacity_tokens
    if wanted is not None and wanted > window and config.target.beyond_window == "refuse":
        raise ConfigError(
            f"target.capacity_tokens={wanted} is beyond the model's window of {window} tokens; for longer contexts set "
            "target.rope_scaling.factor (YaRN), or target.beyond_window=flag to measure and label them"
        )
    capacity = wanted or window
    if capacity <= config.decode.max_new_tokens:
        raise ConfigError(
            f"decode.max_new_tokens={config.decode.max_new_tokens} leaves no room for a prompt in {capacity} tokens "
            f"({'target.capacity_tokens' if wanted else 'the window of the model'}); lower it"
        )
    return capacity


def _fit(loaded: models.LoadedModel, capacity: int, *, slack: int) -> Target:
    try:
        return Target(loaded.model, name=loaded.name, capacity=capacity, slack=slack)
    except RuntimeError as error:  # torch's word for "out of memory", on every device
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the KV cache for {capacity} tokens cannot be allocated: {reason}; set target.capacity_tokens lower"
        ) from error


def _load_drafters(config: RunConfig) -> dict[str, Drafter]:
    """Label -> drafter, the baseline first. A label is the short name, unless several checkpoints share it."""
    given = list(dict.fromkeys((BASELINE, *config.drafters)))
    shared = Counter(name.partition("=")[0] for name in given)
    for name in config.drafter_options:
        if name not in {*given, *shared}:
            raise unknown_name("drafter in drafter_options:", name, {*given, *shared})
    drafters: dict[str, Drafter] = {}
    for name in given:
        base = name.partition("=")[0]
        options = {**config.drafter_options.get(base, {}), **config.drafter_options.get(name, {})}
        if "=" not in name and "checkpoint" not in options:
            options |= embedded.shipped_drafter(name, config.target.source)
        drafters[base if shared[base] == 1 else name] = plugins.load_drafter(name, **options)
    return drafters


def load_target(
    wanted: TargetConfig, tell: Tell = lambda line: None
) -> tuple[models.LoadedModel, dict[str, dict[str, Any]]]:
    """Load the configured target, with the fastest linears if asked for; and the kernels in use, by network.

    Raises ConfigError if it cannot be loaded.
    """
    tell(f"loading {wanted.source}")
    loaded = models.load(
        wanted.source,
        dtype=wanted.dtype,
        device=wanted.device,
        revision=wanted.revision,
        rope_scaling=wanted.rope_scaling.model_dump() if wanted.rope_scaling else None,
    )
    return loaded, {wanted.source: _accelerated(loaded.model)} if wanted.fast_linears else {}


def _accelerated(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Give a network the fastest linears; what was chosen for each weight shape, for the manifest."""
    return {shape: choice.as_dict() for shape, choice in linear.accelerate(model, embedded.cache_root()).items()}


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
        beyond_window=config.target.beyond_window,
    )


def _replay_all(writer: RunWriter, replayer: Replayer, rollouts: Sequence[Rollout], config: RunConfig) -> None:
    turns = {rollout.id: len(rollout.decode_points()[: config.replay.max_turns]) for rollout in rollouts}
    with Progress(turns, done=writer.completed) as progress:
        replayer.told = progress.doing
        for rollout in rollouts:
            if rollout.id not in writer.completed:
                with progress.rollout(rollout.id):
                    _replay_into(writer, replayer, rollout, progress, rounds=config.measure.rounds)


def _replay_into(writer: RunWriter, replayer: Replayer, rollout: Rollout, progress: Progress, *, rounds: bool) -> None:
    """Replay one rollout and declare it complete, failed or not: a failed one is not tried again on resume."""
    if not rollout.decode_points():
        writer.rollout_done(rollout.id, status="empty", error="no assistant message after another message")
        return
    failure: str | None = None
    for turn in replayer.replay(rollout):
        writer.turn(turn.rows, turn.rounds if rounds else ())
        progress.turn(turn.rows)
        failure = failure or next((row.error for row in turn.rows if row.status == "error"), None)
    writer.rollout_done(rollout.id, status="error" if failure else "ok", error=failure)
