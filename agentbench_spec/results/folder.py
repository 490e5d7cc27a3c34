"""The folder of one run: written row by row, killed at any moment, resumed by whole rollouts.

manifest.json    written first: settings, versions, machine, data; one entry in `resumes` for every resume
turns.jsonl      one line a (rollout, turn, drafter); all rows of a turn are written and synced together
rounds.jsonl     one line a round, only if asked for
live.jsonl       the sessions of a live or served run as rollouts
rollouts.jsonl   one line a rollout that is complete; a rollout without a line here is decoded again
turns.parquet    turns.jsonl with typed columns, written when the run ends
summary.json     the figures of the table on screen, written when the run ends
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.integrity import check_rows, refuse_empty, refuse_lost_turns
from agentbench_spec.results.manifest import load_manifest
from agentbench_spec.results.row_formats import parse_object, parse_round, parse_turn
from agentbench_spec.results.rows import RoundRow, TurnRow

MANIFEST, TURNS, ROUNDS, ROLLOUTS = "manifest.json", "turns.jsonl", "rounds.jsonl", "rollouts.jsonl"
PARQUET, SUMMARY, LOCK, LIVE = "turns.parquet", "summary.json", ".lock", "live.jsonl"


def now() -> str:
    """The time in UTC, to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder. Raises ConfigError if it is missing, unreadable or newer than this package."""
    return load_manifest(folder / MANIFEST)


def finished_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run that is finished; None where there is no run, or one to go on with."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = read_manifest(folder)
    return manifest if manifest.get("finished") else None


def read_run(folder: Path, *, lenient: bool = False) -> tuple[dict[str, Any], list[TurnRow]]:
    """Manifest and rows of a run folder, whole and of one condition.

    lenient: skip a last line that was torn by a kill, and nothing else. Raises ConfigError naming file, line and
    field: for what cannot be read, rows that contradict themselves or each other, rows twice, rows that were lost.
    """
    manifest, path = read_manifest(folder), folder / TURNS
    complete = completed_rollouts(folder)  # before the rows, which another process may be writing
    rows = [parse_turn(line, path, n) for n, line in lines_of(path, lenient and not manifest.get("finished"))]
    check_rows(rows, path)
    refuse_lost_turns(rows, complete, path)
    return manifest, rows


def read_turns(folder: Path, *, lenient: bool = False) -> tuple[dict[str, Any], list[TurnRow]]:
    """As `read_run`, for what takes figures from the rows: raises ConfigError, with the way out, if there are none."""
    manifest, rows = read_run(folder, lenient=lenient)
    refuse_empty(rows, folder, manifest)
    return manifest, rows


def read_rounds(folder: Path, *, lenient: bool = False) -> list[RoundRow]:
    """Rows of `rounds.jsonl`; empty if the run did not ask for them. Raises ConfigError as `read_run` does."""
    path = folder / ROUNDS
    return [parse_round(line, path, n) for n, line in lines_of(path, lenient)]


def lines_of(path: Path, lenient: bool) -> Iterator[tuple[int, bytes]]:
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n") and _torn(line):
            if lenient:
                return
            raise ConfigError(
                f"{path}:{number}: the last line is torn (the run was killed, or the file was cut); resume the run "
                "(--resume), or restore the file"
            )
        yield number, line


def _torn(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def completed_rollouts(folder: Path) -> dict[str, int]:
    """Complete rollouts and how many turns each has. Raises ConfigError naming file and line."""
    path, turns = folder / ROLLOUTS, {}
    for number, line in lines_of(path, lenient=True):
        values = parse_object(line, path, number)
        if not isinstance(values.get("rollout"), str) or not isinstance(values.get("turns"), int):
            raise ConfigError(f"{path}:{number}: fields 'rollout' (text) and 'turns' (number) are needed")
        turns[values["rollout"]] = values["turns"]
    return turns
