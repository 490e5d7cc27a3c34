"""Rows of several parts side by side: speed-up and losslessness against the baseline's row of the same turn.

A turn is the same where its prompt is. With the target's own words as history, or live, each part has a text of its
own from the first output on that differs, and what follows is paired with nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentbench_spec.engine.lossless import TIE_TOLERANCE, first_difference
from agentbench_spec.results.costs import turn_speedup, turn_speedup_e2e
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.provenance import write_json_atomic
from agentbench_spec.results.rows import Divergence, TurnRow
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge
from agentbench_spec.runs.replay import Renders

DIVERGENCES, CALLS = "divergences.json", "call_same.json"
_SERVER_TIE = max(TIE_TOLERANCE.values())
"""Servers run in low precision and batch as they please: the widest tolerance of our own engine."""


class TellsMargin(Protocol):
    """Asks the target how near two next tokens are; `Client` does."""

    def margin(self, input_ids: Sequence[int], one: int, other: int) -> float | None:
        """Gap between the likeliest token and the worse of the two; None if it cannot be told."""
        ...


class Part(Protocol):
    """What is paired of one drafter; `PartResult` is one."""

    @property
    def name(self) -> str:
        """The drafter."""
        ...

    @property
    def rows(self) -> list[TurnRow]:
        """Its rows."""
        ...

    @property
    def sessions(self) -> Mapping[str, Rollout]:
        """Its sessions by task, where they are live."""
        ...


def judge_divergences(
    folder: Path, own: Part, baseline: Part, client: TellsMargin, renderer: Renders, rollouts: Sequence[Rollout]
) -> None:
    """Ask the server how near the two tokens were wherever a greedy output left the baseline's; kept in `folder`.

    After the clocks, and where the prompt can be rendered again: not with its own words as history.
    """
    known = {rollout.id: rollout for rollout in rollouts} | dict(own.sessions)
    margins: dict[str, float] = {}
    for row, plain in _same_turns(own, baseline):
        at = _first_difference(row, plain)
        if at is None or row.history_mode == "self" or not (row.output_ids and plain.output_ids):
            continue
        if at < min(len(row.output_ids), len(plain.output_ids)):
            context = [*renderer.prompt(known[row.rollout], row.message), *plain.output_ids[:at]]
            gap = client.margin(context, row.output_ids[at], plain.output_ids[at])
            if gap is not None:
                margins[_key(row)] = gap
    write_json_atomic(folder / DIVERGENCES, margins)


def judge_calls(folder: Path, own: Part, baseline: Part, judge: CallJudge) -> None:
    """Hold the calls of live turns against the baseline's of the same turn; kept in `folder`."""
    same: dict[str, bool] = {}
    for row, plain in _same_turns(own, baseline):
        if row.history_mode == "live" and row.output_ids and plain.output_ids:
            session = own.sessions[row.rollout]
            verdict = judge.of_ids(session, row.message, row.output_ids, plain.output_ids)
            if verdict.same is not None:
                same[_key(row)] = verdict.same
    write_json_atomic(folder / CALLS, same)


def _key(row: TurnRow) -> str:
    return f"{row.rollout}/{row.turn}"


def _same_turns(own: Part, baseline: Part) -> list[tuple[TurnRow, TurnRow]]:
    """Rows with the baseline's row of the same turn and the same prompt, where both were decoded."""
    plain = {_key(row): row for row in baseline.rows if row.status == "ok"}
    prompts, others = _prompts(own), _prompts(baseline)
    keys = ((row, _key(row)) for row in own.rows if row.status == "ok")
    return [(row, plain[key]) for row, key in keys if key in plain and prompts[key] == others[key]]


def _prompts(part: Part) -> dict[str, tuple[int | None, str]]:
    """What tells the prompt of each turn from others: its length and, where it is not the record's, its text."""
    said: dict[str, str] = {}
    found = {}
    for row in sorted(part.rows, key=lambda row: row.turn):
        text = said.get(row.rollout, "")
        if row.history_mode == "self":
            said[row.rollout] = hashlib.sha256(f"{text} {row.output_ids}".encode()).hexdigest()
        elif row.history_mode == "live" and (session := part.sessions.get(row.rollout)):
            seen = session.until(row.message).model_dump_json(include={"tools", "messages"})
            text = hashlib.sha256(seen.encode()).hexdigest()
        found[_key(row)] = (row.context_tokens, text)
    return found


def _first_difference(row: TurnRow, plain: TurnRow) -> int | None:
    if row.output_ids is None or plain.output_ids is None:
        return None
    return first_difference(row.output_ids, plain.output_ids)


def pair_parts(writer: RunWriter, parts: Sequence[Part], folders: Mapping[str, Path]) -> None:
    """Write the rows of all parts as one run, turn by turn, each compared with the baseline's.

    folders: by drafter, where `judge_divergences` and `judge_calls` kept what they found.
    """
    baseline = next((part for part in parts if part.name == BASELINE), None)
    if baseline is not None:
        for part in parts:
            _compare(part, baseline, folders[part.name])
    for rollout, turns in _by_turn(row for part in parts for row in part.rows).items():
        if rollout in writer.completed:
            continue
        for rows in turns.values():
            writer.turn(rows)
        every = [row for rows in turns.values() for row in rows]
        failure = next((row.error for row in every if row.status == "error"), None)
        ends = {row.ended for row in every if row.ended}
        alike = str(ends.pop()) if len(ends) == 1 else "ok"
        writer.rollout_done(rollout, status="error" if failure else alike, error=failure)


def _compare(part: Part, baseline: Part, folder: Path) -> None:
    margins, calls = (_kept(folder / name) for name in (DIVERGENCES, CALLS))
    for row, plain in _same_turns(part, baseline):
        row.speedup, row.speedup_e2e = turn_speedup(plain, row), turn_speedup_e2e(plain, row)
        row.call_same = calls.get(_key(row), row.call_same)
        _compare_outputs(row, plain, margins.get(_key(row)))


def _compare_outputs(row: TurnRow, plain: TurnRow, margin: float | None) -> None:
    """Losslessness of greedy rows."""
    if not row.greedy or row.output_ids is None or plain.output_ids is None:
        return
    at = _first_difference(row, plain)
    row.identical = at is None
    row.divergence_at, row.divergence_margin = at, margin
    row.divergence = "none" if at is None else _kind(margin)


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


def _kept(path: Path) -> dict[str, Any]:
    """What was found of some turns; empty if there was nothing to judge."""
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}
