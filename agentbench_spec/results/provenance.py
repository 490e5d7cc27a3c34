"""The birth certificate of a run: what was asked, by which code, on which machine, over which data."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from agentbench_spec.writing import write_bytes

PACKAGES = (
    "agentbench-spec",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "huggingface_hub",
    "numpy",
    "pandas",
    "pyarrow",
)
"""Packages whose versions a manifest always names; None where one is not installed."""


def make_manifest(
    *,
    settings: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    host: Mapping[str, Any],
    argv: Sequence[str] | None = None,
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """The manifest of a run that starts now.

    settings: the resolved configuration, without what does not change the measurement (output folder, resume flag);
    model: provenance of the target and the drafters; data: digests of the workloads; host: the machine's facts;
    packages: further distributions to name. Two runs with one `settings_digest` measured the same thing.
    """
    what = {"settings": dict(settings), "model": dict(model), "data": dict(data)}
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv if argv is None else argv),
        "settings_digest": settings_digest(what),
        **what,
        "git": git_state(Path(__file__).parent),
        "packages": package_versions([*PACKAGES, *packages]),
        "host": dict(host),
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
    """Commit and dirty flag of the repository that tracks files of `folder`; both None where none does.

    A repository round a virtual environment says nothing of the packages in it. What runs write into results/ is no
    change of the code.
    """
    if not _git(folder, "ls-files", "."):
        return {"sha": None, "dirty": None}
    sha = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
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


def write_json_atomic(path: Path, value: Any) -> None:
    """Write `value` as JSON to an `output_file`: whole, or not at all. Raises ValueError on NaN."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())
