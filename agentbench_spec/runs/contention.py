"""Other work on the machine: clocks read while processes compete for its cores say little about a drafter.

The kernel's counters tell how long all cores were busy, time a hypervisor took away included; what this process and
its children used is taken off.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import torch

_STAT = Path("/proc/stat")
_SHARE = 0.25
"""Part of what we need that others may take before clocks are called doubtful."""


class Reading(NamedTuple):
    """Seconds by three counters, read at one moment."""

    now_s: float
    busy_s: float
    """Of all cores, for whomever."""
    own_s: float
    """Of them, for this process and its children that ended."""


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
        self._began = _reading()
        return self

    def __exit__(self, *raised: object) -> None:
        self.cores = cores_between(self._began, _reading())


def doubtful(cores: float | None, device: torch.device) -> bool:
    """True if other work left less of the machine than the run needs: one core beside a GPU, else one per thread."""
    if cores is None:
        return False
    needed = 1 if device.type == "cuda" else min(torch.get_num_threads(), os.cpu_count() or 1)
    return cores > (os.cpu_count() or 1) - needed + _SHARE * needed


def note(cores: float | None) -> str:
    """What a reader is told of a measurement that was doubtful."""
    return f"other work took {cores or 0:.1f} cores of the machine meanwhile: its seconds and speed-ups are doubtful"


def _reading() -> Reading | None:
    """The counters now; None where the system does not tell."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _STAT.read_text().split(maxsplit=9)[1:9])
    except (OSError, ValueError):
        return None
    own = os.times()
    busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return Reading(time.perf_counter(), busy_s, own.user + own.system + own.children_user + own.children_system)
