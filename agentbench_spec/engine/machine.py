"""The machine a run is made on: its facts for the manifest, and the memory bandwidth a baseline is judged by."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def host_facts() -> dict[str, Any]:
    """Python, platform, CPU, threads, memory and accelerators of this machine; None where unknown."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
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


def _cpu_model() -> str | None:
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
    best, end = float("inf"), time.perf_counter() + budget_s
    passes = 0
    while passes < 2 or (time.perf_counter() < end and passes < 20):
        _synchronise(tensor)
        start = time.perf_counter()
        work()
        _synchronise(tensor)
        best, passes = min(best, time.perf_counter() - start), passes + 1
    return best


def _synchronise(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
