"""The drafters of a table that nobody publishes, trained small: each is found under the digest of its settings.

A finished arm is reused, by other tables as well; a killed one goes on from its last state; one that was killed before
its first state begins anew. Rollouts, the target's replies and its states are shared by all arms.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import file_sha256
from agentbench_spec.results.provenance import settings_digest
from agentbench_spec.rollout import Rollout, write_rollouts
from agentbench_spec.runs.presets import ArmPreset, TrainingPreset
from agentbench_spec.runs.setup import Tell
from agentbench_spec.runs.source import read_source
from agentbench_spec.train.options import MANIFEST, TrainConfig, train_config
from agentbench_spec.train.state import STATE

TRAINER = "dlite"
FINISHED = "finished"
"""An empty file in the folder of an arm that was trained to its end."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What all arms learn from, and what they are measured on."""

    folder: Path
    held_out: Path
    """Rollouts file."""
    replies: Path
    """Token file of the target's replies to the rollouts trained on."""
    held_out_replies: Path


def training_data(preset: TrainingPreset, base: RunConfig, results: Path, tell: Tell) -> TrainingData:
    """Rollouts and the target's replies to them: what is missing is made. base: has the target.

    Raises ConfigError if the workload has too few rollouts.
    """
    from agentbench_spec.train.regenerate import regenerate

    shared: dict[str, Any] = {
        name: preset.settings[name] for name in ("max_tokens", "max_new_tokens") if name in preset.settings
    }
    wanted: dict[str, Any] = {
        **preset.model_dump(mode="json", exclude={"settings"}),
        "target": base.target.source,
        **shared,
    }
    folder = results / "training" / f"data-{settings_digest(wanted)[:12]}"
    names = ("held_out.jsonl", "train_replies.jsonl", "held_out_replies.jsonl")
    data = TrainingData(folder, *(folder / name for name in names))
    train = folder / "train.jsonl"
    if not (train.is_file() and data.held_out.is_file()):
        held_out, learnt = split(_rollouts(preset, base), preset)
        folder.mkdir(parents=True, exist_ok=True)
        write_rollouts(train, learnt)
        write_rollouts(data.held_out, held_out)
    for rollouts, replies in ((train, data.replies), (data.held_out, data.held_out_replies)):
        tell(f"the target's replies: {replies}")
        given: dict[str, Any] = {"target": base.target.source, "data": str(rollouts), **shared}
        regenerate(train_config(TRAINER, {}, {}, given), replies)
    return data


def _rollouts(preset: TrainingPreset, base: RunConfig) -> list[Rollout]:
    tree = base.model_dump(mode="json")
    tree["workload"] = {"name": preset.workload, "options": preset.options, "limit": preset.held_out + preset.train}
    return read_source(RunConfig.model_validate(tree)).rollouts


def split(rollouts: list[Rollout], preset: TrainingPreset) -> tuple[list[Rollout], list[Rollout]]:
    """(held out, trained on): the first ones, and those of the others that tell none of their scenarios.

    Raises ConfigError if one part is empty.
    """
    held_out, others = rollouts[: preset.held_out], rollouts[preset.held_out :]
    told = {name for rollout in held_out if (name := rollout.labels.get("scenario")) is not None}
    learnt = [rollout for rollout in others if rollout.labels.get("scenario") not in told][: preset.train]
    if not learnt:
        raise ConfigError(f"{preset.workload}: {len(rollouts)} rollouts leave none to train on beside those held out")
    return held_out, learnt


def arm_config(preset: TrainingPreset, arm: ArmPreset, data: TrainingData, target: str) -> TrainConfig:
    """The settings of an arm. Raises ConfigError naming one that does not exist."""
    settings = {**preset.settings, **arm.settings}
    given: dict[str, Any] = {
        "target": target,
        "data": str(data.replies),
        "held_out": str(data.held_out_replies),
        "features": str(data.folder / "states") if settings.get("feature_layers") else None,
    }
    return train_config(TRAINER, arm.options, settings, given)


def trained_arm(config: TrainConfig, name: str, results: Path, tell: Tell) -> Path:
    """The folder of the arm with these settings, trained to its end. Raises ConfigError as `train` does.

    name: of the arm, for the folder's name if it is the first with these settings.
    """
    from agentbench_spec.train.fit import train

    facts = config.model_dump(mode="json", exclude={"threads", "device", "held_out", "features"})
    facts["data"] = Path(config.data).parent.name  # named after its own settings, wherever it lies
    digest, place = settings_digest(facts)[:12], results / "training"
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    folder = next(iter(sorted(place.glob(f"*-{digest}"))), place / f"{plain}-{digest}")
    if (folder / FINISHED).is_file():
        _refuse_other_data(folder, config)
        tell(f"{name}: reusing {folder}")
        return folder
    begun = (folder / STATE).is_file()
    if folder.exists() and not begun:
        shutil.rmtree(folder)  # killed before its first state: nothing to go on from
    tell(f"{name}: {'going on in' if begun else 'training in'} {folder}")
    train(config, folder, resume=begun, say=tell)
    (folder / FINISHED).touch()
    return folder


def _refuse_other_data(folder: Path, config: TrainConfig) -> None:
    before = json.loads((folder / MANIFEST).read_text("utf-8"))["data"]["sha256"]
    if before != file_sha256(Path(config.data)):
        raise ConfigError(f"{folder} was trained on other texts than {config.data} holds now; remove it")
