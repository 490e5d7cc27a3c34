"""The turns that are in no headline figure: grouped by reason, and one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agentbench_spec.report.grids import MOST_TURNS, Grid, number, word
from agentbench_spec.results import metrics
from agentbench_spec.results.findings.trust import reason_words
from agentbench_spec.results.rows import TurnRow

_EXAMPLES = 5
"""Turns named for each reason."""

_Left = tuple[TurnRow, str]
"""A row, and why it is in no figure."""


def excluded_grids(rows: Iterable[TurnRow]) -> tuple[Grid, Grid] | None:
    """Turns left out by reason, and one by one; None if there is none. Failures alike but for their numbers are one."""
    left = [(row, reason) for row in rows if (reason := metrics.left_out_because(row))]
    return (_by_reason(left), _one_by_one(left)) if left else None


def _by_reason(left: Sequence[_Left]) -> Grid:
    kinds: dict[tuple[str, str], list[TurnRow]] = {}
    for row, reason in left:
        kinds.setdefault((reason, re.sub(r"[\d,.]+", "#", row.error or "")), []).append(row)
    listed = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    lines = tuple(
        (
            word(reason),
            word(own[0].error or reason_words(reason)),
            number(len({metrics.turn_of(row) for row in own}), 0),
            word(", ".join(dict.fromkeys(row.drafter for row in own))),
            number(len(own), 0),
            word(_examples(own)),
        )
        for (reason, _), own in listed
    )
    note = "Left out of τ, speed-up and figures. Rows: one a turn and drafter. Turns are counted from 0."
    return Grid("Turns left out, by reason", ("reason", "detail", "turns", "drafters", "rows", "which"), lines, (note,))


def _examples(rows: Sequence[TurnRow]) -> str:
    turns = list(dict.fromkeys((row.rollout, row.turn) for row in rows))
    named = ", ".join(f"{rollout} turn {turn}" for rollout, turn in turns[:_EXAMPLES])
    return named + (f", and {len(turns) - _EXAMPLES} more" if len(turns) > _EXAMPLES else "")


def _one_by_one(left: Sequence[_Left]) -> Grid:
    lines = tuple(
        (
            word(row.rollout),
            number(row.turn, 0),
            word(row.drafter),
            word(reason),
            word(row.error or reason_words(reason)),
        )
        for row, reason in left[:MOST_TURNS]
    )
    notes = (f"The first {MOST_TURNS} of {len(left)} are listed.",) if len(left) > MOST_TURNS else ()
    return Grid("Turns left out", ("rollout", "turn, from 0", "drafter", "reason", "detail"), lines, notes)
