"""Rollouts that are one user's questions: rows with `turns`, and the ready-made files that hold such rows.

DeepSpec's eval_datasets ({"turns": [...]}), Spec-Bench and EAGLE's question.jsonl ({"question_id", "category",
"turns"}) and MT-Bench's own file are all of this form, whatever set they were made from; their wording is kept as it
is. Each question is a user message; the decode point after it has a reply only where the row holds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentbench_spec.rollout import Message, Rollout

from .row_workload import Row, unrecorded

__all__ = ["has_turns", "question_rollout", "turns_rollout"]

_TURN_2_NOTE = (
    "later turns contain a reply nobody recorded: replay with history=self, so that they hold the target's own words"
)


def has_turns(row: Row) -> bool:
    """True if the row is of the {"turns": [...]} form."""
    return "turns" in row.value


def turns_rollout(row: Row, workload: str) -> Rollout:
    """The rollout of a {"turns": [...]} row. Raises RowFault if a turn is no text."""
    turns = row.items("turns")
    for i, turn in enumerate(turns):
        if not isinstance(turn, str) or not turn.strip():
            raise row.fault(f"turns[{i}]", f"expected text, found {type(turn).__name__}")
    name = row.id("question_id", "id", "task_id")
    category = row.value.get("category")
    return question_rollout(row, workload, name, turns, category=category, references=row.value.get("reference"))


def question_rollout(
    row: Row, workload: str, name: str, turns: Sequence[str], *, references: Any = None, **labels: Any
) -> Rollout:
    """User messages `turns`, each with a decode point; references: recorded replies, one a turn, or None."""
    replies = references if isinstance(references, list) else [references]
    messages: list[Message] = []
    for i, turn in enumerate(turns):
        reply = replies[i] if i < len(replies) else None
        known = isinstance(reply, str) and bool(reply.strip())
        answer = Message(role="assistant", content=str(reply)) if known else unrecorded()
        messages += (Message(role="user", content=turn), answer)
    missing = any(message.synthetic for message in messages[:-1])
    return Rollout(
        id=name if name.startswith(workload) else f"{workload}-{name}",
        workload=workload,
        source=row.source,
        messages=tuple(messages),
        labels={"category": workload, **{key: value for key, value in labels.items() if value is not None}},
        notes=(_TURN_2_NOTE,) if missing else (),
    )
