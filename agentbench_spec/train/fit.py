"""From settings to a trained checkpoint: target, texts, features, trainee, trainer, manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from agentbench_spec.engine import loading
from agentbench_spec.engine.loading import LoadedModel, resolve_device
from agentbench_spec.engine.machine import host_facts
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import file_sha256
from agentbench_spec.results.provenance import differing_keys, make_manifest, write_json_atomic
from agentbench_spec.rollouts.render import Renderer, stop_ids
from agentbench_spec.train.anchors import valid_anchors
from agentbench_spec.train.features import Cached, Extractor, FeatureSource, Online, build_cache
from agentbench_spec.train.interface import Setting, Trainee
from agentbench_spec.train.options import MANIFEST, TrainConfig, check_folder
from agentbench_spec.train.parallel import World, joined_world
from agentbench_spec.train.regenerate import regenerate
from agentbench_spec.train.step import Step
from agentbench_spec.train.texts import Text, read_texts, token_counts
from agentbench_spec.train.trainees import load_trainee
from agentbench_spec.train.trainer import Data, Trainer

__all__ = ["train"]

_MAY_DIFFER = (
    "device",
    "threads",
    "save_every",
    "evaluate_every",
    "rows_at_once",
    "features",
    "feature_layers",
    "parallel",
)
"""Settings a resumed run may change: none of them changes what is learnt."""


def train(
    config: TrainConfig, folder: Path, *, resume: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train a drafter into `folder`; returns the last log row, where the checkpoint is, and if this is the first rank.

    Raises ConfigError for settings, data or a folder that cannot be used.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    with joined_world(resolve_device(config.device)) as world:
        tell = say if world.first else _silent
        check_folder(folder, resume=resume)
        folder.mkdir(parents=True, exist_ok=True)
        _first_alone(world, lambda: None)  # no rank may write before all have looked
        if config.regenerate is not None:
            _first_alone(world, lambda: regenerate(config, Path(str(config.regenerate))))
        trainer = _prepare(config, folder, world, tell)
        _check_manifest(config, trainer, folder, world, resume=resume)
        if resume:
            trainer.resume()
            tell(f"resuming after {trainer.done} of {trainer.total} steps")
        trainer.run()
        return {"first": world.first, "folder": str(folder), "steps": trainer.done, **_last_row(folder)}


def _silent(_text: str) -> None:
    """What other ranks say."""


def _first_alone(world: World, work: Callable[[], None]) -> None:
    """Do file work on the first rank; the others wait."""
    if world.first:
        work()
    if world.size > 1:
        distributed.barrier()


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: LoadedModel
    target: Target
    texts: list[Text]
    held_out: list[Text]


def _prepare(config: TrainConfig, folder: Path, world: World, say: Callable[[str], None]) -> Trainer:
    loaded = _load(config, world)
    counts = token_counts(loaded.texts, loaded.target.info.vocab_size)
    generator = torch.Generator().manual_seed(config.seed)
    weights = loaded.model.model.state_dict()
    setting = Setting(loaded.target.info, counts, generator, target_weights=weights)
    trainee = load_trainee(config.drafter, setting, **config.options)
    texts = _usable(loaded.texts, trainee, config)
    if not texts:
        raise ConfigError(f"{config.data}: no text has enough supervised tokens for a block of {trainee.k}")
    extractor = Extractor(loaded.target, trainee.hidden_layers)
    data = Data(texts, _features(config, "train", texts, extractor, world, say))
    held_out = _usable(loaded.held_out, trainee, config)
    measured = Data(held_out, _features(config, "held_out", held_out, extractor, world, say)) if held_out else None
    parameters = sum(weight.numel() for weight in trainee.parameters())
    say(
        f"{config.drafter}: {parameters / 1e6:.2f} M parameters; {len(texts)} texts, "
        f"{sum(t.supervised_tokens for t in texts)} supervised tokens ({len(loaded.texts) - len(texts)} texts left out)"
    )
    step = Step(trainee, loaded.target.info, rows_at_once=config.rows_at_once)
    return Trainer(step, config, data, folder, world, measured)


def _load(config: TrainConfig, world: World) -> _Loaded:
    model = loading.load(config.target, dtype=config.target_dtype, device=str(world.device))
    limit = min(config.max_tokens, model.model.config.max_position_embeddings)
    target = Target(model.model, name=model.name, capacity=limit)
    renderer = Renderer(model.tokenizer, stop=stop_ids(model.tokenizer, model.model.generation_config))
    source = Path(config.regenerate or config.data)
    texts = read_texts(source, renderer, max_tokens=limit)
    held_out = read_texts(Path(config.held_out), renderer, max_tokens=limit) if config.held_out else []
    _check_apart(texts, held_out)
    return _Loaded(model, target, texts, held_out)


def _check_apart(texts: Sequence[Text], held_out: Sequence[Text]) -> None:
    """A text that is measured must not be trained on."""
    both = {text.input_ids for text in texts} & {text.input_ids for text in held_out}
    if both:
        raise ConfigError(f"{len(both)} texts stand in both data and held_out; split them by rollout")


def _usable(texts: Sequence[Text], trainee: Trainee, config: TrainConfig) -> list[Text]:
    least = config.min_supervised_tokens or 2 * (trainee.k + 1)
    return [t for t in texts if t.supervised_tokens >= least and len(valid_anchors(t.mask(trainee.k), trainee.k))]


def _features(
    config: TrainConfig,
    part: str,
    texts: Sequence[Text],
    extractor: Extractor,
    world: World,
    say: Callable[[str], None],
) -> FeatureSource:
    if config.features is None:
        return Online(texts, extractor)
    folder, dtype = Path(config.features) / part, getattr(torch, config.feature_dtype)
    stored = Extractor(extractor.target, sorted({*extractor.layers, *config.feature_layers}))
    _first_alone(world, lambda: build_cache(folder, texts, stored, dtype, say=say))
    return Cached(folder, extractor.layers)


def _check_manifest(config: TrainConfig, trainer: Trainer, folder: Path, world: World, *, resume: bool) -> None:
    """Write what this run is, or refuse to go on with another one."""
    settings = config.model_dump(mode="json")
    path = folder / MANIFEST
    if resume:
        before = json.loads(path.read_text("utf-8"))["settings"]
        here = {name: value for name, value in settings.items() if name not in _MAY_DIFFER}
        differing = differing_keys({name: before.get(name) for name in here}, here)
        if differing:
            raise ConfigError(f"{path}: the run was started with other settings: {', '.join(differing)}")
        return
    source = Path(config.regenerate or config.data)
    phases = [
        {"name": phase.name, "steps": steps, "stages": [stage.name for stage in phase.stages]}
        for phase, steps in zip(trainer.phases, trainer.totals, strict=True)
    ]
    data = {
        "file": str(source),
        "sha256": file_sha256(source),
        "texts": len(trainer.data.texts),
        "supervised_tokens": sum(text.supervised_tokens for text in trainer.data.texts),
    }
    model = {"target": config.target, "parameters": sum(p.numel() for p in trainer.trainee.parameters())}
    manifest = make_manifest(host=host_facts(), settings=settings, model=model, data=data) | {
        "phases": phases,
        "processes": world.size,
    }
    if world.first:
        write_json_atomic(path, manifest)


def _last_row(folder: Path) -> dict[str, Any]:
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    row: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return {k: v for k, v in row.items() if not (isinstance(v, float) and math.isnan(v))}
