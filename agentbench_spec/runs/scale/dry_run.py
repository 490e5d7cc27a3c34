"""A run without decoding: what it downloads, holds and replays, and how long that takes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.runs.scale.footprint import Ask, Download, Memory, ask_hub, downloads, memory
from agentbench_spec.runs.scale.forecast import Forecast, forecast, refuse_uncounted
from agentbench_spec.runs.scale.shards import Shard, share_of
from agentbench_spec.runs.scale.speeds import Speeds
from agentbench_spec.runs.setup import Tell, drafter_makers
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
    renderer: Renderer | None = None
    need: Memory | None = None
    try:
        if config.named_target is None:
            raise ConfigError("no target is named: --target says whose tokens are meant")
        renderer = Renderer(
            load_tokenizer(config.target.source, revision=config.target.revision), config.replay.thinking
        )
        need = memory(config, found, speeds) if config.backend == "engine" else None
    except ConfigError as error:
        what = "memory is not known" if renderer else "tokens are not counted, nor is time told"
        notes.append(f"{what}: {error}")
    methods = list(drafter_makers(config))
    if shard is not None and renderer is None:
        raise ConfigError(f"--shard {shard}: shards are balanced by tokens, and none can be counted: {notes[-1]}")
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
            capacity=_capacity(config, need),
            passes=passes_of(config),
            speeds=speeds,
            notes=notes,
        ),
    )


def _capacity(config: RunConfig, need: Memory | None) -> int | None:
    return need.capacity_tokens if need else config.target.capacity_tokens


def passes_of(config: RunConfig) -> int:
    """Times every method decodes a turn: on a GPU each clock has a pass of its own, unless the settings say else."""
    import torch

    device = config.target.device
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    clock = config.measure.clock
    return 2 if config.backend == "engine" and (clock == "both" or (clock == "auto" and on_gpu)) else 1
