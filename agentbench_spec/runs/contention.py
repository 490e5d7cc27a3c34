"""Other work on the machine: clocks read while processes compete for its cores say little about a drafter.

The kernel's counters tell how long all cores were busy, time a hypervisor took away included; what this process and
its children used is taken off. They also tell how long our threads were ready and did not run, and how long anyone
waited for a core, for memory or for a disk. On a GPU its driver tells its clock, why it is held back, and who else
computes on it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from agentbench_spec.engine.machine import cores_between, reading
from agentbench_spec.runs.gpu_state import gpu_state

_PRESSURE, _TASKS = Path("/proc/pressure"), Path("/proc/self/task")
_SHARE = 0.25
"""Part of what we need that others may take before clocks are called doubtful."""


class Noise:
    """What others took while a drafter decoded: `with Noise(device) as noise: ...; noise.fields`."""

    def __init__(self, device: torch.device):
        self._device = device
        self.fields: dict[str, Any] = {}
        """The columns of a row that say so; a value that the system does not tell is None."""

    def __enter__(self) -> Noise:
        self._began, self._waits = reading(), _waits()
        return self

    def __exit__(self, *raised: object) -> None:
        began, ended, waits = self._began, reading(), _waits()
        steal_s = None if began is None or ended is None else _passed(began.steal_s, ended.steal_s)
        self.fields = {
            **{name: _passed(self._waits[name], now) for name, now in waits.items()},
            "steal_s": steal_s,
            "other_cores": cores_between(began, ended),
            **gpu_state(self._device),
        }


def doubtful(cores: float | None, device: torch.device) -> bool:
    """True if other work took a quarter of the machine's cores, or, beside a GPU, left less than one of them.

    On a CPU it need not take cores that the run has: all share the memory, which sets the pace of decoding.
    """
    if cores is None:
        return False
    all_cores = os.cpu_count() or 1
    return cores > (all_cores - 1 + _SHARE if device.type == "cuda" else _SHARE * all_cores)


def note(cores: float | None) -> str:
    """What a reader is told of a measurement that was doubtful."""
    return f"other work took {cores or 0:.1f} cores of the machine meanwhile: its seconds and speed-ups are doubtful"


def _passed(before: float | None, after: float | None) -> float | None:
    """Seconds between two readings; threads that ended take theirs with them, so never below 0."""
    return None if before is None or after is None else round(max(after - before, 0.0), 6)


def _waits() -> dict[str, float | None]:
    """Seconds waited so far, by our threads for a core and by anyone for each resource."""
    pressures = {f"{name}_pressure_s": _pressure_s(name) for name in ("cpu", "memory", "io")}
    return {"waiting_s": _waiting_s(), **pressures}


def _waiting_s() -> float | None:
    try:
        return sum(int((task / "schedstat").read_text().split()[1]) for task in _TASKS.iterdir()) / 1e9
    except (OSError, ValueError, IndexError):  # another system, or a thread that has just ended
        return None


def _pressure_s(resource: str) -> float | None:
    """Total of the line "some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS"."""
    try:
        return int((_PRESSURE / resource).read_text().split(maxsplit=5)[4].removeprefix("total=")) / 1e6
    except (OSError, ValueError, IndexError):
        return None
