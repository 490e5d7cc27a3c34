"""The machine a run is made on: its facts, the memory bandwidth a baseline is judged by, other work on its cores."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

_STAT = Path("/proc/stat")


def host_facts() -> dict[str, Any]:
    """Python, platform, CPU, threads, memory and accelerators of this machine; None where unknown."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "ram_bytes": _ram_bytes(),
        "gpus": _gpus(),
        "cuda": torch.version.cuda,
    }


def machine_id(device: torch.device) -> str:
    """Tells this machine, and on a GPU this GPU of it, from others, without its name: 8 hex digits."""
    parts = [platform.node()]
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        parts.append(str(getattr(properties, "uuid", device.index or 0)))
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:8]


def cpu_model() -> str | None:
    """The CPU by the name it gives itself; None if it gives none."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    driver = _driver_version()
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [{"name": p.name, "memory_bytes": p.total_memory, "driver": driver} for p in properties]


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None


def measure_bandwidth_bytes_per_s(
    device: torch.device | str = "cpu", *, buffer_bytes: int = 3 << 28, budget_s: float = 1.0
) -> dict[str, float]:
    """Memory bandwidth of `device` through torch, best of several passes: {"read": ..., "copy": ...} in bytes/s.

    read: a matrix-vector product over the buffer, the access pattern of a decode step; copy: bytes read plus bytes
    written. The buffer must be several times the last-level cache: 768 MiB against the 260 MiB of large server parts.
    About 1.5 s on an idle machine.
    """
    rows, columns = buffer_bytes // 4 // 2048, 2048
    matrix = torch.ones(rows, columns, device=device)
    vector = torch.ones(columns, device=device)
    half = rows // 2
    read_s = _best_s(lambda: torch.mv(matrix, vector), matrix, budget_s / 2)
    copy_s = _best_s(lambda: matrix[:half].copy_(matrix[half : 2 * half]), matrix, budget_s / 2)
    return {"read": rows * columns * 4 / read_s, "copy": 2 * half * columns * 4 / copy_s}


def _best_s(work: Callable[[], object], tensor: Tensor, budget_s: float) -> float:
    timed: Callable[[int], float] = partial(_device_s if tensor.is_cuda else _host_s, work)
    repeats = 1
    while tensor.is_cuda and timed(repeats) < _LONG_ENOUGH_S:
        repeats *= 2
    best, end = float("inf"), time.perf_counter() + budget_s
    passes = 0
    while passes < 2 or (time.perf_counter() < end and passes < 20):
        best, passes = min(best, timed(repeats) / repeats), passes + 1
    return best


_LONG_ENOUGH_S = 0.02
"""Of a timed pass on a GPU: beside it the ends of a pass, where the GPU runs empty, do not count."""


def _host_s(work: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return time.perf_counter() - start


def _device_s(work: Callable[[], object], repeats: int) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(repeats):
        work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def without_plans(device: torch.device) -> None:
    """On CUDA, keep attention off cuDNN: it plans anew for each shape it meets, in the middle of timed turns."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def kernels_of(work: Callable[[], object]) -> int:
    """Kernels that `work` has a GPU run, counted by the profiler; memory copies are none."""
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    ran = [event for event in profile.events() if event.device_type.name == "CUDA"]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in ran)


class Reading(NamedTuple):
    """Seconds by the kernel's counters, read at one moment."""

    now_s: float
    busy_s: float
    """Of all cores, for whomever."""
    own_s: float
    """Of them, for this process and its children that ended."""
    steal_s: float = 0.0
    """Of them, for other machines on the same hardware."""


def cores_between(began: Reading | None, ended: Reading | None) -> float | None:
    """Mean cores that others kept busy between two readings; None without them."""
    if began is None or ended is None or ended.now_s <= began.now_s:
        return None
    others_s = (ended.busy_s - began.busy_s) - (ended.own_s - began.own_s)
    return round(max(others_s / (ended.now_s - began.now_s), 0.0), 3)  # the kernel counts in ticks: never below 0


class OtherWork:
    """Cores that other work kept busy: `with OtherWork() as other: ...; other.cores`."""

    cores: float | None = None
    """Mean over the time inside; None where the system does not tell, or nothing was timed."""

    def __enter__(self) -> OtherWork:
        self._began = reading()
        return self

    def __exit__(self, *raised: object) -> None:
        self.cores = cores_between(self._began, reading())


def reading() -> Reading | None:
    """The counters now; None where the system does not tell."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _STAT.read_text().split(maxsplit=9)[1:9])
    except (OSError, ValueError):
        return None
    own, ticks = os.times(), os.sysconf("SC_CLK_TCK")
    busy_s = (user + nice + system + irq + softirq + steal) / ticks
    own_s = own.user + own.system + own.children_user + own.children_system
    return Reading(time.perf_counter(), busy_s, own_s, steal / ticks)
