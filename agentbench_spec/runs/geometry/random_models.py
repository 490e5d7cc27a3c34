"""Models of a geometry with random weights: a target made on its device, drafts whose loader makes them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from agentbench_spec.drafting import Drafter
from agentbench_spec.plugins import load_drafter
from agentbench_spec.results.provenance import write_json_atomic
from agentbench_spec.runs.geometry.published_shapes import Config, Draft, Shapes

_SCALE = 0.02


def empty_model(config: Config, dtype: torch.dtype) -> nn.Module:
    """The target without storage: for its names and bytes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(config)
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(values.pop("model_type"), **values), dtype=dtype
        )
    return model


def random_target(config: Config, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
    """The target with seeded weights, made on `device`; the global generators are untouched."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(config)
    own: Any = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        model: nn.Module = AutoModelForCausalLM.from_config(own, dtype=dtype)
    draw = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
            else:
                weight.normal_(0.0, _SCALE, generator=draw)
    return model.eval().requires_grad_(False)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, each once."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def write_draft(folder: Path, config: Config, shapes: Shapes, seed: int) -> None:
    """Write a checkpoint without weights, some kilobytes."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomic(folder / "config.json", config)
    write_json_atomic(folder / "random.json", {"seed": seed, "tensors": shapes})


def random_drafter(folder: Path, draft: Draft) -> Drafter:
    """The installed drafter over such a checkpoint; `open` makes the weights on the target's device."""
    return load_drafter(draft.drafter, checkpoint=str(folder))
