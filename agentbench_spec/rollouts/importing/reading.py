"""Rows of trace files, streamed: JSON, JSON lines, parquet, arrow, however packed, told apart by content only."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing.arrays import array_elements
from agentbench_spec.rollouts.importing.jsontext import decode, loads, several
from agentbench_spec.rollouts.importing.notes import RowFault
from agentbench_spec.rollouts.importing.packed.likeness import packed_as, unreadable_as
from agentbench_spec.rollouts.importing.packed.opening import DAMAGE, Member, members, seekable
from agentbench_spec.rollouts.importing.parquet import ARROW_MAGIC, ARROW_STREAM_MAGIC, PARQUET_MAGIC, table_rows
from agentbench_spec.rollouts.importing.shapes import is_part_of_one_rollout
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["read_rows"]

_TABLES = (PARQUET_MAGIC, ARROW_MAGIC, ARROW_STREAM_MAGIC)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PROBED_LINES = 8
_PIECE_BYTES = 1 << 20


def read_rows(path: Path) -> Iterator[Row | BadLine]:
    """The rows of `path` in their order, and what is wrong with those that cannot be read; never raises for content.

    Raises ConfigError if there is no such file.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; nothing was downloaded or used in its place")
    return _rows(path)


def _rows(path: Path) -> Iterator[Row | BadLine]:
    with path.open("rb") as file:
        kind = packed_as(file.peek()) or "compressed"
        found = members(file)
        while True:
            try:
                member = next(found, None)
            except DAMAGE as error:
                yield BadLine(path, 1, None, f"{kind} data is cut off or damaged ({error})")
                return
            if member is None:
                return
            for row in _member_rows(path / member.name if member.name else path, member):
                if isinstance(row, Row):
                    row.path, row.member = path, member.name
                    row.repairs += member.repairs
                yield row


def _member_rows(path: Path, member: Member) -> Iterator[Row | BadLine]:
    if member.fault:
        yield BadLine(path, 1, None, member.fault)
    elif found := unreadable_as(member.head):
        yield BadLine(path, 1, None, f"is {found}")
    elif member.head.startswith(_TABLES):
        yield from table_rows(path, seekable(member.file), member.head)
    else:
        yield from _gathered(path, _text_rows(path, member.file))


def _text_rows(path: Path, file: io.BufferedReader) -> Iterator[Row | BadLine]:
    lines = _guarded(path, lambda: file.readline(_PIECE_BYTES))
    number, first = 0, next(lines, b"")
    if isinstance(first, bytes):
        first = first.removeprefix(_BYTE_ORDER_MARK)
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
    except DAMAGE as error:
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
            yield from _rows_of_line(path, number, raw)


def _rows_of_line(path: Path, number: int, raw: bytes) -> Iterator[Row | BadLine]:
    """The row on a line, or the rows where several values stand on it."""
    held = raw.removeprefix(_BYTE_ORDER_MARK).strip(b"\x00")
    repairs = [_NULS] if b"\x00" in (raw[:1], raw[-1:]) else []
    row = _row(path, number, decode(held), cut_off=not raw.endswith(b"\n"))
    yield from _several_rows(path, number, decode(held), row, repairs)


def _several_rows(
    path: Path, number: int, text: str, row: Row | BadLine, repairs: list[str]
) -> Iterator[Row | BadLine]:
    """`row`, or, where it is none, the values that stand behind one another in `text`."""
    if isinstance(row, Row):
        row.repairs += repairs
        yield row
        return
    found, rest = several(text)
    if not found or (len(found) == 1 and rest):
        yield row
        return
    for part in found:
        one = _row(path, number, part)
        if isinstance(one, Row):
            one.repairs += [*repairs, "several values stood on one line"]
        yield one
    if rest:
        yield _row(path, number, rest)


_NULS = "NUL bytes around a line, as a crash leaves them, were passed over"


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
    elif broken is None and len(several(decode(raw))[0]) > 1:
        yield from _several_rows(path, 1, decode(raw), row, [])
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
    torn: list[BadLine] = []
    first = next(rows, None)
    while isinstance(first, BadLine):
        torn.append(first)
        yield first
        first = next(rows, None)
    if first is None:
        if not torn:
            yield BadLine(path, 1, None, "is an empty list: there is no rollout in it")
        return
    if first.alone or not is_part_of_one_rollout(first.value):
        yield from chain([first], rows)
        return
    whole = Row(first.path, 1, [], alone=True, repairs=[_TORN.format(bad.reason) for bad in torn])
    for row in chain([first], rows):
        if isinstance(row, BadLine):
            yield row
            whole.repairs.append(_TORN.format(row.reason))
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


_TORN = "a part of the rollout could not be read: {}"
