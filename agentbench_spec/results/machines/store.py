"""Run folders on an object store, through fsspec: worked on in a folder of this machine, and kept equal to the store.

An object store cannot append and cannot lock, so a run is written here, and its files are sent whenever a rollout is
complete. A folder that is shared between machines is a path like any other and needs none of this.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import MANIFEST, ROLLOUTS, TURNS, read_manifest
from agentbench_spec.writing import cache_root, write_bytes

_ADDRESS = ".store"
"""File of the local folder that holds the store's address."""
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(?=[^/])(.*)")


def url_of(folder: str | Path) -> str | None:
    """The address that `folder` means, "s3://bucket/run", a lost slash put back; None: it is a path of this machine."""
    found = _URL.fullmatch(str(folder))
    return f"{found[1]}://{found[2].rstrip('/')}" if found and found[1] != "file" else None


def shown(folder: Path) -> str:
    """How a run folder is told to its user: by the store's address if it is the copy of one."""
    store = store_of(folder)
    return store.url if store else str(folder)


def reading(folder: str | Path) -> Path:
    """The folder to read a run from: `folder`, or what the store holds now, fetched. Raises ConfigError naming it."""
    url = url_of(folder)
    if url is None:
        return Path(folder)
    store = _Store(url)
    if MANIFEST not in store.names():
        raise ConfigError(f"{url} holds no run ({MANIFEST} is missing); name a folder that a run was written to")
    if not _is_ahead(store):
        store.fetch()
    return store.folder


def writing(folder: str | Path) -> Path:
    """The folder to write or resume a run in: `folder`, or one whose files are sent to the store as they grow.

    What the store holds of a run is fetched first, unless this machine holds the same run and more of it.
    """
    url = url_of(folder)
    if url is None:
        return Path(folder)
    store = _Store(url)
    if MANIFEST in store.names() and not _is_ahead(store):
        store.fetch()
    store.folder.mkdir(parents=True, exist_ok=True)
    write_bytes(store.folder / _ADDRESS, url.encode())
    return store.folder


def refuse_store(option: str, folder: Path | None) -> None:
    """Raises ConfigError where an address is given to an option that takes folders of this machine only."""
    if folder is not None and (url := url_of(folder)):
        raise ConfigError(f"{option} {url}: only run folders may lie on a store; name a folder of this machine")


def store_of(folder: Path) -> _Store | None:
    """The store that a local folder is the copy of."""
    path = folder / _ADDRESS
    return _Store(path.read_text("utf-8")) if path.is_file() else None


def _is_ahead(store: _Store) -> bool:
    """True if this machine holds the run that the store does, with as many rollouts or more."""
    own, kept = store.folder / MANIFEST, store.folder / ROLLOUTS
    if not own.is_file():
        return False
    there = store.read(ROLLOUTS) if ROLLOUTS in store.names() else b""
    same = str(read_manifest(store.folder).get("started")) in store.read(MANIFEST).decode()
    return same and (kept.read_bytes() if kept.is_file() else b"").startswith(there)


@dataclass(frozen=True, slots=True)
class _Store:
    """A run folder at an address, and its copy here."""

    url: str

    @property
    def folder(self) -> Path:
        """The copy."""
        protocol, _, path = self.url.partition("://")
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        return cache_root().joinpath("stores", protocol, *parts)

    def names(self) -> set[str]:
        """Files of the run at the store; none if it is not there. Raises ConfigError if the store cannot be asked."""
        system, path = self._system()
        try:
            system.invalidate_cache()
            return {str(name).rsplit("/", 1)[-1] for name in system.ls(path, detail=False)}
        except FileNotFoundError:
            return set()
        except Exception as error:  # every store has errors of its own
            raise ConfigError(
                f"{self.url}: {type(error).__name__}: {error}; check the address and the log-in"
            ) from error

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        system, path = self._system()
        return bytes(system.cat_file(f"{path}/{name}"))

    def fetch(self) -> None:
        """Make the copy equal to the store."""
        names = self.names()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name in sorted(name for name in names if not name.startswith(".")):
            write_bytes(self.folder / name, self.read(name))

    def send(self) -> None:
        """Make the store equal to the copy. Raises what the store does.

        Rows go first: a reader in between finds rows of a rollout that is not complete, never one without its rows.
        """
        system, path = self._system()
        system.makedirs(path, exist_ok=True)
        for file in _in_order(self.folder):
            system.pipe_file(f"{path}/{file.name}", file.read_bytes())

    def _system(self) -> tuple[Any, str]:
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{self.url}: {error}") from error
        return system, str(path).rstrip("/")


def _in_order(folder: Path) -> Iterator[Path]:
    files = {path.name: path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    first, last = [TURNS], [ROLLOUTS, MANIFEST]
    others = sorted(files.keys() - {*first, *last})
    yield from (files[name] for name in (*others, *first, *last) if name in files)
