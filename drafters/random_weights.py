"""Checkpoints without weights: `random.json` names tensors and a seed, and their values are made where they are needed.

For speed alone: shapes as published, bytes and kernels as with a real checkpoint, guesses of no worth. The same seed on
the same kind of device gives the same values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError

FILE = "random.json"
_SCALE = 0.02


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape. Raises ConfigError naming what is wrong with the file."""
    shapes = _read(path)["tensors"]
    for name, shape in shapes.items():
        if not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
            raise ConfigError(f"{path}: tensors.{name} is {shape!r}; it must be a list of sizes")
    return {name: tuple(shape) for name, shape in shapes.items()}


def made(path: Path, device: torch.device | str = "cpu") -> Iterator[tuple[str, Tensor]]:
    """Every (name, tensor) in float32 on `device`: ones for vectors, small normal values for tables.

    `d2t`, a vocabulary map by offsets, is zeros: the first ids are those the draft can say. Raises ConfigError as
    `shapes_in` does.
    """
    seed = _read(path).get("seed", 0)
    draw = torch.Generator(device)
    for name, shape in shapes_in(path).items():
        if name == "d2t":
            yield name, torch.zeros(shape, dtype=torch.int64, device=device)
        elif len(shape) == 1:
            yield name, torch.full(shape, 0.0 if name.endswith("bias") else 1.0, device=device)
        else:
            draw.manual_seed(int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big"))
            yield name, torch.empty(shape, device=device).normal_(0.0, _SCALE, generator=draw)


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("tensors"), dict):
        raise ConfigError(f"{path}: expected an object with 'tensors', a name and a list of sizes each, and 'seed'")
    return said
