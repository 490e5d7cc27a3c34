"""One cell of a geometry: a target of random weights at one context and concurrency, and every method's rounds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from agentbench_spec.config import ReplayConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.batching import free_memory_bytes, row_bytes
from agentbench_spec.engine.loop import Turn, step
from agentbench_spec.engine.machine import OtherWork
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler
from agentbench_spec.engine.spans import on_device, span_of
from agentbench_spec.engine.steps.capturing import capture
from agentbench_spec.engine.steps.static_target import Static, width_for
from agentbench_spec.engine.target import Evaluated, Target
from agentbench_spec.engine.timing import Clock, Stopwatch, Times, clocks, resolve_mode
from agentbench_spec.plugins import load_drafter
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.runs.geometry.geometry_rows import GeometryRow
from agentbench_spec.runs.geometry.published_shapes import Draft
from agentbench_spec.runs.geometry.random_models import random_drafter
from agentbench_spec.runs.geometry.scripted import Script, ScriptedLookup, ScriptedWork
from agentbench_spec.runs.setup import chunk_on

LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class GeometryPlan:
    """What is measured of a geometry."""

    geometry: str
    contexts: tuple[int, ...] = (1024, 4096, 16384, 65536)
    concurrency: tuple[int, ...] = (1, 4, 16, 64)
    drafters: tuple[str, ...] | None = None
    """Learned ones; None: all that were published for the target."""
    widths: tuple[int, ...] = (2, 4, 8, 16)
    """Positions a row that the target is fed at once, in rounds of a look-up."""
    tau: float = 3.0
    """Scripted; where fewer tokens are drafted, as many as can be accepted."""
    thin: bool = False
    dtype: str = "auto"
    device: str = "auto"
    graphs: str = "auto"
    rounds: int = 32
    """Of a timed pass."""
    repeats: int = 3
    """Timed passes, of which the median counts."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Method:
    """What drafts, and how many tokens."""

    drafter: str
    k: int
    draft: Draft | None = None

    def made(self, folder: Path) -> Drafter:
        """The drafter, scripted. folder: of the drafts' checkpoints."""
        if self.drafter == BASELINE:
            return load_drafter(BASELINE)
        return (
            ScriptedLookup() if self.draft is None else ScriptedWork(random_drafter(folder / self.drafter, self.draft))
        )


