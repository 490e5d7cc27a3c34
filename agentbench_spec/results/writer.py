"""Writing a run folder: row by row, killed at any moment, resumed by whole rollouts."""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import pyarrow.parquet as pq

from agentbench_spec.errors import ConfigError, DataWarning, MeasurementError
from agentbench_spec.results.folder import (
    LOCK,
    MANIFEST,
    PARQUET,
    ROLLOUTS,
    ROUNDS,
    SUMMARY,
    TURNS,
    completed_rollouts,
    lines_of,
    now,
    read_manifest,
    read_run,
)
from agentbench_spec.results.integrity import refuse_lost_turns, resumable
from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.machines.store import store_of
from agentbench_spec.results.provenance import differing_keys, write_json_atomic
from agentbench_spec.results.row_formats import parse_round, parse_turn, row_line, rows_table
from agentbench_spec.results.rows import SCHEMA, RoundRow, TurnRow
from agentbench_spec.results.summary import Summary, summarise, summary_dict
from agentbench_spec.writing import output_file, write_bytes


class RunWriter:
    """Writes one run folder; made by `create` or `resume`, closed by `finish` or by leaving its `with` block."""

    def __init__(self, folder: Path, manifest: dict[str, Any], lock: IO[str]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.completed: frozenset[str] = frozenset(completed_rollouts(folder))
        """Rollouts that need not be decoded again."""
        self._lock = lock
        self._files: dict[str, IO[bytes]] = {}
        self._seen: dict[str, set[tuple[int, str]]] = {}
        self._store = store_of(folder)

    @classmethod
    def create(cls, folder: Path, manifest: Mapping[str, Any]) -> Self:
        """Start a run. Raises ConfigError if `folder` already holds one or another process writes to it."""
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        try:
            _refuse_taken(folder)
        except ConfigError:
            lock.close()
            raise
        fresh = {"schema": SCHEMA, **manifest, "resumes": []}
        write_json_atomic(folder / MANIFEST, fresh)
        return cls(folder, fresh, lock)

    @classmethod
    def resume(cls, folder: Path, manifest: Mapping[str, Any]) -> Self:
        """Continue a killed run: keep the rows of complete rollouts and drop all others.

        Raises ConfigError if there is nothing to resume, if the settings differ (naming them), or if another process
        writes to the folder.
        """
        old = read_manifest(folder)
        _refuse_other_settings(folder, old, manifest)
        lock = _lock(folder)
        try:
            old["resumes"] = [*old.get("resumes", []), _drop_unfinished(folder) | _environment_changes(old, manifest)]
            write_json_atomic(folder / MANIFEST, old)
            return cls(folder, old, lock)
        except BaseException:
            lock.close()
            raise

    def turn(self, rows: Sequence[TurnRow], rounds: Sequence[RoundRow] = ()) -> None:
        """Append the rows of all drafters of one turn, and sync them to disk before returning.

        Raises MeasurementError if a row breaks an invariant, was written before, or belongs to another turn.
        """
        self._check(rows)
        if rounds:
            self._append(ROUNDS, "".join(map(row_line, rounds)))
        self._append(TURNS, "".join(map(row_line, rows)))
        for row in rows:
            self._seen.setdefault(row.rollout, set()).add((row.turn, row.drafter))

    def rollout_done(self, rollout: str, *, status: str = "ok", error: str | None = None) -> None:
        """Declare `rollout` complete; from here on a resumed run keeps its rows."""
        if rollout in self.completed:
            raise MeasurementError(f"rollout {rollout!r} is already complete in {self.folder}")
        turns = {turn for turn, _ in self._seen.pop(rollout, set())}
        line = {"rollout": rollout, "status": status, "turns": len(turns)} | ({"error": error} if error else {})
        self._append(ROLLOUTS, json.dumps(line, ensure_ascii=False) + "\n")
        self.completed |= {rollout}
        self._send(last=False)

    def finish(self, *, include_degenerate: bool = False) -> Summary:
        """Write `turns.parquet` and `summary.json`, release the folder, and return the summary.

        Raises MeasurementError if a rollout has rows but was never declared complete.
        """
        if self._seen:
            raise MeasurementError(f"rollouts not declared complete: {', '.join(sorted(self._seen))}")
        _, rows = read_run(self.folder)
        summary = summarise(rows, include_degenerate=include_degenerate)
        with resumable(self.folder / PARQUET):
            with output_file(self.folder / PARQUET) as file:
                pq.write_table(rows_table(rows), file)
            write_json_atomic(self.folder / SUMMARY, summary_dict(summary))
            self.manifest["finished"] = now()
            write_json_atomic(self.folder / MANIFEST, self.manifest)
        self._send(last=True)
        self.close()
        return summary

    def close(self) -> None:
        """Release the folder without finishing the run; it can be resumed."""
        for file in self._files.values():
            with suppress(OSError):  # of a disk that is full: what was not written was reported when it was written
                file.close()
        self._files.clear()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, rows: Sequence[TurnRow]) -> None:
        if len({(row.rollout, row.turn) for row in rows}) != 1:
            raise MeasurementError("turn() takes the rows of exactly one turn of one rollout")
        for row in rows:
            check_row(row)
            if row.rollout in self.completed:
                raise MeasurementError(f"rollout {row.rollout!r} is already complete in {self.folder}")
        written = self._seen.get(rows[0].rollout, set())
        for key, count in Counter((row.turn, row.drafter) for row in rows).items():
            if count > 1 or key in written:
                raise MeasurementError(f"{rows[0].rollout} turn {key[0]} {key[1]}: written twice")

    def _send(self, *, last: bool) -> None:
        """Send the run to the store it is for; one that does not answer is tried again behind the next rollout."""
        if self._store is None:
            return
        try:
            self._store.send()
        except Exception as error:  # every store has errors of its own
            said = f"{self._store.url} does not take the run: {type(error).__name__}: {error}"
            if last:
                raise ConfigError(f"{said}; it is finished and whole in {self.folder}: copy it from there") from error
            warnings.warn(f"{said}; it goes on in {self.folder} and is sent later", DataWarning, stacklevel=2)

    def _append(self, name: str, text: str) -> None:
        with resumable(self.folder / name):
            if name not in self._files:
                self._files[name] = (self.folder / name).open("ab")
            file = self._files[name]
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def refuse_early(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Raises ConfigError for what `create` or `resume` would refuse, as far as it shows before a model is loaded."""
    if not resume:
        _refuse_taken(folder)
    elif names := differing_keys({"settings": read_manifest(folder).get("settings")}, {"settings": settings}):
        raise _other_settings(folder, names)


def _refuse_taken(folder: Path) -> None:
    if any((folder / name).exists() for name in (MANIFEST, TURNS, ROUNDS, ROLLOUTS)):
        raise ConfigError(f"{folder} already holds a run: resume it (--resume), or choose another folder")


def _refuse_other_settings(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if old.get("settings_digest") != new.get("settings_digest"):
        parts = ("settings", "model", "data")
        raise _other_settings(folder, differing_keys({p: old.get(p) for p in parts}, {p: new.get(p) for p in parts}))


def _other_settings(folder: Path, names: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{folder} was made with other settings: {', '.join(names) or 'settings_digest'}; "
        "resume it with its own settings, or choose another folder"
    )


def _environment_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    parts = ("git", "packages", "host")
    return {"changed": differing_keys({p: old.get(p) for p in parts}, {p: new.get(p) for p in parts})}


def _drop_unfinished(folder: Path) -> dict[str, Any]:
    done = completed_rollouts(folder)
    _rewrite(folder / ROLLOUTS, lambda line, n: True)
    dropped_turns = _rewrite(folder / TURNS, lambda line, n: parse_turn(line, folder / TURNS, n).rollout in done)
    dropped_rounds = _rewrite(folder / ROUNDS, lambda line, n: parse_round(line, folder / ROUNDS, n).rollout in done)
    kept = [parse_turn(line, folder / TURNS, n) for n, line in lines_of(folder / TURNS, lenient=False)]
    refuse_lost_turns(kept, done, folder / TURNS)
    counts = {"dropped_rows": dropped_turns, "dropped_rounds": dropped_rounds, "complete_rollouts": len(done)}
    return {"time": now(), **counts}


def _rewrite(path: Path, keep: Callable[[bytes, int], bool]) -> int:
    """Keep the lines that `keep` wants; returns how many were dropped, a torn last line among them."""
    if not path.exists():
        return 0
    before = path.read_bytes()
    kept = [
        line if line.endswith(b"\n") else line + b"\n"
        for number, line in lines_of(path, lenient=True)
        if keep(line, number)
    ]
    if b"".join(kept) != before:
        write_bytes(path, b"".join(kept))
    return len(before.splitlines()) - len(kept)


def _lock(folder: Path) -> IO[str]:
    """Hold the folder until the file is closed or the process dies; the kernel frees it, so it is never stale."""
    file = (folder / LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise ConfigError(f"{folder} is being written by process {owner}; wait for it or choose another") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
