"""Clocks read on a busy machine are called doubtful."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from agentbench_spec.engine.machine import OtherWork, Reading, cores_between
from agentbench_spec.runs.contention import doubtful

CPU = torch.device("cpu")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other processes that count as fast as they can."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat")
def test_other_work_is_seen() -> None:
    """Fails if neighbours that keep every core busy go unseen."""
    cores = os.cpu_count() or 1
    with busy(cores):
        time.sleep(0.3)
        with OtherWork() as other:
            time.sleep(1)
    assert other.cores is not None and other.cores > 0.5 * cores


def test_our_own_work_is_taken_off() -> None:
    """Fails if a run that keeps two cores busy for ten seconds is told that others did."""
    began = Reading(now_s=100.0, busy_s=5000.0, own_s=40.0)
    assert cores_between(began, Reading(now_s=110.0, busy_s=5025.0, own_s=60.0)) == 0.5
    assert cores_between(began, Reading(now_s=110.0, busy_s=5019.99, own_s=60.0)) == 0.0, "ticks round down"
    assert cores_between(None, began) is None and cores_between(began, began) is None


@pytest.mark.parametrize("threads", [1, os.cpu_count() or 1])
def test_other_work_shares_the_memory_even_on_cores_of_its_own(threads: int) -> None:
    """Fails if one thread passes for undisturbed beside a job on the other core, or if a little work voids a run."""
    cores, before = os.cpu_count() or 1, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert doubtful(0.5 * cores, CPU) and not doubtful(0.1 * cores, CPU)
    finally:
        torch.set_num_threads(before)


def test_beside_a_gpu_one_core_is_enough() -> None:
    """Fails if a core nobody needs voids a run, or if the one that launches may be taken."""
    cores = os.cpu_count() or 1
    assert not doubtful(cores - 1.0, torch.device("cuda")) and doubtful(cores - 0.5, torch.device("cuda"))
    assert not doubtful(None, CPU)
