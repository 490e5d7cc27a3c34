"""A throughput run from settings to a folder: every drafter at every concurrency, over the same rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.batching import Pass, Request, Server, free_memory_bytes, row_bytes, rows_that_fit
from agentbench_spec.engine.machine import OtherWork, host_facts
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import clocks
from agentbench_spec.errors import ConfigError, caught, raise_interrupt
from agentbench_spec.results.folder import MANIFEST, now, read_manifest
from agentbench_spec.results.metrics import BASELINE, is_degenerate
from agentbench_spec.results.provenance import make_manifest, write_json_atomic
from agentbench_spec.results.throughput.pass_rows import (
    PassClock,
    ThroughputRow,
    append_row,
    by_pass,
    drop_torn_line,
    pass_of,
    read_rows,
)
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.runs.card import measure_card
from agentbench_spec.runs.contention import doubtful
from agentbench_spec.runs.fill import describe
from agentbench_spec.runs.graph_mode import capture_rounds, static_rounds
from agentbench_spec.runs.presets import ThroughputPreset
from agentbench_spec.runs.replay import rehearsal_tokens
from agentbench_spec.runs.setup import Setup, Tell, drafter_makers
from agentbench_spec.runs.source import Source, read_source

_WARM_UP_TOKENS = 64


def settings_of(config: RunConfig, plan: ThroughputPreset) -> dict[str, Any]:
    """The settings of a throughput run, as its manifest holds them."""
    chosen = {name: getattr(plan, name) for name in ("requests_per_row", "requests_least", "passes")}
    return {**config.model_dump(mode="json"), "throughput": {"concurrency": list(plan.concurrency), **chosen}}


def run_throughput(
    config: RunConfig, plan: ThroughputPreset, folder: Path, tell: Tell = lambda line: None
) -> list[ThroughputRow]:
    """Measure what the folder does not hold yet and return all its rows.

    Raises ConfigError for settings that cannot be used, and if not even one row fits into memory.
    """
    if not config.decode.greedy or config.decode.mode != "generate" or config.replay.history != "recorded":
        raise ConfigError("throughput is measured greedily, in mode generate, over recorded history: set them so")
    if config.decode.k_policy == "auto" or config.decode.sweep:
        raise ConfigError("throughput is measured at one k: set decode.k to a number, and no decode.sweep")
    source = read_source(config, limit=plan.requests(max(plan.concurrency)), tell=tell)
    bench = _Bench.open(config, plan, source, tell)
    tried = bench.try_drafters()
    for note in bench.notes:
        tell(note)
    model = {**bench.setup.loaded.provenance, "drafters": {name: each.version for name, each in tried.items()}}
    manifest = make_manifest(host=host_facts(), settings=settings_of(config, plan), model=model, data=source.facts)
    card = measure_card(bench.target).as_dict()
    _begin(folder, {"schema": 1, **manifest, "card": card, "kernels": bench.setup.kernels, "notes": bench.notes})
    done = by_pass(read_rows(folder))
    for row in _passes(bench, plan, tried):
        if pass_of(row) not in done:
            which = "phases" if row.clock == "attribution" else f"pass {row.repeat + 1} of {plan.passes}"
            tell(f"{row.workload}: {row.drafter} at concurrency {row.concurrency}, {which}")
            _measure(bench, row, plan.requests(row.concurrency))
            append_row(folder, row)
    write_json_atomic(folder / MANIFEST, {**read_manifest(folder), "finished": now()})
    return read_rows(folder)


def _passes(bench: _Bench, plan: ThroughputPreset, tried: Mapping[str, _Tried]) -> Iterator[ThroughputRow]:
    """The passes to run, in order: each round of passes begins with another drafter, so that none is always first."""
    names = list(tried)
    on_gpu = bench.target.info.device.type == "cuda"
    for repeat in range(plan.passes):
        start = repeat * max(len(names) // plan.passes, 1) % len(names)
        for concurrency in bench.concurrency:
            for drafter in (*names[start:], *names[:start]):
                if concurrency in tried[drafter].concurrency:
                    yield bench.blank(drafter, concurrency, repeat, "wall" if on_gpu else "host")
                    if on_gpu and not repeat:
                        yield bench.blank(drafter, concurrency, repeat, "attribution")


def _begin(folder: Path, manifest: dict[str, Any]) -> None:
    """Start the folder, or go on with it. Raises ConfigError if it holds another measurement."""
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json_atomic(folder / MANIFEST, manifest)
        return
    if read_manifest(folder).get("settings_digest") != manifest["settings_digest"]:
        raise ConfigError(f"{folder} was made with other settings, data or model; choose another folder")
    write_json_atomic(folder / MANIFEST, {**read_manifest(folder), "notes": manifest["notes"]})
    drop_torn_line(folder)


def _measure(bench: _Bench, row: ThroughputRow, requests: int) -> None:
    """Fill `row` by a pass; a drafter that fails, or would end the process, leaves its error there: others go on."""
    try:
        drafter = bench.opened(row.drafter, row.concurrency)
        if bench.target.static is not None:
            capture_rounds(bench.setup, bench.target, drafter, rows=row.concurrency)
        bench.warm_up(drafter, row.concurrency)
        ((_, clock),) = clocks(row.clock, bench.target.info.device)
        server = Server(
            bench.target,
            drafter,
            bench.setup.limits,
            rows=row.concurrency,
            chunk_tokens=bench.setup.chunk_tokens,
            clock=clock,
        )
        with OtherWork() as other:
            done = server.serve(bench.conversations[:requests])
        row.other_cores, row.contended = other.cores, doubtful(other.cores, bench.target.info.device)
        _enter(row, done)
        if done.phases_s is not None and not drafter.spec.fused_ingest:
            row.draft_append_s = done.phases_s["draft_append"]
    except (Exception, SystemExit) as error:
        if row.drafter == BASELINE:
            raise
        row.status, row.error = "error", describe(caught(error))
    finally:
        if bench.target.static is not None:
            bench.target.static.graphs.clear()


@dataclass(frozen=True, slots=True)
class _Tried:
    """What opening a drafter once has told."""

    version: str
    concurrency: list[int]
    """Those whose rows fit into memory, the drafter's own state included."""


