"""What a run folder must hold before a figure is taken from it: files are copied, cut and edited by hand.

Every fault is a ConfigError with file, line, field and the way out, so that no table is made from half a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.metrics import conditions_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.throughput.pass_rows import ROWS


def check_rows(rows: Sequence[TurnRow], path: Path) -> None:
    """Raises ConfigError naming file and line if a row contradicts itself, an earlier one, or stands there twice.

    rows: those of `path`, one a line.
    """
    seen: dict[tuple[str, str, int, str], int] = {}
    for number, row in enumerate(rows, 1):
        try:
            check_row(row)
        except MeasurementError as error:
            raise ConfigError(f"{path}:{number}: {error}; restore the file, or decode the turn again") from error
        before = seen.setdefault((row.workload, row.rollout, row.turn, row.drafter), number)
        if before != number:
            raise ConfigError(
                f"{path}:{number}: {row.rollout} turn {row.turn} {row.drafter} stands in line {before} already; "
                "remove one of the two lines"
            )
    _refuse_mix(rows, path)


def _refuse_mix(rows: Sequence[TurnRow], path: Path) -> None:
    first: dict[str, tuple[Any, int]] = {}
    for number, row in enumerate(rows, 1):
        for name, value in conditions_of(row):
            before, line = first.setdefault(name, (value, number))
            if before != value:
                raise ConfigError(
                    f"{path}:{number}: field {name!r} is {value!r}, and {before!r} in line {line}: rows of different "
                    "conditions cannot be compared; make one run of each kind"
                )


def refuse_lost_turns(rows: Sequence[TurnRow], complete: Mapping[str, int], path: Path) -> None:
    """Raises ConfigError naming the rollouts of which `path` holds other turns than were written.

    complete: rollout -> turns, of the rollouts that are complete.
    """
    turns: dict[str, set[int]] = {rollout: set() for rollout in complete}
    for row in rows:
        if row.rollout in turns:
            turns[row.rollout].add(row.turn)
    short = [f"{name} ({len(turns[name])} of {number} turns)" for name, number in complete.items()
             if len(turns[name]) != number]  # fmt: skip
    if short:
        more = f" and {len(short) - 3} more" if len(short) > 3 else ""
        raise ConfigError(
            f"{path}: rows of complete rollouts are missing: {', '.join(short[:3])}{more}; the file was cut: restore "
            "it, or start anew"
        )


def refuse_empty(rows: Sequence[TurnRow], folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raises ConfigError if the run has no rows, with what to do instead."""
    if rows:
        return
    if (folder / ROWS).is_file():
        raise ConfigError(
            f"{folder} holds passes over many rows at once, not turns; its table: agentbench-spec reproduce table4; "
            "report takes two and more that differ in k alone, for the best K by concurrency"
        )
    if manifest.get("finished"):
        raise ConfigError(f"{folder} is finished and holds no rows (turns.jsonl is missing or empty); restore the file")
    raise ConfigError(f"{folder} holds no rows yet; resume the run (agentbench-spec run --resume --out {folder})")


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Within: a disk that is full, or fails, raises ConfigError that names the run folder and how the run goes on."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; what the run folder holds is kept: make room, and go on with "
            f"agentbench-spec run --resume --out {path.parent}"
        ) from error
