"""Which files of the given paths are read, what is said of the others, and how files and rollouts are named."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing.formats import instance_of
from agentbench_spec.rollouts.importing.packed.opening import STDIN, is_stream
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["files_under", "named", "not_read", "only_tables", "place_of", "rollout_id", "source_name"]

_ENDINGS = {".json", ".jsonl", ".gz", ".parquet", ".traj", ".txt", ".ndjson", ".zst", ".xz", ".bz2", ".zip", ".eval"}
_ENDINGS |= {".arrow"}
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
"""What `save_to_disk` of `datasets` writes beside its tables."""


def files_under(root: Path, skip: Container[Path]) -> list[Path]:
    """`root` itself, or the files of a folder in order of name, hidden ones and those of `skip` left out.

    Raises ConfigError for a saved data set that cannot be read.
    """
    if root.is_file() or is_stream(root):
        return [root]
    return only_tables(path for path in _visible(root) if path.is_file() and path.resolve() not in skip)


def only_tables(files: Iterable[Path]) -> list[Path]:
    """`files`, less what `save_to_disk` wrote beside its tables, and what `map` kept there since.

    Raises ConfigError if a saved data set cannot be read.
    """
    files = list(files)
    names = {(file.parent, file.name) for file in files}
    saved = {folder: _tables_in(folder) for folder, name in names if name == _STATE and (folder, _INFO) in names}
    split = {folder.parent for folder in saved}

    def is_data(file: Path) -> bool:
        if file.parent in saved:
            return file.name in saved[file.parent]
        return not (file.name == _SPLITS and file.parent in split)

    return list(filter(is_data, files))


def _tables_in(folder: Path) -> set[str]:
    from datasets import load_from_disk

    try:
        return {Path(file["filename"]).name for file in load_from_disk(str(folder)).cache_files}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: a data set saved by `datasets` that it cannot read: {error}; save it again"
        ) from error


def not_read(root: Path) -> Iterator[BadLine]:
    """What stands in a folder and is not read: links to folders or to nothing, pipes, devices."""
    for path in _visible(root) if root.is_dir() else ():
        if path.is_symlink() and not path.exists():
            yield BadLine(path, 1, None, f"is a symbolic link to {path.readlink()}, which is not there")
        elif path.is_symlink() and path.is_dir():
            yield BadLine(path, 1, None, "is a symbolic link to a folder and is not followed; name that folder itself")
        elif is_stream(path):
            yield BadLine(path, 1, None, "is a pipe or a device and is not read inside a folder; name it itself")


def _visible(root: Path) -> Iterator[Path]:
    found = sorted(root.rglob("*"))
    return (path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts))


def named(file: Path) -> Path:
    """A file as messages name it."""
    return Path("stdin") if file == STDIN else file


def place_of(row: Row) -> Path:
    """Where a row stands: its file, and the member of it if that is an archive."""
    return named(row.path) / row.member if row.member else named(row.path)


def source_name(root: Path, file: Path) -> str:
    """A file's name in a rollout's `source`: relative to what was given."""
    return _text(named(file).name if file == root else file.relative_to(root.parent).as_posix())


def rollout_id(row: Row, value: Any) -> str:
    """File stem and what the row calls itself, or its number where it has no name and is not alone."""
    stem, own = _stem(named(row.path)), instance_of(value)
    if row.member and not own:
        stem = f"{stem}/{_stem(Path(row.member))}"
    if not own:
        return stem if row.alone else f"{stem}/{row.number}"
    return stem if own == stem else f"{stem}/{own}"


def _stem(path: Path) -> str:
    """The file's name without the endings trace files have."""
    name = path.name
    while (end := Path(name).suffix) and (end in _ENDINGS) and name != end:
        name = name.removesuffix(end)
    return _text(name)


def _text(name: str) -> str:
    """A file's name as text: one that is not UTF-8 cannot be stored as it is."""
    return name.encode("utf-8", "replace").decode("utf-8")