@dataclass(frozen=True, slots=True)
class _Bench:
    """A target with as many rows as fit, and the rollouts as token ids."""

    setup: Setup
    target: Target
    makers: Mapping[str, Callable[[], Drafter]]
    workload: str
    conversations: list[list[Request]]
    concurrency: list[int]
    row_bytes: int
    """Memory of a row, without what a drafter keeps for it."""
    free_bytes: int | None
    """Memory that was free before the first row; None: not known."""
    notes: list[str]
    """Those of the setup; what is not run, and why: rollouts that do not render, rows that do not fit into memory."""

    @classmethod
    def open(cls, config: RunConfig, plan: ThroughputPreset, source: Source, tell: Tell) -> _Bench:
        makers = drafter_makers(config)
        setup = Setup.load(config, tell)
        work, left_out = _work(setup.renderer, source.rollouts, config.replay.max_turns)
        longest = max((len(r.prompt) for own in work for r in own), default=0)
        capacity = min(setup.capacity, longest + setup.limits.max_new_tokens)
        model, k = setup.loaded.model, setup.limits.k
        per_row = row_bytes(model.config, model.dtype, capacity + k + 1, k)
        free = free_memory_bytes(model.device)
        fit, too_many = rows_that_fit(sorted(plan.concurrency), per_row, free)
        if not fit:
            raise ConfigError(too_many[0] if too_many else "concurrency: name at least one")
        tried = {name: make() for name, make in makers.items()} if model.device.type == "cuda" else {}
        static, why = static_rounds(config, tried, model.device)
        target = setup.engine(capacity, fit[-1], static)
        setup.notes.extend([*left_out, *too_many, *([why] if why else [])])
        return cls(setup, target, makers, source.name, work, fit, per_row, free, setup.notes)

    def try_drafters(self) -> dict[str, _Tried]:
        """Open each drafter once, so that one that does not fit is refused before anything long."""
        tried = {}
        for name in self.makers:
            drafter = self.opened(name, 1)
            need = self.row_bytes + self._state_bytes(drafter)
            fit, too_many = rows_that_fit(self.concurrency, need, self.free_bytes, f"{name} at ")
            self.notes.extend(too_many)
            tried[name] = _Tried(drafter.spec.version, fit)
        return tried

    def _state_bytes(self, drafter: Drafter) -> int:
        """Bytes that `drafter` keeps for a full row, by what it keeps of the start of a prompt; 0 if it fails there."""
        start = next(own[0].prompt[:_WARM_UP_TOKENS] for own in self.conversations if own)
        session = Session(self.target, {"": drafter})
        try:
            session.prefill(start, lambda logits: int(logits.argmax()))
            held = 0 if session.failed else drafter.state_bytes(0)
        except (Exception, SystemExit) as error:  # its passes will tell
            raise_interrupt(error)
            held = 0
        session.reset()
        return held * self.target.capacity // len(start)

    def opened(self, name: str, rows: int) -> Drafter:
        """The drafter, loaded anew, for so many rows."""
        return self.setup.open(name, self.makers[name](), self.target, rows)

    def blank(self, drafter: str, concurrency: int, repeat: int, clock: PassClock) -> ThroughputRow:
        """The row of a pass that was not run yet."""
        return ThroughputRow(
            target=self.target.info.name,
            workload=self.workload,
            drafter=drafter,
            k=self.setup.limits.k,
            thinking=self.setup.renderer.thinking,
            concurrency=concurrency,
            repeat=repeat,
            clock=clock,
            graphs=self.target.static is not None,
        )

    def warm_up(self, drafter: Drafter, rows: int) -> None:
        """One short batch over the starts of prompts: first calls compile, allocate and page in.

        Nothing stops a turn early: one that ended on its first token would leave the drafter cold.
        """
        starts = [
            [Request(own[0].rollout, 0, own[0].prompt[:_WARM_UP_TOKENS])] for own in self.conversations[:rows] if own
        ]
        limits = self.setup.limits
        few = replace(limits, max_new_tokens=rehearsal_tokens(limits), stop_ids=frozenset())
        Server(self.target, drafter, few, rows=rows).serve(starts)


