"""What the driver of an NVIDIA GPU says of it: clock, reasons for being held back, other processes."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch

_UNKNOWN: dict[str, int | None] = {"gpu_clock_mhz": None, "gpu_throttle": None, "gpu_others": None}
_IDLE = 0x1
"""NVML's bit for "the GPU has nothing to do", which is no reason to distrust a clock."""


def gpu_state(device: torch.device) -> dict[str, int | None]:
    """Three columns of a row, each None where the driver, or the package nvidia-ml-py, does not tell."""
    if device.type != "cuda":
        return _UNKNOWN
    nvml, handle = _handle(torch.cuda.current_device() if device.index is None else device.index)
    if handle is None:
        return _UNKNOWN
    return {
        "gpu_clock_mhz": _asked(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "gpu_throttle": _reasons(_asked(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)),
        "gpu_others": _others(_asked(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)),
    }


@cache
def _handle(index: int) -> tuple[Any, Any]:
    """(the module, the device by its UUID, as CUDA_VISIBLE_DEVICES may renumber); (None, None) without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except Exception:  # no package, no driver, an older torch: nothing is told, and nothing fails for it
        return None, None


def _asked(nvml: Any, question: str, *arguments: Any) -> Any:
    try:
        return getattr(nvml, question)(*arguments)
    except Exception:  # not supported on this device
        return None


def _reasons(bits: int | None) -> int | None:
    return None if bits is None else bits & ~_IDLE


def _others(processes: list[Any] | None) -> int | None:
    if processes is None:
        return None
    pids = [process.pid for process in processes]
    return len(pids) - 1 if os.getpid() in pids else max(len(pids) - 1, 0)  # in a container our own pid is another
