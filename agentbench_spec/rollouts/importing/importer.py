"""Trace files and folders to rollouts: what is good is yielded, what is bad is listed, nothing is lost in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentbench_spec.bars import Bar
from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine, file_sha256
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.importing.detect import UnknownFormat, detect
from agentbench_spec.rollouts.importing.expansion import expanded
from agentbench_spec.rollouts.importing.formats import check_format, convert_row
from agentbench_spec.rollouts.importing.notes import RowFault
from agentbench_spec.rollouts.importing.packed.opening import STDIN, local_copy
from agentbench_spec.rollouts.importing.reading import read_rows
from agentbench_spec.rollouts.importing.trace_files import (
    files_under,
    named,
    not_read,
    place_of,
    rollout_id,
    source_name,
)
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["TraceImport", "import_rollouts"]

_COMPLETIONS = "llm_completions"
_HELD_ROWS = 1000


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
    _unknown: list[BadLine] = field(default_factory=list)
    """Rows of the file at hand whose format is not known, until a good one or the end of the file."""
    _unknown_rows: int = 0
    """How many they are; no more than a thousand are held."""

    def rollouts(self) -> Iterator[Rollout]:
        """Each rollout, with an id that no other has.

        Raises ConfigError for a path that is not there, an unknown format, and, without `on_bad`, the first bad row.
        """
        check_format(self.format)
        roots = [Path(path) for path in self.paths]
        for root in roots:
            if root != STDIN and not root.exists():
                raise ConfigError(f"{root}: no such file or folder; nothing was downloaded or used in its place")
        skip = {path.resolve() for path in self.skip}
        for bad in (bad for root in roots for bad in not_read(root)):
            self._refuse(bad)
        found = [(root, file) for root in roots for file in files_under(root, skip)]
        logs = [(root, file.parent) for root, file in found if _is_logged_call(file)]
        for root, file in found:
            if not _is_logged_call(file):
                yield from self._of_file(root, file)
        for root, folder in dict.fromkeys(logs):
            if folder not in self._logged:
                yield from self._of_folder(root, folder)

    def with_progress(self) -> Iterator[Rollout]:
        """`rollouts()` with a progress bar. Raises ConfigError if there is none, so that no empty file is written."""
        bar = Bar(self.rollouts(), unit=" rollouts", leave=False)
        yield from bar
        if not sum(self.formats.values()):
            raise ConfigError(f"no rollout found; {self.bad_rows} bad rows, listed above")

    def _of_file(self, root: Path, file: Path) -> Iterator[Rollout]:
        with local_copy(file) as copy:
            before = sum(self.formats.values())
            yield from self._of_rows(root, file, copy)
            self._tell_unknown(each=sum(self.formats.values()) > before)

    def _of_rows(self, root: Path, file: Path, copy: Path) -> Iterator[Rollout]:
        digest = ""
        for row in expanded(read_rows(copy)):
            if isinstance(row, BadLine):
                shown = row.path if copy == file else named(file) / row.path.relative_to(copy)
                self._refuse(replace(row, path=shown))
                continue
            row.path = file
            digest = digest or file_sha256(copy)
            source = {"file": source_name(root, file), "row": row.number, "sha256": digest}
            source |= {"member": row.member} if row.member else {}
            calls = self._logged_calls(row)
            if calls:
                source["prompts"] = f"{_COMPLETIONS}/{row.value['instance_id']}"
            rollout = self._convert(row, calls or row.value, source)
            if rollout is not None:
                self._tell_unknown(each=True)
                yield rollout

    def _tell_unknown(self, *, each: bool) -> None:
        """Tell of the rows of a file whose format is not known: each, or all in one line if it has no others."""
        held, rows, self._unknown, self._unknown_rows = self._unknown, self._unknown_rows, [], 0
        if rows > len(held) or (rows > 1 and not each):
            more = (
                f"the same holds for {rows - 1:,} more rows"
                if each
                else f"the same holds for all {rows:,} rows of the file"
            )
            held = [replace(held[0], reason=f"{held[0].reason}; {more}")]
        for bad in held:
            self._refuse(bad)

    def _of_folder(self, root: Path, folder: Path) -> Iterator[Rollout]:
        row = Row(folder, 1, {"instance_id": folder.name}, alone=True)
        value = self._with_calls(row, folder)
        rollout = self._convert(row, value, {"file": source_name(root, folder)})
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
                id=rollout_id(row, value),
                workload=self.workload,
                source=source,
                notes=dict.fromkeys(row.repairs),
                clean=True,
            )
        except UnknownFormat as fault:
            self._unknown_rows += 1
            if len(self._unknown) < _HELD_ROWS:
                self._unknown.append(BadLine(place_of(row), row.number, fault.field, fault.reason))
            if self.on_bad is None:
                self._tell_unknown(each=True)
            return None
        except RowFault as fault:
            self._refuse(BadLine(place_of(row), row.number, fault.field, fault.reason))
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


_MAY_BE_LOGGED = ("auto", "openhands", _COMPLETIONS)


def _is_logged_call(file: Path) -> bool:
    return file.suffix == ".json" and file.parent.parent.name == _COMPLETIONS


def _time(call: Any) -> float:
    value = call.get("timestamp") if isinstance(call, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0


def _keys(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()
