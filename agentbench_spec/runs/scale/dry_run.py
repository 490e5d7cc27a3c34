"""A run without decoding: what it downloads, holds and replays, and how long that takes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.runs.scale.footprint import Ask, Download, Memory, ask_hub, downloads, memory, shape_of
from agentbench_spec.runs.scale.forecast import Forecast, forecast, refuse_uncounted
from agentbench_spec.runs.scale.shards import Shard, share_of
from agentbench_spec.runs.scale.speeds import Speeds
from agentbench_spec.runs.setup import Tell, capacity_of, method_names
from agentbench_spec.runs.source import read_source


@dataclass(frozen=True, slots=True)
class DryRun:
    """Everything that is known of a run before it is paid for."""

    downloads: list[Download]
    memory: Memory | None
    """None: not known, or the servers'."""
    forecast: Forecast

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "downloads": [asdict(own) for own in self.downloads],
            "memory": self.memory.as_dict() if self.memory else None,
            **self.forecast.as_dict(),
        }


def dry_run(
    config: RunConfig,
    speeds: Speeds | None = None,
    *,
    done: Collection[str] = (),
    shard: Shard | None = None,
    ask: Ask = ask_hub,
    tell: Tell = lambda line: None,
) -> DryRun:
    """Look at everything a run of `config` takes and decode nothing.

    The rollouts are read, and fetched if they are not here; of the target, its configuration and tokenizer. done:
    rollouts that are complete already; shard: None: the whole run; ask: the files of a model on the hub. Raises
    ConfigError for what the run would refuse of its settings and rollouts.
    """
    refuse_uncounted(config)
    source = read_source(config, tell=tell)
    notes = [f"left out: {line}" for line in source.facts["left_out"]]
    found = downloads(config, ask)
    renderer, why = _renderer(config)
    if renderer is None:
        notes.append(f"tokens are not counted, nor is time told: {why}")
    need, capacity = None, config.target.capacity_tokens
    if renderer and config.backend == "engine":
        shape = shape_of(config)
        capacity = capacity_of(config, shape.max_position_embeddings)
        try:
            need = memory(config, shape, capacity, found, speeds)
        except ConfigError as error:
            notes.append(f"memory is not known: {error}")
    methods = method_names(config)
    if shard is not None and renderer is None:
        raise ConfigError(f"--shard {shard}: shards are balanced by tokens, and none can be counted: {why}")
    own = share_of(shard, source.rollouts, renderer, config, len(methods)).own if shard and renderer else None
    return DryRun(
        found,
        need,
        forecast(
            config,
            source.name,
            [r for r in source.rollouts if r.id not in done and (own is None or r.id in own)],
            methods,
            renderer=renderer,
            capacity=capacity,
            passes=passes_of(config),
            speeds=speeds,
            notes=notes,
        ),
    )


def _renderer(config: RunConfig) -> tuple[Renderer | None, str]:
    """What counts the target's tokens; None, and why not, where its tokenizer is not at hand."""
    if config.named_target is None:
        return None, "no target is named: --target says whose tokens are meant"
    try:
        tokenizer = load_tokenizer(config.target.source, revision=config.target.revision)
    except ConfigError as error:
        return None, str(error)
    return Renderer(tokenizer, config.replay.thinking), ""


def passes_of(config: RunConfig) -> int:
    """Times every method decodes a turn: on a GPU each clock has a pass of its own, unless the settings say else."""
    import torch

    device = config.target.device
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    clock = config.measure.clock
    return 2 if config.backend == "engine" and (clock == "both" or (clock == "auto" and on_gpu)) else 1
