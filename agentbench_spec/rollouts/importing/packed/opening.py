"""Opens a trace file however it is packed: gzip, zstd, xz, bzip2 in any order, zip archives, standard input, pipes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from agentbench_spec.rollouts.importing.packed.likeness import packed_as

__all__ = ["DAMAGE", "STDIN", "Member", "is_stream", "local_copy", "members", "seekable"]

DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""What reading damaged or unreadable compressed data raises."""
STDIN = Path("-")
"""The name of standard input on the command line."""
_PEEKED_BYTES = 512
_LAYERS = 4
_ZSTD_IN_ZIP = 93
_ENCRYPTED = 1
"""Bit of the flags of a file in an archive."""


@dataclass(frozen=True, slots=True)
class Member:
    """One stream of bytes in a file: the file's own, or a member of an archive."""

    name: str
    """Its name in an archive, "" for a file's own."""
    file: io.BufferedReader
    head: bytes
    """How it begins, unpacked."""
    packing: str
    """How it was packed, such as "gzip"; "" if it was not."""
    repairs: tuple[str, ...] = ()
    fault: str = ""
    """Why it cannot be read, for a member of an archive that otherwise can."""


def is_stream(path: Path) -> bool:
    """True for standard input, a pipe or a device, which can be read once only."""
    return path == STDIN or (path.exists() and not path.is_dir() and not stat.S_ISREG(path.stat().st_mode))


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """A file that can be read again: `path` itself, or a temporary copy of what a stream gives."""
    if not is_stream(path):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="agentbench-import-") as copy:
        if path == STDIN:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            with path.open("rb") as source:
                shutil.copyfileobj(source, copy)
        copy.flush()
        yield Path(copy.name)


def members(file: io.BufferedReader, *, inside: int = 0) -> Iterator[Member]:
    """The streams in an open file, unpacked; raises what `DAMAGE` lists where the data are damaged."""
    packing: list[str] = []
    head = _peeked(file)
    for _ in range(_LAYERS):
        kind = packed_as(head)
        if kind not in _OPENERS:
            break
        packing.append(kind)
        file = _OPENERS[kind](file)
        head = _peeked(file)
    if packed_as(head) == "zip" and inside < _LAYERS:
        yield from _zipped(seekable(file), inside)
    else:
        yield Member("", file, head, " in ".join(reversed(packing)))


def seekable(file: io.BufferedReader) -> IO[bytes]:
    """`file` itself if one can go back in it, else a copy in a temporary file, which is removed when closed."""
    if not isinstance(file, _Unpacked) and file.seekable() and type(file) is io.BufferedReader:
        return file
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return cast("IO[bytes]", copy)


def _peeked(file: io.BufferedReader) -> bytes:
    return file.peek(_PEEKED_BYTES)[:_PEEKED_BYTES]


class _Unpacked(io.BufferedReader):
    """A stream that is unpacked as it is read; going back is not possible."""


class _Zstd(io.RawIOBase):
    """zstd data, unpacked by arrow's reader."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow

        self._stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _raw(opened: Any) -> _Unpacked:
    return _Unpacked(cast("io.RawIOBase", opened))


_OPENERS: dict[str, Callable[[Any], io.BufferedReader]] = {
    "gzip": lambda file: _raw(gzip.GzipFile(fileobj=file, mode="rb")),
    "bzip2": lambda file: _raw(bz2.BZ2File(file)),
    "xz": lambda file: _raw(lzma.LZMAFile(file)),  # noqa: SIM115
    "zstd": lambda file: _raw(_Zstd(file)),
}


def _zipped(file: IO[bytes], inside: int) -> Iterator[Member]:
    """The members of an archive that may hold traces; of an inspect log its samples only."""
    archive = zipfile.ZipFile(file)
    listed = [info for info in archive.infolist() if not info.is_dir() and not _is_hidden(info.filename)]
    samples = [info for info in listed if info.filename.startswith("samples/")]
    others = [info.filename for info in listed if info not in samples] if samples else []
    note = (f"members of the archive that hold no sample were left out: {', '.join(others)}",) if others else ()
    if not listed:
        yield _faulty("is an archive without a file in it")
    for info in samples or listed:
        for member in _inside(archive, file, info, inside):
            name = f"{info.filename}/{member.name}".rstrip("/")
            packing = f"{member.packing} in zip".removeprefix(" in ")
            yield replace(member, name=name, packing=packing, repairs=note)


def _inside(archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo, inside: int) -> Iterator[Member]:
    """The streams in one file of an archive; one that cannot be unpacked costs itself only."""
    if info.flag_bits & _ENCRYPTED:
        yield _faulty("is encrypted; unpack it with its password first")
        return
    try:
        with _opened(archive, file, info) as opened:
            yield from members(opened, inside=inside + 1)
    except DAMAGE as error:
        yield _faulty(f"zip data is cut off or damaged ({error})")


def _faulty(fault: str) -> Member:
    return Member("", _raw(io.BytesIO()), b"", "", fault=fault)


def _opened(archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo) -> io.BufferedReader:
    if info.compress_type != _ZSTD_IN_ZIP:
        return _raw(archive.open(info))
    file.seek(info.header_offset + 26)
    sizes = file.read(4)
    file.seek(int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little"), io.SEEK_CUR)
    return _raw(_Zstd(io.BytesIO(file.read(info.compress_size))))


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) and part not in (".", "..") for part in name.split("/"))
