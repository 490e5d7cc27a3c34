"""Several processes under `torchrun`: who is who, wrapping by torch's DDP or FSDP, sums over ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn

from agentbench_spec.errors import ConfigError

__all__ = ["Mode", "World", "full_tensors", "joined_world", "last_sync_only", "sharded_like", "summed", "wrap"]

Mode = Literal["ddp", "fsdp"]


@dataclass(frozen=True, slots=True)
class World:
    """This process among all."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """True for the process that writes files and talks."""
        return self.rank == 0


@contextmanager
def joined_world(device: torch.device) -> Iterator[World]:
    """The world `torchrun` set up, or a world of one; left again at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(distributed.get_rank(), size, device)
    finally:
        distributed.destroy_process_group()


def wrap(module: nn.Module, world: World, mode: Mode) -> nn.Module:
    """`module` with gradients averaged over ranks; itself in a world of one."""
    if world.size == 1:
        return module
    if mode == "fsdp":
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if not isinstance(module, FSDPModule):
            fully_shard(module)
        return module
    if mode != "ddp":
        raise ConfigError(f"parallel is {mode!r}; choose ddp or fsdp")
    ids = [world.device.index] if world.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(module, device_ids=ids, broadcast_buffers=False)


def last_sync_only(module: nn.Module, *, last: bool) -> Any:
    """Context of one micro-batch: gradients cross ranks only at the last one of a step."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return nullcontext() if last else module.no_sync()
    set_sync: Any = getattr(module, "set_requires_gradient_sync", None)
    if set_sync is not None:
        set_sync(last)
    return nullcontext()


def summed(values: Tensor, world: World) -> Tensor:
    """`values` summed over all ranks."""
    if world.size > 1:
        distributed.all_reduce(values)
    return values


def full_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict, nested or not, with sharded tensors made whole; every rank must call it."""
    return {name: _full(value) for name, value in state.items()}


def _full(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _full(each) for name, each in value.items()}
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def sharded_like(optimizer_state: dict[str, Any], parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
    """An optimiser's state with whole tensors, cut the way `parameters` are; unchanged where they are not sharded."""
    moved = {}
    for index, state in optimizer_state["state"].items():
        moved[index] = {name: _cut_like(value, parameters[int(index)]) for name, value in state.items()}
    return {**optimizer_state, "state": moved}


def _cut_like(value: Any, parameter: Any) -> Any:
    if not hasattr(parameter, "device_mesh") or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)
