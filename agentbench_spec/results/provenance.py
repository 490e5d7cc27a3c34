"""The birth certificate of a run: what was asked, by which code, on which machine, over which data."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.writing import write_bytes

PACKAGES = ("agentbench-spec", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas", "pyarrow")
"""Packages whose versions a manifest always names; None where one is not installed."""


def make_manifest(
    *,
    settings: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    argv: Sequence[str] | None = None,
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """The manifest of a run that starts now.

    settings: the resolved configuration, without what does not change the measurement (output folder, resume flag);
    model: provenance of the target and the drafters; data: digests of the workloads; packages: further distributions
    to name. Two runs with one `settings_digest` measured the same thing.
    """
    what = {"settings": dict(settings), "model": dict(model), "data": dict(data)}
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv if argv is None else argv),
        "settings_digest": settings_digest(what),
        **what,
        "git": git_state(Path(__file__).parent),
        "packages": package_versions([*PACKAGES, *packages]),
        "host": host_facts(),
    }


def settings_digest(values: Mapping[str, Any]) -> str:
    """sha256 of `values` as canonical JSON. Raises TypeError or ValueError if they are not JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, allow_nan=False).encode()).hexdigest()


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Dotted names of the entries in which two nested mappings differ, each with both values."""
    flat_old, flat_new = _flatten(old), _flatten(new)
    return [
        f"{name} ({flat_old.get(name, 'absent')!r:.60} -> {flat_new.get(name, 'absent')!r:.60})"
        for name in sorted(flat_old.keys() | flat_new.keys())
        if flat_old.get(name, _ABSENT) != flat_new.get(name, _ABSENT)
    ]


_ABSENT = object()


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    # Through JSON, because one side was read from a file: tuples are lists there, and number keys are text.
    if isinstance(values, Mapping) and values:
        parts = [_flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in values.items()]
        return {name: value for part in parts for name, value in part.items()}
    return {prefix: json.loads(json.dumps(values))}


def git_state(folder: Path) -> dict[str, Any]:
    """Commit and dirty flag of the repository that holds `folder`; both None where there is no git or no repository."""
    sha, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"sha": sha, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str | None]:
    """Installed version of each distribution; None where it is not installed."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


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


def write_json_atomic(path: Path, value: Any) -> None:
    """Write `value` as JSON to an `output_file`: whole, or not at all. Raises ValueError on NaN."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())
