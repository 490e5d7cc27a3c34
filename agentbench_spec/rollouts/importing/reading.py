"""Rows of trace files, streamed: JSON, JSON lines, parquet, plain or gzip, told apart by content and not by name."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing.arrays import array_elements
from agentbench_spec.rollouts.importing.jsontext import decode, loads
from agentbench_spec.rollouts.importing.notes import RowFault
from agentbench_spec.rollouts.importing.parquet import parquet_rows
from agentbench_spec.rollouts.importing.shapes import is_part_of_one_rollout
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["read_rows"]

_LFS_HEADER = b"version https://git-lfs.github.com/spec/"
_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_PROBED_LINES = 8
_PIECE_BYTES = 1 << 20


def read_rows(path: Path) -> Iterator[Row | BadLine]:
    """The rows of `path` in their order, and what is wrong with those that cannot be read; never raises for content.

    Raises ConfigError if there is no such file.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; nothing was downloaded or used in its place")
    return _gathered(path, _rows(path))


def _rows(path: Path) -> Iterator[Row | BadLine]:
    with path.open("rb") as file:
        head = file.read(len(_LFS_HEADER))
    if head == _LFS_HEADER:
        yield BadLine(path, 1, None, "is a Git-LFS pointer, not the data; fetch the data with `git lfs pull`")
    elif head.startswith(_PARQUET_MAGIC):
        yield from parquet_rows(path)
    else:
        yield from _text_rows(path, packed=head.startswith(_GZIP_MAGIC))


def _text_rows(path: Path, *, packed: bool) -> Iterator[Row | BadLine]:
    with cast("IO[bytes]", gzip.open(path, "rb")) if packed else path.open("rb") as file:
        lines = _guarded(path, lambda: file.readline(_PIECE_BYTES))
        number, first = 0, next(lines, b"")
        if isinstance(first, bytes) and first.startswith(_UTF16_MARKS):
            yield BadLine(path, 1, None, "is UTF-16; convert the file to UTF-8")
            return
        if isinstance(first, bytes):
            first = first.removeprefix(b"\xef\xbb\xbf")
        while isinstance(first, bytes) and first and not first.strip():
            number, first = number + 1, next(lines, b"")
        if isinstance(first, BadLine):
            yield first
        elif not first:
            yield BadLine(path, 1, None, "is empty")
        else:
            yield from _by_shape(path, file, number, first)


def _guarded(path: Path, read: Callable[[], bytes], number: int = 0) -> Iterator[bytes | BadLine]:
    """What `read` returns until it is empty; damage of a compressed file ends it with a BadLine.

    number: of the piece before the first one.
    """
    try:
        while piece := read():
            number += 1
            yield piece
    except (EOFError, OSError, zlib.error) as error:
        yield BadLine(path, number + 1, None, f"compressed data is cut off or damaged ({error})")


def _by_shape(path: Path, file: IO[bytes], blank: int, first: bytes) -> Iterator[Row | BadLine]:
    """The rows of a text file whose first line that is not blank begins with `first`; `blank` lines come before it."""
    if first.lstrip().startswith(b"[") and _value(first) is None:
        yield from _bracket_rows(path, file, blank, first)
        return
    rest = _guarded(path, file.readline, blank + 1)
    if not first.endswith(b"\n"):
        more = next(rest, b"")
        rest = chain([more], rest) if isinstance(more, BadLine) else rest
        first += more if isinstance(more, bytes) else b""
    ahead = list(islice(rest, _PROBED_LINES))
    lines = chain([b"\n"] * blank, [first], ahead, rest)
    alone = not any(isinstance(line, BadLine) or line.strip() for line in ahead)
    if alone or (_value(first) is None and not any(map(_is_object, ahead))):
        yield from _document_row(path, lines)
    else:
        yield from _line_rows(path, lines)


def _bracket_rows(path: Path, file: IO[bytes], blank: int, first: bytes) -> Iterator[Row | BadLine]:
    """The rows of a file that begins with "[" but not with a whole list on one line: an array, or a damaged line."""
    second = next(_guarded(path, lambda: file.readline(_PIECE_BYTES), blank + 1), b"")
    goes_on = not first.endswith(b"\n") or first.rstrip().endswith((b"[", b",", b"{", b":"))
    if goes_on or not _is_object(second):
        yield from _array_rows(path, chain([first, second], _guarded(path, lambda: file.read(_PIECE_BYTES))))
    else:
        yield from _line_rows(path, chain([b"\n"] * blank, [first, second], _guarded(path, file.readline, blank + 2)))


