"""Data sets of the Hugging Face hub: what is asked for, what this machine's cache holds, and what the hub gives.

Whatever was asked for, data is read at one commit, and that commit is recorded. Where none was pinned, the newest is
taken and a warning names it, so that the next one can ask for the same.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from agentbench_spec.rollout import ConfigError, DataWarning

__all__ = ["HubClient", "HubSource", "HuggingFace", "Snapshot", "cached", "fetched", "hub_cache", "is_offline"]

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_COMMIT = re.compile("[0-9a-f]{40}")
_TIMEOUT_S = 10.0
"""Longest wait for the list of a data set's files, which is a small answer."""


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

    def complete(self, names: Iterable[str]) -> bool:
        """True if there is a file for every pattern."""
        names = list(names)
        return all(any(matches(name, (pattern,)) for name in names) for pattern in self.files)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files of a data set at one commit, on this machine."""

    commit: str
    root: Path
    files: tuple[Path, ...]


class HubClient(Protocol):
    """What is asked of the hub."""

    def listing(self, repo: str, revision: str | None) -> tuple[str, list[str]]:
        """The commit that `revision` stands for, and the files in it. Raises LookupError if there is none,
        ConnectionError if the hub cannot be reached."""
        ...

    def fetch(self, repo: str, commit: str, file: str) -> Path:
        """A file at a commit, on this machine. Raises as `listing` does."""
        ...


def is_offline(environ: Mapping[str, str]) -> bool:
    """True if one of the Hugging Face libraries' variables forbids the network."""
    return any(environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in _OFFLINE)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whole, or in a folder above: a copied folder may start anywhere in the repository."""
    return any(fnmatch(name, pattern) or fnmatch(f"/{name}", f"*/{pattern}") for pattern in patterns)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where the hub's library keeps what it fetched."""
    if own := environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    home = environ.get("HF_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "huggingface") / "hub"


def cached(cache: Path, hub: HubSource, revision: str | None, *, any_commit: bool = False) -> Snapshot | None:
    """What the cache holds at the revision, if it has a file for every pattern.

    any_commit: without a revision, and with no branch recorded, take the one complete snapshot there is. Raises
    ConfigError if a link of the cache leads nowhere.
    """
    folder = cache / f"datasets--{hub.repo.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    if commit is None and any_commit:
        found = [one for path in sorted(folder.glob("snapshots/*")) if (one := _snapshot(path, hub))]
        return found[0] if len(found) == 1 else None
    return _snapshot(folder / "snapshots" / commit, hub) if commit else None


def _snapshot(root: Path, hub: HubSource) -> Snapshot | None:
    files = sorted(path for path in root.rglob("*") if matches(path.relative_to(root).as_posix(), hub.files))
    if broken := [path for path in files if not path.exists()]:
        raise ConfigError(
            f"{broken[0]}: the link in the hub cache leads nowhere (to {broken[0].readlink()}); copy the cache with "
            "its links followed (`cp -rL`), or give data=PATH"
        )
    complete = hub.complete(path.relative_to(root).as_posix() for path in files)
    return Snapshot(root.name, root, tuple(files)) if complete else None


def fetched(hub: HubSource, revision: str | None, client: HubClient, suffixes: tuple[str, ...]) -> Snapshot:
    """The data set's files from the hub; suffixes: how data files are named. Raises ConfigError if none match.

    Raises LookupError and ConnectionError as the client does.
    """
    commit, names = client.listing(hub.repo, revision)
    wanted = sorted(name for name in names if matches(name, hub.files) and name.lower().endswith(suffixes))
    if not wanted:
        raise ConfigError(f"{hub.repo} at {commit} has no file {', '.join(hub.files)}; it holds {len(names)} others")
    files = [client.fetch(hub.repo, commit, name) for name in wanted]
    return Snapshot(commit, files[0].parents[len(Path(wanted[0]).parts) - 1], tuple(files))


def warn_if_unpinned(hub: HubSource, revision: str | None, snapshot: Snapshot) -> None:
    """Warn, once for each data set, that the next run may read another commit; how to have this one is said."""
    if revision is None or not _COMMIT.fullmatch(revision):
        asked = f"revision {revision!r} is a name that may move" if revision else "no revision is pinned"
        warnings.warn(
            f"data set {hub.repo}: {asked}; read at commit {snapshot.commit}. To read the same again, set "
            f"revision={snapshot.commit} (in `run`: workload.options.revision)",
            DataWarning,
            stacklevel=1,
        )


class HuggingFace:
    """The real hub."""

    def listing(self, repo: str, revision: str | None) -> tuple[str, list[str]]:
        """See HubClient."""
        from huggingface_hub import HfApi

        try:
            info = HfApi().dataset_info(repo, revision=revision, timeout=_TIMEOUT_S)
        except Exception as error:  # the library raises errors of several HTTP stacks
            raise _told(repo, error) from error
        return str(info.sha), [sibling.rfilename for sibling in info.siblings or ()]

    def fetch(self, repo: str, commit: str, file: str) -> Path:
        """See HubClient."""
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(repo, file, repo_type="dataset", revision=commit))
        except Exception as error:
            raise _told(f"{repo}/{file}", error) from error


def _told(what: str, error: Exception) -> Exception:
    """LookupError for what the hub answered, ConnectionError where it gave no answer."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    kind = LookupError if isinstance(error, HfHubHTTPError | EntryNotFoundError) else ConnectionError
    return kind(f"the hub did not give {what}: {reason}")
