"""Two processes under torchrun's environment give the weights that one process gives, by DDP and by FSDP."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import trainkit as kit

from agentbench_spec.train.parallel import World, joined_world
from agentbench_spec.train.trainer import Trainer

pytestmark = pytest.mark.slow


def train_here(folder: Path, name: str, world: World, mode: str, until: int, resume: bool) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    target = kit.small_target(dtype=torch.float32)
    texts = kit.random_texts(6)
    trainee = kit.make_trainee(name, target, texts, torch.float32)
    folder.mkdir(exist_ok=True)
    settings = kit.config(steps=8, batch=4, parallel=mode, save_every=100, evaluate_every=100)
    trainer = Trainer(kit.step_of(trainee, target), settings, kit.online(target, trainee, texts), folder, world)
    if resume:
        trainer.resume()
    trainer.run(until=until)
    from agentbench_spec.train.parallel import full_tensors

    return {key: value.detach().clone() for key, value in full_tensors(trainee.state_dict()).items()}


def worker(rank: int, port: int, folder: Path, name: str, mode: str, until: int, resume: bool) -> None:
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in here.items()})
    with joined_world(torch.device("cpu")) as world:
        weights = train_here(folder, name, world, mode, until, resume)
        torch.save(weights, folder / f"weights-{rank}.pt")


def two_processes(folder: Path, name: str, mode: str, until: int, resume: bool = False) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(worker, (port, folder, name, mode, until, resume), nprocs=2)
    return [torch.load(folder / f"weights-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["dspark", "dlite"])
def test_two_processes_learn_what_one_learns(name: str, mode: str, tmp_path: Path) -> None:
    """Fails if denominators are per rank, gradients are averaged twice, or ranks draw the same texts."""
    alone = train_here(tmp_path / "one", name, World(), mode, 100, False)
    both = two_processes(tmp_path / "two", name, mode, 100)
    for weights in both:
        assert weights.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(weights[key], value, rtol=2e-3, atol=2e-4, msg=key)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_two_processes_resume(mode: str, tmp_path: Path) -> None:
    """Fails if a sharded optimiser state does not come back as it was."""
    whole = two_processes(tmp_path / "whole", "dlite", mode, 100)[0]
    two_processes(tmp_path / "broken", "dlite", mode, 12)
    broken = two_processes(tmp_path / "broken", "dlite", mode, 100, resume=True)[0]
    for key, value in whole.items():
        torch.testing.assert_close(broken[key], value, rtol=1e-6, atol=1e-7, msg=key)
