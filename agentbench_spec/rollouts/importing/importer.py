"""Trace files and folders to rollouts: what is good is yielded, what is bad is listed, nothing is lost in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine, file_sha256
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.importing.detect import container_key, detect
from agentbench_spec.rollouts.importing.formats import check_format, convert_row, instance_of
from agentbench_spec.rollouts.importing.notes import RowFault
from agentbench_spec.rollouts.importing.reading import read_rows
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["TraceImport", "import_rollouts"]

_COMPLETIONS = "llm_completions"


def import_rollouts(
    paths: str | Path | Iterable[str | Path],
    *,
    format: str = "auto",
    workload: str = "imported",
    on_bad: Callable[[BadLine], None] | None = None,
    skip: Iterable[Path] = (),
) -> Iterator[Rollout]:
    """Rollouts of trace files and folders, one at a time; see `TraceImport`."""
    several = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    return TraceImport(several, format=format, workload=workload, on_bad=on_bad, skip=skip).rollouts()


@dataclass(slots=True)
class TraceImport:
    """Reads the rollouts of files, and of all files under folders.

    format: a name of FORMATS. on_bad: hears of each row that is no rollout; None: the first one raises ConfigError.
    skip: files to pass over, such as the one that is written.
    """

    paths: Iterable[Path]
    format: str = "auto"
    workload: str = "imported"
    on_bad: Callable[[BadLine], None] | None = None
    skip: Iterable[Path] = ()
    formats: Counter[str] = field(default_factory=Counter)
    """How many rollouts came from each format, so far."""
    bad_rows: int = 0
    repaired: int = 0
    """Rollouts with notes, so far."""
    _ids: dict[str, int] = field(default_factory=dict)
    _logged: set[Path] = field(default_factory=set)
    """Folders of logged calls that a row has used."""

    def rollouts(self) -> Iterator[Rollout]:
        """Each rollout, with an id that no other has.

        Raises ConfigError for a path that is not there, an unknown format, and, without `on_bad`, the first bad row.
        """
        check_format(self.format)
        roots = [Path(path) for path in self.paths]
        for root in roots:
            if not root.exists():
                raise ConfigError(f"{root}: no such file or folder; nothing was downloaded or used in its place")
        found = [(root, file) for root in roots for file in _files(root, {path.resolve() for path in self.skip})]
        logs = [(root, file.parent) for root, file in found if _is_logged_call(file)]
        for root, file in found:
            if not _is_logged_call(file):
                yield from self._of_file(root, file)
        for root, folder in dict.fromkeys(logs):
            if folder not in self._logged:
                yield from self._of_folder(root, folder)

    def with_progress(self) -> Iterator[Rollout]:
        """`rollouts()` with a progress bar. Raises ConfigError if there is none, so that no empty file is written."""
        bar = tqdm(self.rollouts(), unit=" rollouts", disable=None, leave=False)
        yield from bar
        if not sum(self.formats.values()):
            raise ConfigError(f"no rollout found; {self.bad_rows} bad rows, listed above")

    def _of_file(self, root: Path, file: Path) -> Iterator[Rollout]:
        digest = ""
        for row in _inner_rows(read_rows(file)):
            if isinstance(row, BadLine):
                self._refuse(row)
                continue
            digest = digest or file_sha256(file)
            source = {"file": _name(root, file), "row": row.number, "sha256": digest}
            calls = self._logged_calls(row)
            if calls:
                source["prompts"] = f"{_COMPLETIONS}/{row.value['instance_id']}"
            rollout = self._convert(row, calls or row.value, source)
            if rollout is not None:
                yield rollout

    def _of_folder(self, root: Path, folder: Path) -> Iterator[Rollout]:
        row = Row(folder, 1, {"instance_id": folder.name}, alone=True)
        value = self._with_calls(row, folder)
        rollout = self._convert(row, value, {"file": _name(root, folder)})
        if rollout is not None:
            yield rollout

    def _logged_calls(self, row: Row) -> Any:
        """The row with the exact prompts that are logged beside its file, None if there are none."""
        name = row.value.get("instance_id") if isinstance(row.value, dict) else None
        if not isinstance(name, str) or not name or "history" not in row.value or self.format not in _MAY_BE_LOGGED:
            return None
        folder = row.path.parent / _COMPLETIONS / name
        if Path(name).name != name or not folder.is_dir():
            return None
        return self._with_calls(row, folder)

    def _with_calls(self, row: Row, folder: Path) -> dict[str, Any]:
        self._logged.add(folder)
        calls = []
        for file in sorted(folder.glob("*.json")):
            for found in read_rows(file):
                if isinstance(found, BadLine):
                    self._refuse(found)
                    row.repairs.append(f"a logged call could not be read: {file.name}")
                else:
                    calls.append(found.value)
                    row.repairs += found.repairs
        rest = {key: value for key, value in row.value.items() if key != "history"}
        return {**rest, _COMPLETIONS: sorted(calls, key=_time)}

    def _convert(self, row: Row, value: Any, source: dict[str, Any]) -> Rollout | None:
        try:
            name = detect(value) if self.format == "auto" or _COMPLETIONS in _keys(value) else self.format
            rollout = convert_row(
                value,
                format=name,
                id=_id(row, value),
                workload=self.workload,
                source=source,
                notes=dict.fromkeys(row.repairs),
                clean=True,
            )
        except RowFault as fault:
            self._refuse(BadLine(row.path, row.number, fault.field, fault.reason))
            return None
        rollout = self._unique(rollout)
        self.formats[name] += 1
        self.repaired += bool(rollout.notes)
        return rollout

    def _unique(self, rollout: Rollout) -> Rollout:
        wanted, name = rollout.id, rollout.id
        while name in self._ids:
            self._ids[wanted] += 1
            name = f"{wanted}#{self._ids[wanted]}"
        self._ids[name] = 1
        if name == wanted:
            return rollout
        note = f"the id {wanted!r} was taken: renamed {name!r}"
        return rollout.model_copy(update={"id": name, "notes": (*rollout.notes, note)})

    def _refuse(self, bad: BadLine) -> None:
        self.bad_rows += 1
        if self.on_bad is None:
            raise ConfigError(str(bad))
        self.on_bad(bad)


def _inner_rows(rows: Iterable[Row | BadLine]) -> Iterator[Row | BadLine]:
    """`rows`, with a document that lists rollouts in one of its members replaced by what it lists."""
    for row in rows:
        key = container_key(row.value) if isinstance(row, Row) and row.alone else None
        if key is None or isinstance(row, BadLine):
            yield row
            continue
        note = f"the rollout stood in the list {key!r} of a larger document"
        for number, value in enumerate(row.value[key], 1):
            yield Row(row.path, number, value, repairs=[*row.repairs, note])


_MAY_BE_LOGGED = ("auto", "openhands", _COMPLETIONS)


def _files(root: Path, skip: set[Path]) -> list[Path]:
    """The files under `root` in order of name, hidden ones left out."""
    if root.is_file():
        return [root]
    found = (path for path in sorted(root.rglob("*")) if path.is_file() and path.resolve() not in skip)
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]


def _is_logged_call(file: Path) -> bool:
    return file.suffix == ".json" and file.parent.parent.name == _COMPLETIONS


def _time(call: Any) -> float:
    value = call.get("timestamp") if isinstance(call, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0


def _keys(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


def _name(root: Path, file: Path) -> str:
    return _text(file.name if file == root else file.relative_to(root.parent).as_posix())


def _text(name: str) -> str:
    """A file's name as text: one that is not UTF-8 cannot be stored as it is."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _stem(path: Path) -> str:
    """The file's name without the endings trace files have."""
    name = path.name
    while (end := Path(name).suffix) and (end in _ENDINGS) and name != end:
        name = name.removesuffix(end)
    return _text(name)


_ENDINGS = {".json", ".jsonl", ".gz", ".parquet", ".traj", ".txt", ".ndjson"}


def _id(row: Row, value: Any) -> str:
    """File stem and what the row calls itself, or its number where it has no name and is not alone."""
    stem, own = _stem(row.path), instance_of(value)
    if not own:
        return stem if row.alone else f"{stem}/{row.number}"
    return stem if own == stem else f"{stem}/{own}"
