"""Reading a run's manifest: what readers use of it has its type, or the error names file and field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.row_formats import refuse_newer


class _Part(BaseModel):
    """A part of the manifest: what readers use of it has its type, all else may be anything."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Workload(_Part):
    name: str | None = None
    options: dict[str, Any] | None = None


class _Measure(_Part):
    seed: int | None = Field(None, ge=0)
    include_degenerate: bool | None = None


class _Decode(_Part):
    max_new_tokens: int | None = None


class _Settings(_Part):
    target: dict[str, Any] | None = None
    workload: _Workload | None = None
    decode: _Decode | None = None
    measure: _Measure | None = None


class _Host(_Part):
    threads: int | None = None
    ram_bytes: int | None = None
    gpus: list[dict[str, Any]] | None = None


class _TapsCost(_Part):
    cost: float
    low: float
    high: float
    pairs: int


class _Card(_Part):
    target: str | None = None
    dtype: str | None = None
    device: str | None = None
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    read_bytes_per_s: float | None = None
    phase_cost_s: float | None = None
    taps_cost: _TapsCost | float | None = None
    """A number in manifests of before it had an interval."""
    floor_s: float | None = None
    launches: dict[str, Any] | None = None


class _Git(_Part):
    sha: str | None = None


class _Manifest(_Part):
    settings: _Settings | None = None
    model: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    host: _Host | None = None
    card: _Card | None = None
    git: _Git | None = None
    packages: dict[str, str | None] | None = None
    notes: list[str] | None = None
    finished: str | None = None


def load_manifest(path: Path) -> dict[str, Any]:
    """The manifest in `path`. Raises ConfigError if it is missing, unreadable or newer than this package."""
    _refuse_missing(path)
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}); restore the file") from error
    if not isinstance(manifest, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(manifest).__name__}; restore the file")
    refuse_newer(manifest.get("schema"), str(path))
    _check(manifest, path)
    return manifest


def _refuse_missing(path: Path) -> None:
    folder = path.parent
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; name the folder of a run, such as {folder.parent}")
    if not folder.is_dir():
        raise ConfigError(f"{folder} holds no run: there is no such folder")
    if not path.is_file():
        raise ConfigError(f"{folder} holds no run ({path.name} is missing); name a folder that a run was written to")


def _check(manifest: Mapping[str, Any], path: Path) -> None:
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{path}: field {name!r}: {first['msg']} (got {first['input']!r:.80}); restore the file"
        ) from error


def counting(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """How the run's own figures were taken from its rows: options of `summary.summarise`."""
    measure = (manifest.get("settings") or {}).get("measure") or {}
    return {"include_degenerate": bool(measure.get("include_degenerate"))}