@dataclass(slots=True)
class Cell:
    """The target at one context and concurrency, its keys and values filled with noise instead of by a prefill."""

    plan: GeometryPlan
    target: Target
    context: int
    rows: int
    folder: Path
    """Of the drafts' checkpoints."""
    read_bytes_per_s: float | None
    plain: Drafter
    """Plain steps, which every method's rounds alternate with."""
    _sampler: RowSampler = field(default_factory=lambda: RowSampler(GREEDY, []))

    @classmethod
    @torch.inference_mode()
    def open(
        cls,
        plan: GeometryPlan,
        model: nn.Module,
        context: int,
        rows: int,
        folder: Path,
        *,
        most: int,
        speed: float | None = None,
        static: Static | None = None,
    ) -> Cell:
        """most: drafts of the widest round; speed: of reading memory, in bytes a second; static: as of a Target.

        Raises what the device's memory or the engine's check does.
        """
        device = next(model.parameters()).device
        slack = most + 1 if static is None else width_for(most + 1)
        capacity = context + reply_tokens(plan, most)
        target = Target(model, name=plan.geometry, capacity=capacity, rows=rows, slack=slack, static=static)
        try:
            target.self_check()
            draw = torch.Generator(device).manual_seed(plan.seed)
            for layer in target.cache.layers:
                for part in (layer.keys, layer.values):
                    part.normal_(generator=draw)
            cell = cls(plan, target, context, rows, folder, speed, load_drafter(BASELINE))
            cell._prepare(cell.plain, 0)
        except BaseException:
            target.close()
            raise
        return cell

    @torch.inference_mode()
    def measure(self, method: Method, row: GeometryRow) -> None:
        """Fill `row` with the rounds of a method. Raises what the drafter does."""
        drafter, script = method.made(self.folder), self._script(row.tau_scripted, method.k)
        if isinstance(drafter, ScriptedLookup | ScriptedWork):
            drafter.script = script
        self._prepare(drafter, method.k)
        if drafter.spec.hidden_scope != "none":
            row.draft_ingest_s = self._ingest(drafter)
            row.state_bytes = drafter.state_bytes(0)
        for index in range(self.rows):
            self.target.commit(index, self.context)
        with OtherWork() as other:
            timed = self._timed(drafter, script)
        row.other_cores = other.cores
        self._enter(row, method, timed)

    @property
    def _chunk(self) -> int:
        return chunk_on(self.target.info.device, ReplayConfig())

    def _script(self, tau: float, k: int) -> Script:
        plan, vocabulary = self.plan, self.target.info.vocab_size
        return Script(tau, k=k, rounds=plan.rounds, begin=self.context, vocab_size=vocabulary, seed=plan.seed)

    def _prepare(self, drafter: Drafter, k: int) -> None:
        """Open the drafter on empty rows, and capture its rounds where they are static."""
        for index in range(self.rows):
            self.target.truncate(index, 0)
        drafter.open(self.target.info, rows=self.rows, capacity=self.target.capacity + k + 1)
        if self.target.static is not None:
            limits = Limits(k=k, max_new_tokens=k + 2)
            capture(self.target, drafter, limits, lambda: self._sampler, rows=self.rows, forced=True)

    def _timed(self, drafter: Drafter, script: Script) -> dict[str, list[tuple[Times, int]]]:
        """Passes of the drafter on the wall clock and by phases, and of plain steps in turns with them."""
        device, plain = self.target.info.device, self._script(1.0, 0)
        found: dict[str, list[tuple[Times, int]]] = {"wall": [], "phases": [], "plain": []}
        for own, its in ((self.plain, plain), (drafter, script)):  # warm: every shape that the passes have
            self._rounds(own, its, Clock)
        for is_wall, clock in clocks(resolve_mode("auto", device), device):
            for _ in range(self.plan.repeats):
                if is_wall:
                    found["plain"].append(self._rounds(self.plain, plain, clock))
                done = self._rounds(drafter, script, clock)
                if is_wall:
                    found["wall"].append(done)
                if done[0].phases_s is not None:
                    found["phases"].append(done)
        return found

    def _enter(self, row: GeometryRow, method: Method, timed: Mapping[str, list[tuple[Times, int]]]) -> None:
        rounds = self.plan.rounds
        row.rounds, row.emitted_tokens = rounds, timed["wall"][0][1]
        row.round_s = median(times.total_s for times, _ in timed["wall"]) / rounds
        row.plain_round_s = median(times.total_s for times, _ in timed["plain"]) / rounds
        phases = [times.phases_s or {} for times, _ in timed["phases"]]
        spent = {name: median(own[name] for own in phases) / rounds for name in phases[0]}
        row.verify_s, row.accept_s = spent["verify"], spent["accept"]
        if method.draft is not None:
            row.draft_s, row.draft_append_s = spent["draft"], spent["draft_append"]
        row.kv_bytes = self.target.cache.bytes_per_token * self.context * self.rows
        if self.read_bytes_per_s is not None:
            row.verify_floor_s = (self.target.weight_bytes + row.kv_bytes) / self.read_bytes_per_s
            if method.draft is not None:
                elements = method.draft.read_elements(method.k)
                row.draft_floor_s = elements * self.target.info.dtype.itemsize / self.read_bytes_per_s

    def _rounds(self, drafter: Drafter, script: Script, kind: type[Clock]) -> tuple[Times, int]:
        """One pass: rounds of all rows, which are then cut back to the context; their times and the tokens emitted."""
        turns: list[Turn | None] = [script.turn() for _ in range(self.rows)]
        limits = Limits(k=script.k, max_new_tokens=len(script.reply) + 1)
        clock = kind(self.target.info.device)
        clock.begin()
        for _ in range(self.plan.rounds):
            step(self.target, drafter, turns, limits, self._sampler, clock)
        times = clock.end()
        for index in range(self.rows):
            drafter.truncate(index, self.context)
            self.target.truncate(index, self.context)
        return times, sum(len(turn.output) - 1 for turn in turns if turn is not None)

    def _ingest(self, drafter: Drafter) -> float:
        """Have the drafter observe the context of every row, as after a prefill; seconds of one row."""
        self._observe(drafter, 0, min(self.context, self._chunk))  # first calls allocate
        drafter.truncate(0, 0)
        with Stopwatch(self.target.info.device) as watch:
            for index in range(self.rows):
                self._observe(drafter, index, self.context)
        return watch.seconds / self.rows

    def _observe(self, drafter: Drafter, index: int, tokens: int) -> None:
        info, chunk = self.target.info, self._chunk
        draw = torch.Generator(info.device).manual_seed(self.plan.seed)
        shape = (1, min(chunk, tokens), info.hidden_size)
        noise = torch.empty(shape, dtype=info.dtype, device=info.device).normal_(generator=draw)
        for start in range(0, tokens, chunk):
            n = min(chunk, tokens - start)
            row, at, count = on_device(info.device, [index], [start], [n])
            ids = torch.zeros(1, n, dtype=torch.int64, device=info.device)
            states = dict.fromkeys(drafter.spec.hidden_layers, noise[:, :n])
            evaluated = Evaluated(logits=noise[:, :0], states=states)
            drafter.observe(span_of(drafter, row, at, count, ids, ids, evaluated, [[0] * n]))


def reply_tokens(plan: GeometryPlan, most: int) -> int:
    """Text positions beyond the context that rounds of at most `most` drafts may reach."""
    return ceil(plan.rounds * min(plan.tau, most + 1)) + 3 * most + 8


def needed_bytes(plan: GeometryPlan, config: Any, dtype: torch.dtype, context: int, rows: int, most: int) -> int:
    """Bytes that the target needs for a cell beside its weights."""
    return rows * row_bytes(config, dtype, context + reply_tokens(plan, most) + width_for(most + 1), most)


def without_memory(work: Callable[[], None], device: torch.device) -> str | None:
    """Do `work`; why it failed if memory ran out, in one line, else None."""
    try:
        work()
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in said:  # a CPU's word
            raise
        return said
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return None


def memory_reason(need: int, device: torch.device) -> str | None:
    """Why so many bytes are not to be had; None if they are, or nobody knows."""
    free = free_memory_bytes(device)
    if free is None or need <= free:
        return None
    return f"{need / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free"
