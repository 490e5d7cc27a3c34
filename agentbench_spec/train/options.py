"""Every setting of a training run and its default. None: what the trainee's recipe says."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentbench_spec.errors import ConfigError

__all__ = ["MANIFEST", "TrainConfig", "check_folder", "train_config"]

MANIFEST = "train.json"


class TrainConfig(BaseModel):
    """One training run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    drafter: str
    """Installed trainer, or "module:factory"."""
    options: dict[str, Any] = {}
    """Passed to the trainer's factory."""
    target: str = "smollm2-135m"
    """Hub id, local folder, or the embedded smollm2-135m."""
    target_dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    data: str = ""
    """Rollouts, conversations or token file."""
    held_out: str | None = None
    """The same kinds of file; measured, never trained on."""
    max_tokens: int = Field(default=4096, ge=4)
    """Texts are cut here."""
    min_supervised_tokens: int | None = Field(default=None, ge=1)
    """Texts with fewer are left out; None: two blocks' worth."""
    regenerate: str | None = None
    """Token file with the target's own replies to the prompts of `data`: made if absent, then trained on."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Cap of a regenerated reply."""
    temperature: float = Field(default=0.0, ge=0)
    """Of regenerated replies."""
    features: str | None = None
    """Folder for target features; None: computed whenever a text is drawn."""
    feature_layers: tuple[int, ...] = Field(default=(), strict=False)
    """Target layers stored there besides the drafter's own, so that several drafters can share the folder."""
    feature_dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    steps: int = Field(default=1000, ge=1)
    """Optimiser steps of the drafter's own phase."""
    batch: int = Field(default=4, ge=1)
    """Texts per step, over all ranks; each is one micro-batch."""
    anchors: int | None = Field(default=512, ge=1)
    """Blocks per text and step; None: all."""
    learning_rate: float | None = Field(default=None, gt=0)
    warmup: float | None = Field(default=None, ge=0, lt=1)
    """Part of a phase's steps with a rising learning rate."""
    clip_norm: float | None = Field(default=None, gt=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the forward pass; weights, optimiser and losses stay float32."""
    rows_at_once: int = Field(default=2048, ge=1)
    """Predicted positions whose logits are held at a time."""
    loss_tokens: int | None = Field(default=None, ge=2)
    """Tokens the losses are taken over: frequent ones, labels, and a sample that stands for the rest; None: all."""
    checkpoint_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    seed: int = 42
    save_every: int = Field(default=200, ge=1)
    """Steps between resumable states."""
    evaluate_every: int = Field(default=200, ge=1)
    """Steps between measurements on `held_out`."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; None: torch's default."""


def train_config(
    drafter: str, options: Mapping[str, Any], assignments: Mapping[str, Any], flags: Mapping[str, Any]
) -> TrainConfig:
    """The settings: defaults, then assignments ("--set"), then flags that are not None.

    options: of the trainer's factory. Raises ConfigError naming a setting that does not exist or does not fit.
    """
    given = {**assignments, **{name: value for name, value in flags.items() if value is not None}}
    try:
        return TrainConfig(drafter=drafter, options=dict(options), **given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] != "extra_forbidden":
            raise ConfigError(f"setting {name}: {first['msg']}, got {first['input']!r}") from None
        near = difflib.get_close_matches(name, TrainConfig.model_fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; options of the drafter go to --option"
        raise ConfigError(f"unknown training setting {name!r}{hint}") from None


def check_folder(folder: Path, *, resume: bool) -> None:
    """Raises ConfigError if `folder` holds a run where a new one is wanted, or none where one is to be resumed."""
    if not resume and (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} holds a training run; continue it with --resume, or name another folder")
    if resume and not (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} holds no training run to resume")
