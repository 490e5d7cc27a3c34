"""What every measurement in this process sets up alike: the target, its renderer, and drafters over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from agentbench_spec import plugins
from agentbench_spec.config import ReplayConfig, RunConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine import embedded, loading
from agentbench_spec.engine.cpu import linear
from agentbench_spec.engine.cpu.split_attention import Heads, Split, choose_split
from agentbench_spec.engine.machine import machine_id, without_plans
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.engine.steps.fused_norms import fuse_norms
from agentbench_spec.engine.steps.static_target import Static, width_for
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import resolve_mode
from agentbench_spec.errors import AgentBenchError, ConfigError, ContractError, cause_of, unknown_name
from agentbench_spec.results.derived.k_arms import arm_name
from agentbench_spec.results.metrics import AGAIN, BASELINE, PLAIN
from agentbench_spec.rollouts.render import Renderer, stop_ids
from agentbench_spec.runs.fill import Conditions
from agentbench_spec.runs.generation import sampling_notes, unread_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
Tell = Callable[[str], None]
"""Takes one line for the screen."""


def drafter_makers(config: RunConfig) -> dict[str, Callable[[], Drafter]]:
    """Label -> what makes the drafter, the baseline first. A label is the short name, unless checkpoints share it.

    Raises ConfigError for options of a drafter that is not among them.
    """
    given = list(dict.fromkeys((BASELINE, *config.drafters)))
    shared = Counter(name.partition("=")[0] for name in given)
    for name in config.drafter_options:
        if name not in {*given, *shared}:
            raise unknown_name("drafter in drafter_options:", name, {*given, *shared})
    makers: dict[str, Callable[[], Drafter]] = {}
    for name in given:
        base = name.partition("=")[0]
        options = {**config.drafter_options.get(base, {}), **config.drafter_options.get(name, {})}
        makers[base if shared[base] == 1 else name] = partial(_load, name, config.target.source, options)
    if config.measure.aa:
        makers[AGAIN] = partial(plugins.load_drafter, BASELINE, **config.drafter_options.get(BASELINE, {}))
    return makers


def method_names(config: RunConfig) -> list[str]:
    """The names that decode every turn, the baseline first. Raises ConfigError as `drafter_makers` does."""
    return list(arms_over(drafter_makers(config), config.decode.sweep))


def arms_over(drafters: Mapping[str, T], ks: Sequence[int | str]) -> dict[str, T]:
    """Each drafter under a name for each K, plain decoding under its own; as they are where there is no K."""
    plain = {name: drafter for name, drafter in drafters.items() if not ks or name in PLAIN}
    others = [name for name in drafters if name not in plain]
    return plain | {arm_name(name, k): drafters[name] for name in others for k in ks}


def _load(name: str, target: str, options: Mapping[str, Any]) -> Drafter:
    shipped = partial(embedded.shipped_drafter, target=target)
    return plugins.load_drafter(name, **plugins.with_checkpoints(name, options, shipped))


def chunk_on(device: torch.device, replay: ReplayConfig) -> int:
    """Tokens of a prefill chunk on a device."""
    return replay.chunk_tokens if device.type == "cpu" else replay.gpu_chunk_tokens


def capacity_of(config: RunConfig, window: int) -> int:
    """Tokens a text may have, on a target whose window is of `window` tokens.

    Raises ConfigError if they are beyond the window, or leave no room for reply or draft.
    """
    target, decode = config.target, config.decode
    wanted = target.capacity_tokens
    if wanted is not None and wanted > window and target.beyond_window == "refuse":
        raise ConfigError(
            f"target.capacity_tokens={wanted} is beyond the model's window of {window} tokens; for longer contexts "
            "set target.rope_scaling.factor (YaRN), or target.beyond_window=flag to measure and label them"
        )
    capacity = wanted or window
    if capacity <= decode.max_new_tokens:
        raise ConfigError(
            f"decode.max_new_tokens={decode.max_new_tokens} leaves no room for a prompt in {capacity} tokens "
            f"({'target.capacity_tokens' if wanted else 'the window of the model'}); lower it"
        )
    if capacity <= decode.k:
        raise ConfigError(
            f"decode.k={decode.k} drafts more tokens in a round than {capacity} tokens have room for "
            f"({'target.capacity_tokens' if wanted else 'the window of the model'}); lower it"
        )
    return int(capacity)


@dataclass(frozen=True, slots=True)
class Setup:
    """A loaded model with the fastest linears of this machine, and what turns messages into its tokens."""

    config: RunConfig
    loaded: loading.LoadedModel
    renderer: Renderer
    limits: Limits
    kernels: dict[str, Any]
    """Linear kernels in use, by network and weight shape, how attention is split, and norms that are one kernel; for
    the manifest."""
    notes: list[str]
    """What was guessed or is not applied, each once, in words; for the run and its manifest."""
    split: Split | None = None
    """How attention over long contexts is split on a CPU; None: it is not."""

    @classmethod
    def load(cls, config: RunConfig, tell: Tell = lambda line: None) -> Setup:
        """Load the configured target, on as many threads as configured. Raises ConfigError if it cannot be."""
        if config.measure.threads:
            torch.set_num_threads(config.measure.threads)
        wanted = config.target
        tell(f"loading {wanted.source}")
        loaded = loading.load(
            wanted.source,
            dtype=wanted.dtype,
            device=wanted.device,
            revision=wanted.revision,
            rope_scaling=wanted.rope_scaling.model_dump() if wanted.rope_scaling else None,
        )
        without_plans(loaded.model.device)
        kernels: dict[str, Any] = {wanted.source: _accelerated(loaded.model)} if wanted.fast_linears else {}
        split = _split(loaded.model) if wanted.fast_linears else None
        if split is not None:
            kernels[wanted.source][str(Heads.of(loaded.model.config))] = split.as_dict()
        if loaded.model.device.type == "cuda" or wanted.fast_linears:
            kernels.setdefault(wanted.source, {})["fused_norms"] = fuse_norms(loaded.model)
        sampling = Sampling(config.decode.temperature, config.decode.top_k, config.decode.top_p)
        stop = stop_ids(loaded.tokenizer, loaded.model.generation_config)
        return cls(
            config=config,
            loaded=loaded,
            renderer=Renderer(loaded.tokenizer, config.replay.thinking, stop=stop),
            limits=Limits(config.decode.k, config.decode.max_new_tokens, frozenset(stop)),
            kernels=kernels,
            notes=[*sampling_notes(loaded.model.generation_config, sampling), *unread_config(Path(wanted.source))],
            split=split,
        )

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a prefill chunk on the target's device."""
        return chunk_on(self.loaded.model.device, self.config.replay)

    @property
    def capacity(self) -> int:
        """Tokens a text may have. Raises as `capacity_of` does."""
        return capacity_of(self.config, self.loaded.model.config.max_position_embeddings)

    def engine(self, capacity: int, rows: int = 1, static: Static | None = None) -> Target:
        """The target over so many rows, its arithmetic checked. Raises ConfigError if it cannot run or does not fit."""
        slack = self._slack if static is None else width_for(self._slack)
        sizes: dict[str, Any] = {"capacity": capacity, "rows": rows, "slack": slack}
        try:
            target = Target(self.loaded.model, name=self.loaded.name, **sizes, static=static, split=self.split)
        except RuntimeError as error:  # torch's word for "out of memory", on every device
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"the KV cache for {capacity} tokens cannot be allocated: {reason}; set target.capacity_tokens lower"
            ) from error
        target.self_check()
        return target

    def open(self, label: str, drafter: Drafter, target: Target, rows: int = 1) -> Drafter:
        """Open the drafter for so many rows of the target and give its networks fast linears; returns it.

        Raises ContractError naming the drafter if it fails without saying why in an error of ours.
        """
        try:
            drafter.open(target.info, rows=rows, capacity=target.capacity + self._slack)
        except AgentBenchError:
            raise
        except (Exception, SystemExit) as error:
            raise ContractError(f"drafter {label!r}: open() failed: {cause_of(error)}") from error
        self.notes.extend(said for note in drafter.notes if (said := f"{label}: {note}") not in self.notes)
        for network in drafter.networks() if self.config.target.fast_linears else ():
            self.kernels[label] = self.kernels.get(label, {}) | _accelerated(network)
        return drafter

    def conditions(self, target: Target) -> Conditions:
        """What decides what a turn's numbers mean, the same for all rows of the run."""
        decode, replay, measure = self.config.decode, self.config.replay, self.config.measure
        return Conditions(
            limits=self.limits,
            sampling=Sampling(decode.temperature, decode.top_k, decode.top_p),
            decode_mode=decode.mode,
            history_mode=replay.history,
            prefix_mode=replay.prefix,
            thinking=self.renderer.thinking,
            template_form=self.renderer.form.bent,
            clock=resolve_mode(measure.clock, target.info.device),
            seed=measure.seed,
            chunk_tokens=self.chunk_tokens,
            max_turns=replay.max_turns,
            tie_tolerance=measure.tie_tolerance,
            beyond_window=self.config.target.beyond_window,
            ceiling=measure.ceiling,
            repeats=measure.repeats,
            machine=machine_id(target.info.device),
            graphs=target.static is not None,
        )

    @property
    def _slack(self) -> int:
        return self.limits.k + 1


def _accelerated(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Give a network the fastest linears; what was chosen for each weight shape, for the manifest."""
    return {shape: choice.as_dict() for shape, choice in linear.accelerate(model, embedded.cache_root()).items()}


def _split(model: PreTrainedModel) -> Split | None:
    """How this machine splits the attention of a float32 model on the CPU; None for any other."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return None
    return choose_split(Heads.of(model.config), embedded.cache_root())
