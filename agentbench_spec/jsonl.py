"""JSON lines on disk: strict reading that says what is wrong and where, atomic writing, digests.

Knows nothing about rollouts; `agentbench_spec.rollout` builds on it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from agentbench_spec.errors import ConfigError
from agentbench_spec.writing import output_file

__all__ = ["BadLine", "file_sha256", "json_objects", "not_json", "require_file", "write_json_lines"]

_LFS_HEADER = b"version https://git-lfs.github.com/spec/"
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class BadLine:
    """One line that cannot be used, and why."""

    path: Path
    line: int
    """Counted from 1, as editors do."""
    field: str | None
    """Such as `messages[2].role`; None: the line as a whole."""
    reason: str
    """What is wrong and what would be right."""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}"
        return f"{where}: {self.field}: {self.reason}" if self.field else f"{where}: {self.reason}"


def require_file(path: Path) -> Path:
    """`path` itself if it is a readable data file; raises ConfigError naming it and the way out if not."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder, expected a .jsonl or .jsonl.gz file")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is a pipe or a device, which cannot be read twice; write it to a file first")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; nothing was downloaded or used in its place")
    with path.open("rb") as file:
        head = file.read(len(_LFS_HEADER))
    if head == _LFS_HEADER:
        raise ConfigError(f"{path}: is a Git-LFS pointer, not the data; fetch the data with `git lfs pull`")
    if path.suffix == ".gz" and not head.startswith(_GZIP_MAGIC):
        raise ConfigError(f"{path}: is named .gz but is not gzip data; rename it or compress it")
    if path.suffix != ".gz" and head.startswith(_GZIP_MAGIC):
        raise ConfigError(f"{path}: is gzip data; rename it to {path.name}.gz")
    return path


def file_sha256(path: Path) -> str:
    """Hex sha256 of the file's bytes as stored (of the compressed bytes for .gz)."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    """(line number, object or what is wrong with the line), one line at a time; blank lines are passed over.

    Raises ConfigError for faults of the file as a whole (see `require_file`; also: not one line in it).
    """
    require_file(path)
    return _json_objects(path)


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    seen = 0
    for number, raw in _numbered_lines(path):
        if isinstance(raw, BadLine):
            yield number, raw
            return
        if raw.strip():
            seen += 1
            yield number, _parse(path, number, raw)
    if not seen:
        raise ConfigError(f"{path}: is empty; expected one JSON object per line")


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes | BadLine]]:
    """Lines split at \\n only: \\r and U+2028 may stand inside a string."""
    number = 0
    with _open_binary(path) as file:
        try:
            for raw in file:
                number += 1
                yield number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        except (EOFError, OSError, zlib.error) as error:
            yield number + 1, BadLine(path, number + 1, None, f"compressed data is cut off or damaged ({error})")


def _open_binary(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _parse(path: Path, number: int, raw: bytes) -> dict[str, Any] | BadLine:
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite_float)
        if b"\\ud" in raw.lower():
            _dumps(value).encode("utf-8")
    except UnicodeEncodeError:
        return BadLine(
            path, number, None, "holds half a surrogate pair (\\ud800..\\udfff), which is no text; replace it"
        )
    except UnicodeDecodeError as error:
        return BadLine(path, number, None, f"is not UTF-8 at byte {error.start} of the line; convert the file to UTF-8")
    except json.JSONDecodeError as error:
        return BadLine(path, number, None, _explain(error, raw))
    except RecursionError:
        return BadLine(path, number, None, "is nested too deeply to be read")
    except ValueError as error:
        return BadLine(path, number, None, str(error))
    if not isinstance(value, dict):
        kind = "an array" if isinstance(value, list) else type(value).__name__
        return BadLine(path, number, None, f"expected one JSON object per line, found {kind}")
    return value


def not_json(error: json.JSONDecodeError) -> str:
    """What is wrong with a JSON text, and where; one that breaks off is wrong at its end, not in the line after it."""
    text = error.doc.rstrip()
    at = min(error.pos, len(text))
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    where = f"column {column}" if line == 1 else f"line {line}, column {column}"
    return f"not JSON at {where}: {error.msg}" + (" (it breaks off there)" if at == len(text) else "")


def _explain(error: json.JSONDecodeError, raw: bytes) -> str:
    reason = not_json(error)
    if not raw.endswith(b"\n"):
        return f"{reason}; the last line has no line end and looks cut off, copy or build the file again"
    if raw.strip() in (b"[", b"{"):
        return f"{reason}; the file looks pretty-printed, put each object on one line"
    return reason


def _refuse_constant(name: str) -> float:
    raise ValueError(f"holds {name}, which is not JSON; use null or a number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"holds the number {text}, which is too large for a double; use a smaller one")
    return value


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def write_json_lines(path: Path, objects: Iterable[dict[str, Any]]) -> int:
    """Write one object per line to an `output_file`; returns how many.

    The bytes depend on the objects alone, also for .gz. Raises ConfigError naming the object that is not JSON.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with _packing(path) as file:
        for value in objects:
            count += 1
            file.write(_encode(path, count, value))
    return count


def _encode(path: Path, number: int, value: dict[str, Any]) -> bytes:
    try:
        return _dumps(value).encode("utf-8") + b"\n"
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise ConfigError(f"{path}: object {number} ({value.get('id', 'no id')}) cannot be stored: {error}") from error


@contextmanager
def _packing(path: Path) -> Iterator[IO[bytes]]:
    with output_file(path) as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
