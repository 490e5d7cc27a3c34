"""The loop: draw texts and anchors, add up numerators and denominators, step, log, save, resume.

Everything random is drawn from (seed, step, place in the batch), so a resumed run goes on exactly as it would have.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentbench_spec.bars import Bar
from agentbench_spec.errors import ConfigError
from agentbench_spec.train.anchors import sample_anchors, valid_anchors
from agentbench_spec.train.features import FeatureSource
from agentbench_spec.train.interface import Loss
from agentbench_spec.train.options import TrainConfig
from agentbench_spec.train.parallel import World, full_tensors, last_sync_only, sharded_like, wrap
from agentbench_spec.train.schedule import Place, learning_rate, objective, place_of
from agentbench_spec.train.shortlist import frequent_tokens
from agentbench_spec.train.state import load_state, save_state
from agentbench_spec.train.step import Example, Step, Sums, example_of
from agentbench_spec.train.tally import Tally
from agentbench_spec.train.texts import Text, token_counts
from agentbench_spec.writing import write_bytes

__all__ = ["Data", "Trainer"]

LOG = "log.jsonl"


@dataclass(frozen=True, slots=True)
class Data:
    """Texts and their features, index by index."""

    texts: Sequence[Text]
    features: FeatureSource


class Trainer:
    """Trains one drafter in `folder`."""

    def __init__(
        self, step: Step, config: TrainConfig, data: Data, folder: Path, world: World, held_out: Data | None = None
    ) -> None:
        """step: made for the target and trainee. Raises ConfigError if the batch does not divide among the ranks."""
        if config.batch % world.size:
            raise ConfigError(f"batch {config.batch} does not divide among {world.size} processes")
        self.step_module, self.trainee, self.config = step, step.trainee, config
        self.data, self.held_out, self.folder, self.world = data, held_out, folder, world
        self.phases = self.trainee.phases
        self.totals = [max(round(config.steps * phase.share), 1) for phase in self.phases]
        self.done = 0
        """Steps done."""
        self._orders: dict[int, list[int]] = {}
        if config.loss_tokens is not None:
            self._frequent = frequent_tokens(token_counts(data.texts, step.vocab_size), config.loss_tokens)
        self._parameters: list[nn.Parameter] = []
        self._optimizer: torch.optim.AdamW | None = None
        self._entered: tuple[int, int] | None = None
        self._wrapped: nn.Module = step

    @property
    def total(self) -> int:
        """Steps of all phases."""
        return sum(self.totals)

    def run(self, *, until: int | None = None) -> None:
        """Train to the end, or until `until` steps are done; saves the state on the way and at the end."""
        end = self.total if until is None else min(until, self.total)
        with Bar(total=self.total, initial=self.done, desc=self.trainee.name, disable=not self.world.first) as bar:
            while self.done < end:
                row = self._one_step(self.place)
                bar.update()
                bar.set_postfix_str(f"{row['stage']} loss {row['loss'] or 0:.3f} prefix {row['prefix_acc'] or 0:.2f}")
                self._after(row, end)

    @property
    def place(self) -> Place:
        """Where the next step is."""
        return place_of(self.done, self.phases, self.totals)

    def resume(self) -> None:
        """Go on from the state in the folder; raises ConfigError if there is none."""
        state = load_state(self.folder, self.world.device)
        self.trainee.load_state_dict(state["trainee"])
        self.done = int(state["done"])
        if self.world.first:
            _cut_log(self.folder / LOG, self.done)
        if self.done < self.total and state["optimizer"] is not None:
            place = self.place
            if place.step:
                self._enter(place)
                optimizer = self._need_optimizer()
                optimizer.load_state_dict(sharded_like(state["optimizer"], self._parameters))

    def save(self) -> None:
        """Write the resumable state."""
        optimizer = None if self._optimizer is None else self._optimizer.state_dict()
        state = {"done": self.done, "trainee": self.trainee.state_dict(), "optimizer": optimizer}
        save_state(self.folder, state, self.world)

    def _after(self, row: dict[str, Any], end: int) -> None:
        self._log(row)
        finished = self.done == self.total or self.place.step == 0
        due = self.done % self.config.evaluate_every == 0
        if self.held_out is not None and (due or finished):
            self._log(self.evaluate(self.held_out))
        if finished or self.done % self.config.save_every == 0 or self.done == end:
            self._write_checkpoint()
            self.save()

    def _write_checkpoint(self) -> None:
        phase = place_of(self.done - 1, self.phases, self.totals).phase
        dtype = getattr(torch, self.config.checkpoint_dtype)
        state = full_tensors(self.trainee.state_dict())
        if self.world.first:
            stored = {name: t.cpu().to(dtype if t.is_floating_point() else t.dtype) for name, t in state.items()}
            self.trainee.write(self.folder / phase.folder if phase.folder else self.folder, phase, stored)

    def _log(self, row: dict[str, Any]) -> None:
        if self.world.first:
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")

    def _enter(self, place: Place) -> None:
        """Set up what a stage needs when it begins, or when the run resumes inside it."""
        here = (place.phase_index, place.stage_index)
        if self._entered == here:
            return
        self.trainee.enter(place.phase, place.stage, fresh=place.stage_step == 0)
        self._wrapped = self.step_module  # lets go of a DDP wrapper, whose hooks know the old set of parameters
        self._wrapped = wrap(self.step_module, self.world, self.config.parallel)
        if self._entered is None or self._entered[0] != here[0]:
            self._parameters = self.trainee.parameters_of(place.phase)
            recipe = self.trainee.recipe
            self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0, betas=recipe.betas, weight_decay=0.0)
        self._entered = here

    def _need_optimizer(self) -> torch.optim.AdamW:
        if self._optimizer is None:
            raise ConfigError("no stage was entered yet")
        return self._optimizer

    def _one_step(self, place: Place) -> dict[str, Any]:
        self._enter(place)
        started = time.perf_counter()
        factors, tally = objective(place), Tally(self.trainee.k)
        optimizer = self._need_optimizer()
        optimizer.zero_grad(set_to_none=True)
        per_rank = self.config.batch // self.world.size
        for micro in range(per_rank):
            draw = self.done * self.config.batch + micro * self.world.size + self.world.rank
            example, drawn = self._one_text(draw)
            with last_sync_only(self._wrapped, last=micro == per_rank - 1):
                sums = self._forward(example, drawn, factors)
                sums.total.backward()  # type: ignore[no-untyped-call]
            tally.add(sums)
        counts = tally.over_ranks(self.world)
        norm = self._update(place, counts.weight)
        self.done += 1
        seconds = time.perf_counter() - started
        return {**self._where(place, "train"), **counts.row(factors, seconds), "grad_norm": norm}

    def _update(self, place: Place, weight: float) -> float:
        """Turn gradients of local numerators into that of the mean over all positions, clip, step; the norm."""
        config, recipe, optimizer = self.config, self.trainee.recipe, self._need_optimizer()
        scale = self.world.size / weight if weight > 0 else 0.0  # DDP and FSDP have divided by the number of ranks
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        norm = nn.utils.clip_grad_norm_(self._parameters, config.clip_norm or recipe.clip_norm)
        rate = self._rate(place)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def _rate(self, place: Place) -> float:
        recipe, config = self.trainee.recipe, self.config
        peak = config.learning_rate or recipe.learning_rate
        warmup = recipe.warmup if config.warmup is None else config.warmup
        return learning_rate(place.step, place.total, peak=peak, warmup=warmup)

    def _where(self, place: Place, kind: str) -> dict[str, Any]:
        epoch = self.done * self.config.batch / len(self.data.texts)
        named = {"kind": kind, "step": self.done, "phase": place.phase.name, "stage": place.stage.name}
        return {**named, "epoch": epoch, "lr": self._rate(place)}

    def _one_text(self, draw: int) -> tuple[Example, Tensor]:
        """The text and anchors of the draw-th micro-batch of the run."""
        epoch, at = divmod(draw, len(self.data.texts))
        generator = torch.Generator().manual_seed(_mixed(self.config.seed, 1, draw))
        example, anchors = self._example(self.data, self._order(epoch)[at], generator)
        if self.config.loss_tokens is not None:
            example = self.step_module.with_shortlist(example, self._frequent, self.config.loss_tokens, generator)
        return example, anchors

    def _example(self, data: Data, index: int, generator: torch.Generator) -> tuple[Example, Tensor]:
        dtype = next(self.trainee.parameters()).dtype
        example = example_of(data.texts[index], data.features[index], self.trainee, self.world.device, dtype)
        valid = valid_anchors(example.supervised, self.trainee.k)
        return example, sample_anchors(valid, self.config.anchors, generator)

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            generator = torch.Generator().manual_seed(_mixed(self.config.seed, 0, epoch))
            self._orders = {epoch: torch.randperm(len(self.data.texts), generator=generator).tolist()}
        return self._orders[epoch]

    def _forward(self, example: Example, anchors: Tensor, factors: dict[Loss, float]) -> Sums:
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            return self._wrapped(example, anchors, factors)  # type: ignore[no-any-return]

    @torch.no_grad()
    def evaluate(self, data: Data) -> dict[str, Any]:
        """A row over all texts of `data`, with the objective of the last step and anchors that never change."""
        place = place_of(self.done - 1, self.phases, self.totals)
        factors, tally, started = objective(place), Tally(self.trainee.k), time.perf_counter()
        for index in range(self.world.rank, len(data.texts), self.world.size):
            example, anchors = self._example(data, index, torch.Generator().manual_seed(index))
            tally.add(self._forward_alone(example, anchors, factors))
        counts = tally.over_ranks(self.world)
        return {**self._where(place, "held_out"), **counts.row(factors, time.perf_counter() - started)}

    def _forward_alone(self, example: Example, anchors: Tensor, factors: dict[Loss, float]) -> Sums:
        """The forward without DDP, whose ranks may have different numbers of texts; FSDP must stay wrapped."""
        module = self.step_module if self.config.parallel == "ddp" else self._wrapped
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            return module(example, anchors, factors)  # type: ignore[no-any-return]


def _mixed(*parts: int) -> int:
    """One seed out of several numbers."""
    seed = 0
    for part in parts:
        seed = (seed * 1_000_003 + part + 1) % (2**63 - 25)
    return seed


def _cut_log(path: Path, done: int) -> None:
    """Drop rows of steps after the saved state, and a line that was cut off."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break
        if row["step"] <= done:
            kept.append(line + "\n")
    write_bytes(path, "".join(kept).encode())
