"""Rows of data files, one at a time: JSON lines, one JSON array, or parquet. Pickles and scripts are never read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from agentbench_spec.rollout import BadLine, ConfigError, json_objects, require_file

__all__ = ["SUFFIXES", "is_data_file", "read_document", "read_rows"]

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
"""What a data file may be called."""
_CHUNK_CHARACTERS = 1 << 20
_BLANK = " \t\r\n"
_CUT_OFF_MARGIN = 16
"""A JSON error nearer than this to the end of what was read may be no error once more is read."""

Numbered = tuple[int, dict[str, Any] | BadLine]


def is_data_file(path: Path) -> bool:
    """True if the name of `path` is that of a file this module reads."""
    return path.name.lower().endswith(SUFFIXES)


def read_rows(path: Path, *, columns: Sequence[str] | None = None) -> Iterator[Numbered]:
    """(row number from 1, row or what is wrong with it); memory holds one row, or one batch of a parquet file.

    columns: the only ones read from a parquet file (those it has). Raises ConfigError for faults of the whole file.
    """
    if not is_data_file(path):
        raise ConfigError(f"{path}: only {', '.join(SUFFIXES)} are read; pickles and dataset scripts never are")
    require_file(path)
    if path.suffix == ".parquet":
        return _parquet_rows(path, columns)
    return _array_rows(path) if _first_character(path) == "[" else json_objects(path)


def read_document(path: Path) -> Any:
    """A file that is one JSON value. Raises ConfigError if it is not."""
    require_file(path)
    with _text(path) as file:
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: is not one JSON value: {error}") from error


def _text(path: Path) -> IO[str]:
    # no newline translation: a bare \r inside a string is data
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


def _first_character(path: Path) -> str:
    with _text(path) as file:
        try:
            return file.read(4096).lstrip(_BLANK)[:1]
        except (UnicodeDecodeError, OSError) as error:
            raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def _array_rows(path: Path) -> Iterator[Numbered]:
    """The items of one JSON array. What is read ahead grows with the largest item, not with the file."""
    with _text(path) as file:
        items = _Items(path, file)
        number = 0
        while (item := items.take()) is not _END:
            number += 1
            if isinstance(item, str):
                yield number, BadLine(path, number, None, f"row {number}: {item}")
                return
            (value,) = item
            yield number, value if isinstance(value, dict) else _not_an_object(path, number, value)
        if not number:
            raise ConfigError(f"{path}: is an empty array; expected rows")


def _not_an_object(path: Path, number: int, value: Any) -> BadLine:
    return BadLine(path, number, None, f"row {number}: expected a JSON object, found {type(value).__name__}")


_END: Any = object()


class _Items:
    """Takes the items off a text that is one JSON array."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self._path, self._file = path, file
        self._decoder = json.JSONDecoder(parse_constant=_refuse)
        self._buffer = ""
        self._at = 0
        self._ended = False
        self._skip("[")

    def take(self) -> Any:
        """A one-tuple with the next item; a text saying what is wrong; _END after the last."""
        self._skip(",")
        if self._buffer.startswith("]", self._at):
            return _END
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._buffer, self._at)
                return (value,)
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated") or error.pos >= len(self._buffer) - _CUT_OFF_MARGIN
                if not cut_off or not self._more():
                    return f"not JSON ({error.msg}), or the file is cut off; nothing after it can be read"
            except (ValueError, RecursionError) as error:
                return str(error)

    def _skip(self, mark: str) -> None:
        """Over blanks and one `mark`."""
        for allowed in (_BLANK, mark, _BLANK):
            while self._at < len(self._buffer) or self._more():
                if self._buffer[self._at] not in allowed:
                    break
                self._at += 1
                if allowed == mark:
                    break

    def _more(self) -> bool:
        """Read on, as much again as is held, so that a large item is scanned a few times only."""
        held = self._buffer[self._at :]
        try:
            read = self._file.read(max(_CHUNK_CHARACTERS, len(held)))
        except (UnicodeDecodeError, OSError, EOFError) as error:
            raise ConfigError(f"{self._path}: cannot be read as UTF-8 text: {error}") from error
        self._buffer, self._at = held + read, 0
        return bool(read)


def _refuse(name: str) -> float:
    raise ValueError(f"holds {name}, which is not JSON; use null or a number")


def _parquet_rows(path: Path, columns: Sequence[str] | None) -> Iterator[Numbered]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            held = file.schema_arrow.names
            wanted = None if columns is None else [name for name in held if name in columns]
            number = 0
            for batch in file.iter_batches(batch_size=32, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as parquet: {error}") from error
    if not number:
        raise ConfigError(f"{path}: has no rows")
