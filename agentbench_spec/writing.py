"""Output files: whole or untouched where a file stands, written through where something else does.

Knows nothing of what is written; imports nothing of ours but errors, so that every room can use it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agentbench_spec.errors import ConfigError

__all__ = ["cache_root", "is_special", "is_stdout", "output_file", "write_bytes"]


def cache_root() -> Path:
    """Cache folder: AGENTBENCH_SPEC_CACHE, else XDG_CACHE_HOME/agentbench-spec, else ~/.cache/agentbench-spec."""
    if own := os.environ.get("AGENTBENCH_SPEC_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agentbench-spec"


def is_special(path: Path) -> bool:
    """Whether `path` leads to a device, a pipe or an open descriptor (/dev/stdout): it cannot be read back."""
    where = _followed(path)
    return _descriptor(where) is not None or (where.exists() and not stat.S_ISREG(where.stat().st_mode))


def is_stdout(path: Path) -> bool:
    """Whether `path` is this process's standard output."""
    return _descriptor(_followed(path)) == 1


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, closed at the end of the block.

    A reader of a regular file, and a kill, sees the old content or the new, and the new is synced to disk; a symbolic
    link stays one, and what it leads to is written; a device, a pipe or a descriptor of this process gets the bytes as
    they come. Raises ConfigError if `path` is a folder, a socket or a disk, OSError naming `path` if it cannot be
    written; nothing new is left beside it then.
    """
    where = _followed(path)
    partial = where.with_name(f".{where.name[:100]}.{os.getpid()}.partial")
    try:
        if is_special(where):
            with _through(path, where) as file:
                yield file
            return
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(where)
        finally:
            partial.unlink(missing_ok=True)
        _sync_folder(where.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(partial), str(where)):
            raise  # of a file that is read in the block
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` as the whole of `path`; errors as of `output_file`."""
    with output_file(path) as file:
        file.write(content)


def _followed(path: Path) -> Path:
    """`path` with its last links followed, as far as a descriptor: the file behind one is no longer its own."""
    if path.is_symlink() and not path.exists():
        _refuse_loop(path)
    while path.is_symlink() and _descriptor(path) is None:
        path = path.parent / path.readlink()
    return path


def _refuse_loop(path: Path) -> None:
    try:
        path.stat()
    except FileNotFoundError:
        return  # the link leads to a file that is still to be written


def _descriptor(path: Path) -> int | None:
    """The number of the open file of this process that /dev/fd/N or /proc/self/fd/N names."""
    own = {Path("/dev/fd"), Path("/proc/self/fd").resolve()}
    return int(path.name) if path.name.isdigit() and path.parent.resolve() in own else None


def _through(path: Path, where: Path) -> IO[bytes]:
    descriptor = _descriptor(where)
    if descriptor is not None:  # opened anew, a file behind it would be written from its start again
        sys.stdout.flush()
        return os.fdopen(os.dup(descriptor), "wb")
    mode = where.stat().st_mode
    for is_kind, kind in ((stat.S_ISDIR, "folder"), (stat.S_ISSOCK, "socket"), (stat.S_ISBLK, "disk")):
        if is_kind(mode):
            raise ConfigError(f"{path} is a {kind}; name a file")
    return where.open("wb")


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
