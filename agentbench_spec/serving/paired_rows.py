"""Rows of several parts side by side: speed-up and losslessness against the baseline's row of the same turn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agentbench_spec.engine.lossless import TIE_TOLERANCE, first_difference
from agentbench_spec.results.costs import turn_speedup, turn_speedup_e2e
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.provenance import write_json_atomic
from agentbench_spec.results.rows import Divergence, TurnRow
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.rollout import Rollout
from agentbench_spec.runs.replay import Renders

DIVERGENCES = "divergences.json"
_SERVER_TIE = max(TIE_TOLERANCE.values())
"""Servers run in low precision and batch as they please: the widest tolerance of our own engine."""


class TellsMargin(Protocol):
    """Asks the target how near two next tokens are; `Client` does."""

    def margin(self, input_ids: Sequence[int], one: int, other: int) -> float | None:
        """Gap between the likeliest token and the worse of the two; None if it cannot be told."""
        ...


def judge_divergences(
    folder: Path,
    rows: Sequence[TurnRow],
    baseline: Sequence[TurnRow],
    client: TellsMargin,
    renderer: Renders,
    rollouts: Sequence[Rollout],
) -> None:
    """Ask the server how near the two tokens were wherever a greedy output left the baseline's; kept in `folder`.

    After the clocks, and on the recorded history only: with its own words, a drafter's later prompts are others.
    """
    known = {rollout.id: rollout for rollout in rollouts}
    margins: dict[str, float] = {}
    for row, plain in _same_turns(rows, baseline):
        at = _first_difference(row, plain)
        if at is None or row.history_mode != "recorded" or not (row.output_ids and plain.output_ids):
            continue
        if at < min(len(row.output_ids), len(plain.output_ids)):
            context = [*renderer.prompt(known[row.rollout], row.message), *plain.output_ids[:at]]
            gap = client.margin(context, row.output_ids[at], plain.output_ids[at])
            if gap is not None:
                margins[_key(row)] = gap
    write_json_atomic(folder / DIVERGENCES, margins)


def _key(row: TurnRow) -> str:
    return f"{row.rollout}/{row.turn}"


def _same_turns(rows: Iterable[TurnRow], baseline: Iterable[TurnRow]) -> list[tuple[TurnRow, TurnRow]]:
    """Rows with the baseline's row of the same turn and the same context, where both were decoded."""
    plain = {_key(row): row for row in baseline if row.status == "ok"}
    pairs = ((row, plain[_key(row)]) for row in rows if row.status == "ok" and _key(row) in plain)
    return [(row, base) for row, base in pairs if row.context_tokens == base.context_tokens]


def _first_difference(row: TurnRow, plain: TurnRow) -> int | None:
    if row.output_ids is None or plain.output_ids is None:
        return None
    return first_difference(row.output_ids, plain.output_ids)


def pair_parts(
    writer: RunWriter, parts: Sequence[Sequence[TurnRow]], margins: Mapping[str, Mapping[str, float]]
) -> None:
    """Write the rows of all parts as one run, turn by turn, each compared with the baseline's.

    margins: for each drafter, the gap at the first difference of a turn, keyed as `judge_divergences` keeps it.
    """
    baseline = [row for part in parts for row in part if row.drafter == BASELINE]
    for part in parts:
        for row, plain in _same_turns(part, baseline):
            row.speedup, row.speedup_e2e = turn_speedup(plain, row), turn_speedup_e2e(plain, row)
        _compare_outputs(part, baseline, margins.get(part[0].drafter, {}) if part else {})
    for rollout, turns in _by_turn(row for part in parts for row in part).items():
        if rollout in writer.completed:
            continue
        for rows in turns.values():
            writer.turn(rows)
        failure = next((row.error for rows in turns.values() for row in rows if row.status == "error"), None)
        writer.rollout_done(rollout, status="error" if failure else "ok", error=failure)


def _compare_outputs(rows: Sequence[TurnRow], baseline: Sequence[TurnRow], margins: Mapping[str, float]) -> None:
    """Losslessness of greedy rows; with its own words as history, a rollout is compared up to its first difference."""
    left: set[str] = set()
    for row, plain in sorted(_same_turns(rows, baseline), key=lambda pair: (pair[0].rollout, pair[0].turn)):
        if not row.greedy or row.rollout in left or row.output_ids is None or plain.output_ids is None:
            continue
        at = _first_difference(row, plain)
        row.identical = at is None
        row.divergence_at, row.divergence_margin = at, margins.get(_key(row))
        row.divergence = "none" if at is None else _kind(row.divergence_margin)
        if at is not None and row.history_mode == "self":
            left.add(row.rollout)


def _kind(margin: float | None) -> Divergence | None:
    """A tie or an error; None where the server did not tell how near the tokens were."""
    if margin is None:
        return None
    return "tie" if margin <= _SERVER_TIE else "error"


def _by_turn(rows: Iterable[TurnRow]) -> dict[str, dict[int, list[TurnRow]]]:
    turns: dict[str, dict[int, list[TurnRow]]] = {}
    for row in rows:
        turns.setdefault(row.rollout, {}).setdefault(row.turn, []).append(row)
    return turns


def read_margins(folder: Path) -> dict[str, float]:
    """What `judge_divergences` kept in a part's folder; empty if it had nothing to judge."""
    path = folder / DIVERGENCES
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}