def _work(
    renderer: Renderer, rollouts: Sequence[Rollout], max_turns: int | None
) -> tuple[list[list[Request]], list[str]]:
    """Each rollout's turns as token ids, and a line about those that do not render: they end there, as in a run.

    Raises ConfigError if there is not one turn.
    """
    work: list[list[Request]] = []
    bad: list[Exception] = []
    for rollout in rollouts:
        work.append([])
        try:
            for turn, message in enumerate(rollout.decode_points()[:max_turns]):
                work[-1].append(Request(rollout.id, turn, renderer.prompt(rollout, message)))
        except Exception as error:
            bad.append(error)
    if not any(work):
        raise ConfigError(f"none of the {len(rollouts)} rollouts has a turn to serve{f': {bad[-1]}' if bad else ''}")
    return work, [f"{len(bad)} rollouts end before a turn that does not render, such as: {bad[0]}"] if bad else []


def _enter(row: ThroughputRow, done: Pass) -> None:
    """Enter a finished pass into its row."""
    turns = [served.turn for served in done.served]
    prefills = [served.prefill for served in done.served]
    row.turns, row.left_out = len(turns), done.left_out
    row.degenerate_turns = sum(is_degenerate(turn.output) for turn in turns)
    row.output_tokens = sum(len(turn.output) for turn in turns)
    row.emitted, row.steps, row.decode_s = done.emitted, len(done.steps), done.decode_s
    row.emitted_raw = sum(each.matched + 1 for turn in turns for each in turn.rounds)
    row.rounds = sum(len(turn.rounds) for turn in turns)
    row.busy_rows = sum(busy for _, _, busy in done.steps) / len(done.steps) if done.steps else None
    full = done.full
    row.full_steps, row.full_emitted = len(full), sum(tokens for _, tokens, _ in full)
    row.full_s = sum(seconds for seconds, _, _ in full)
    row.prefill_s = sum(prefill.prefill_s for prefill in prefills)
    row.draft_ingest_s = sum(sum(prefill.ingest_s.values()) for prefill in prefills)
    row.windows = _windows(done)
    for served in done.served:
        emitted, raw, rounds = row.rollouts.get(served.request.rollout, (0, 0, 0))
        own = served.turn.rounds
        row.rollouts[served.request.rollout] = (
            emitted + sum(each.emitted for each in own),
            raw + sum(each.matched + 1 for each in own),
            rounds + len(own),
        )
        row.outputs[served.request.id] = served.digest


def _windows(done: Pass) -> list[tuple[int, float]]:
    ends = [len(done.steps) * (i + 1) // _WINDOWS for i in range(_WINDOWS)]
    parts = [done.steps[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [(sum(tokens for _, tokens, _ in own), sum(s for s, _, _ in own)) for own in parts if own]


_WINDOWS = 20