def _value(line: bytes | BadLine) -> Any:
    """The object or list that stands on one line, None if there is none."""
    if isinstance(line, BadLine) or line.strip()[:1] not in (b"{", b"["):
        return None
    try:
        value = loads(decode(line), lambda text: None)
    except RowFault:
        return None
    return value if isinstance(value, dict | list) else None


def _is_object(line: bytes | BadLine) -> bool:
    return isinstance(_value(line), dict) and bool(_value(line))


def _line_rows(path: Path, lines: Iterable[bytes | BadLine]) -> Iterator[Row | BadLine]:
    for number, raw in enumerate(lines, 1):
        if isinstance(raw, BadLine):
            yield raw
        elif raw.strip():
            yield _row(path, number, decode(raw), cut_off=not raw.endswith(b"\n"))


def _row(path: Path, number: int, text: str, *, cut_off: bool = False) -> Row | BadLine:
    row = Row(path, number, None)
    try:
        row.value = loads(text, row.repairs.append)
    except RowFault as fault:
        hint = "; the last line has no line end and looks cut off, copy the file again" if cut_off else ""
        return BadLine(path, number, None, fault.reason + hint)
    return row


def _document_row(path: Path, lines: Iterable[bytes | BadLine]) -> Iterator[Row | BadLine]:
    """One JSON document; if it is none, whatever whole objects stand on lines of their own."""
    held = list(lines)
    broken = next((line for line in held if isinstance(line, BadLine)), None)
    raw = b"".join(line for line in held if isinstance(line, bytes))
    row = broken or _row(path, 1, decode(raw))
    if isinstance(row, Row):
        row.alone = True
        yield from _unpacked(row)
        return
    if any(map(_is_object, held)):
        yield from _line_rows(path, held)
    else:
        yield broken or _no_data(path, raw, row)


def _no_data(path: Path, raw: bytes, bad: BadLine) -> BadLine:
    if raw.lstrip()[:1] in (b"{", b"["):
        return BadLine(path, bad.line, None, f"{bad.reason}; the file may be cut off, copy it again")
    start = raw.lstrip()[:30].decode("utf-8", errors="replace")
    return BadLine(
        path, 1, None, f"is neither JSON, JSON lines nor parquet (starts {start!r}); a prose log cannot be replayed"
    )


def _unpacked(row: Row) -> Iterator[Row]:
    """A document's rows: the elements of a top-level list, or the document itself."""
    if not isinstance(row.value, list):
        yield row
        return
    for number, value in enumerate(row.value, 1):
        yield Row(row.path, number, value, repairs=list(row.repairs))


def _array_rows(path: Path, pieces: Iterator[bytes | BadLine]) -> Iterator[Row | BadLine]:
    elements, number = array_elements(pieces), 0
    while True:
        number += 1
        try:
            found = next(elements)
        except StopIteration as end:
            yield from _after_array(path, end.value)
            return
        if isinstance(found, BadLine):
            yield found
        elif isinstance(found, RowFault):
            yield BadLine(path, number, None, f"element {number} {found.reason}")
        else:
            yield _row(path, number, found)


def _after_array(path: Path, lines: Iterator[bytes | BadLine]) -> Iterator[Row | BadLine]:
    """Rows on the lines behind a list that fills the first one: JSON lines of lists, the first of which is long."""
    for row in _line_rows(path, chain([b"\n"], lines)):
        if isinstance(row, Row):
            row.whole = True
        yield row


def _gathered(path: Path, rows: Iterator[Row | BadLine]) -> Iterator[Row | BadLine]:
    """`rows`, with the rows of a file that holds the messages or events of one rollout put together."""
    first = next(rows, None)
    if first is None:
        yield BadLine(path, 1, None, "is an empty list: there is no rollout in it")
        return
    if not (isinstance(first, Row) and not first.alone and is_part_of_one_rollout(first.value)):
        yield from chain([first], rows)
        return
    whole = Row(first.path, 1, [], alone=True)
    for row in chain([first], rows):
        if isinstance(row, BadLine):
            yield row
            whole.repairs.append(f"a part of the rollout could not be read: {row.reason}")
            continue
        if row.whole:
            whole.alone = False
            yield whole
            yield row
            yield from rows
            return
        whole.value.append(row.value)
        whole.repairs += row.repairs
    yield whole
