"""The resumable state of a training run: weights, optimiser, steps done. Whole on disk or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agentbench_spec.errors import ConfigError
from agentbench_spec.train.parallel import World, full_tensors

__all__ = ["STATE", "load_state", "save_state"]

STATE = "state.pt"


def save_state(folder: Path, state: dict[str, Any], world: World) -> None:
    """Write the state; every rank must call it, the first one writes."""
    whole = full_tensors(state)
    if world.first:
        partial = folder / f".{STATE}.partial"
        torch.save(whole, partial)
        partial.replace(folder / STATE)


def load_state(folder: Path, device: torch.device) -> dict[str, Any]:
    """Read the state; nothing but tensors and plain values is unpickled. Raises ConfigError if there is none."""
    path = folder / STATE
    if not path.is_file():
        raise ConfigError(f"{path}: no state to resume from; start without --resume")
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state
