"""Data sets of the Hugging Face hub, by its own library: files at one commit, from the cache or over the network.

Whatever was asked for, data is read at one commit, and that commit is recorded. Where none was pinned, the newest is
taken and a warning names it, so that the next one can ask for the same. Only files are fetched; no script ever runs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from agentbench_spec.rollout import ConfigError, DataWarning

__all__ = ["HubSource", "Snapshot", "cache_of", "matches", "offline_by", "taken", "warn_if_unpinned"]

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_COMMIT = re.compile("[0-9a-f]{40}")
_TIMEOUT_S = 10.0
"""Longest wait for the hub's first answer, which is a small one."""
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


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
class Snapshot:
    """Files of a data set at one commit, on this machine."""

    commit: str
    root: Path
    files: tuple[Path, ...]


def offline_by(environ: Mapping[str, str]) -> str | None:
    """The variable of the Hugging Face libraries that forbids the network, if one does."""
    return next((name for name in _OFFLINE if environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}), None)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whole, or in a folder above: a copied folder may start anywhere in the repository."""
    return any(fnmatch(name, pattern) or fnmatch(f"/{name}", f"*/{pattern}") for pattern in patterns)


def cache_of(environ: Mapping[str, str]) -> Path:
    """Where the hub's library keeps what it fetched."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(environ.get("HF_HUB_CACHE") or HF_HUB_CACHE).expanduser()


def taken(hub: HubSource, revision: str | None, cache: Path, offline: str | None) -> Snapshot:
    """The files of a data set: a commit that is whole in the cache from there, the rest from the hub.

    offline: why the hub must not be asked. Where it gives no answer, what the cache holds is taken. Raises LookupError
    if the hub refuses, ConnectionError if it cannot give the files and the cache does not hold them, ConfigError if the
    data set has none of them or a link of the cache leads nowhere.
    """
    pinned = revision is not None and _COMMIT.fullmatch(revision) is not None
    if (offline or pinned) and (found := _kept(hub, revision, cache, sure=not offline)):
        return found
    if offline:
        raise ConnectionError(f"offline ({offline} is set)")
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(hub.repo, revision=revision, timeout=_TIMEOUT_S)
    except Exception as error:  # the library raises errors of several HTTP stacks
        told = _told(hub.repo, revision, error)
        if isinstance(told, ConnectionError) and (found := _kept(hub, revision, cache)):
            return found
        raise told from error
    try:
        found = _download(hub, revision, cache)
    except Exception as error:
        raise _told(hub.repo, revision, error, begun=True) from error
    return _not_empty(hub, found, cache)


def _download(hub: HubSource, revision: str | None, cache: Path, *, kept: bool = False) -> Snapshot:
    from huggingface_hub import snapshot_download

    wanted = [*hub.files, *(f"*/{pattern}" for pattern in hub.files)]
    root = Path(
        snapshot_download(
            hub.repo,
            repo_type="dataset",
            revision=revision,
            cache_dir=cache,
            allow_patterns=wanted,
            local_files_only=kept,
        )
    )
    return Snapshot(root.name, root, tuple(_files(root, hub)))


def _kept(hub: HubSource, revision: str | None, cache: Path, *, sure: bool = False) -> Snapshot | None:
    """What the cache holds whole; sure: only by the hub's own list of the files, which an older cache lacks.

    Without a revision, and with no branch recorded, it is the one commit there is. Raises ConfigError for a link that
    leads nowhere.
    """
    from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        found = _download(hub, revision, cache, kept=True)
    except LocalEntryNotFoundError as error:
        if isinstance(error, IncompleteSnapshotError) and not sure:
            _refuse_broken_links(Path(str(error.snapshot_path)), hub)
        others = _commits(hub, cache) if revision is None else []
        whole = [one for commit in others if (one := _kept(hub, commit, cache))]
        return whole[0] if len(whole) == 1 else None
    if _listed(hub, found.commit, cache) is not None:
        return _not_empty(hub, found, cache)
    if sure:
        return None
    _refuse_broken_links(found.root, hub)
    names = [file.relative_to(found.root).as_posix() for file in found.files]
    return found if all(any(matches(name, (pattern,)) for name in names) for pattern in hub.files) else None


def _files(root: Path, hub: HubSource) -> Iterator[Path]:
    """The wanted files, links that lead nowhere among them."""
    yield from sorted(
        path for path in root.rglob("*") if not path.is_dir() and matches(path.relative_to(root).as_posix(), hub.files)
    )


def _refuse_broken_links(root: Path, hub: HubSource) -> None:
    for path in _files(root, hub):
        if not path.exists():
            raise ConfigError(
                f"{path}: the link in the hub cache leads nowhere (to {path.readlink()}); copy the cache with its "
                "links followed (`cp -rL`), or give data=PATH"
            )


def _commits(hub: HubSource, cache: Path) -> list[str]:
    """The commits of the data set that the cache knows."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(cache).repos
    except CacheNotFound:
        return []
    return [
        r.commit_hash
        for repo in found
        if (repo.repo_id, repo.repo_type) == (hub.repo, "dataset")
        for r in repo.revisions
    ]


def _listed(hub: HubSource, commit: str, cache: Path) -> int | None:
    """How many files the hub said the commit has; None if that is not in the cache."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return len(get_cached_repo_tree(hub.repo, repo_type="dataset", revision=commit, cache_dir=cache))
    except CachedRepoTreeNotFoundError:
        return None


def _not_empty(hub: HubSource, found: Snapshot, cache: Path) -> Snapshot:
    if not found.files:
        others = _listed(hub, found.commit, cache)
        raise ConfigError(f"{hub.repo} at {found.commit} has no file {', '.join(hub.files)}; it holds {others} others")
    return found


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


def _told(repo: str, revision: str | None, error: Exception, *, begun: bool = False) -> Exception:
    """LookupError for what the hub refused, ConnectionError where it gave no answer, or not all that it had begun."""
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    while isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, OfflineModeIsEnabled):
        return ConnectionError("huggingface_hub was offline when it was loaded")
    did_not = f"the hub did not give {repo} ({ENDPOINT})"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError):
        return LookupError(
            f"{did_not}: it is gated ({status}); accept its terms at {ENDPOINT}/datasets/{repo} and {_LOG_IN}"
        )
    if status in (401, 403):
        return LookupError(f"{did_not}: access is refused ({status}); it is private, or misspelt: {_LOG_IN}")
    if isinstance(error, RepositoryNotFoundError):
        return LookupError(f"{did_not}: there is none of that name ({status}), or it is private: {_LOG_IN}")
    if isinstance(error, RevisionNotFoundError):
        return LookupError(f"{did_not}: it has no revision {revision}")
    lines: Iterable[str] = map(str.strip, str(error).splitlines())
    reason = next(filter(None, lines), type(error).__name__)
    if status is not None and status < 500 and status != 429:
        return LookupError(f"{did_not}: {reason}")
    goes_on = "; what was fetched is kept, and the same command goes on from there" if begun else ""
    return ConnectionError(f"{did_not}: {reason}{goes_on}")
