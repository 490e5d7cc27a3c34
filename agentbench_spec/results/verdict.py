"""Whether a run may be quoted: is it lossless, was anything measured, and why was a turn not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agentbench_spec.errors import NotFinite
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import Summary


def measured(summary: Summary) -> bool:
    """True if at least one turn counts in a figure: it was decoded, had a round, and was not left out."""
    return any(own.turns > own.zero_round_turns for own in summary.drafters)


def failed_drafters(rows: Iterable[TurnRow]) -> list[str]:
    """Drafters of which not one turn was decoded, because they failed."""
    rows = list(rows)
    ok = {row.drafter for row in rows if row.status == "ok"}
    return sorted({row.drafter for row in rows if row.status == "error"} - ok)


def lossless(summary: Summary) -> bool | None:
    """False if any drafter's output is an error, None if none was compared with the baseline (sampling, no drafter)."""
    found = [own.losslessness for own in summary.drafters if own.drafter != BASELINE and own.losslessness.compared]
    return all(each.errors == 0 for each in found) if found else None


def reasons(rows: Iterable[TurnRow], most: int = 5) -> list[str]:
    """Why turns were not measured: an example of each kind of reason with the drafters and rows it stands for."""
    kinds: dict[tuple[str, str], list[TurnRow]] = {}
    for row in rows:
        if row.status != "ok":
            kinds.setdefault((row.status, re.sub(r"[\d,]+", "#", row.error or "")), []).append(row)
    lines = [
        f"{status}: {' '.join((same[0].error or '').split())} ({same[0].rollout} turn {same[0].turn}; "
        f"{len(same)} rows, {', '.join(dict.fromkeys(row.drafter for row in same))})"
        for (status, _), same in kinds.items()
    ]
    return lines[:most] + ([f"{len(lines) - most} more kinds of reason in the rows"] if len(lines) > most else [])


def faults(rows: Iterable[TurnRow], summary: Summary) -> list[str]:
    """Why a run is void, or a drafter of it failed; empty: neither."""
    rows = list(rows)
    void = void_because(rows, summary)
    return void if not measured(summary) else void + [f"{name}: {_NOT_ONE}" for name in failed_drafters(rows)]


_NOT_ONE = "not one turn could be decoded"


def void_because(rows: Iterable[TurnRow], summary: Summary) -> list[str]:
    """Why not one figure of a run may be quoted; empty if it stands."""
    rows = list(rows)
    found = (
        ["a greedy output differs from plain decoding by more than a near tie"] if lossless(summary) is False else []
    )
    found += [] if (where := not_finite(rows)) is None else [where]
    return found + ([] if measured(summary) else [_nothing(rows)])


def _nothing(rows: Sequence[TurnRow]) -> str:
    if not any(row.status == "ok" for row in rows):
        return _NOT_ONE
    return "nothing was measured: every turn that was decoded is a repetition loop, or ended on its first token"


def not_finite(rows: Iterable[TurnRow]) -> str | None:
    """Where plain decoding met logits of the target that are not finite; None if nowhere."""
    lost = [
        row for row in rows if row.drafter == BASELINE and row.status == "error" and NotFinite.TEXT in str(row.error)
    ]
    if not lost:
        return None
    turns = f"{len(lost)} turn{'s' if len(lost) > 1 else ''}"
    return (
        f"the target's {NotFinite.TEXT} in {turns} ({lost[0].rollout} turn {lost[0].turn}): its weights hold NaN or "
        "infinity, or overflow in their dtype"
    )
