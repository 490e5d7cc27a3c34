"""Codex session files (`rollout-*.jsonl`): the `response_item` lines are what the model saw and said.

Other lines repeat them for the screen or hold bookkeeping, and are left out with a note; the session's instructions are
the system prompt; a compaction becomes a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbench_spec.messages import Message, View
from agentbench_spec.rollouts.importing.draft import Draft
from agentbench_spec.rollouts.importing.notes import RowFault, short
from agentbench_spec.rollouts.importing.responses import joined_items

__all__ = ["codex"]


def codex(value: Any, draft: Draft) -> None:
    """The lines of one session."""
    if not isinstance(value, list):
        raise RowFault(None, f"expected the lines of a Codex session, found {short(value)}")
    items: list[Any] = []
    places: list[int] = []
    stretches: list[tuple[list[Any], list[int], Any]] = []
    instructions: Any = None
    for i, line in enumerate(value):
        kind, payload = (line.get("type"), line.get("payload")) if isinstance(line, Mapping) else (None, None)
        if not isinstance(payload, Mapping):
            raise RowFault(f"[{i}]", f"expected a line with a payload, found {short(line)}")
        if kind == "response_item":
            items.append(payload)
            places.append(i)
        elif kind == "compacted":
            stretches.append((items, places, payload))
            items, places = [], []
        elif kind == "session_meta":
            instructions = instructions or payload.get("base_instructions") or payload.get("instructions")
            draft.notes.left_out_part({k: v for k, v in payload.items() if "instructions" not in k})
        else:
            draft.notes.add(f"lines of kind {kind!r}, which repeat items or hold settings, were left out")
            draft.notes.left_out_part(payload)
    stretches.append((items, places, None))
    draft.add_system(instructions, "session_meta.payload.instructions")
    _read_stretches(stretches, draft)


def _read_stretches(stretches: list[tuple[list[Any], list[int], Any]], draft: Draft) -> None:
    """Read the items between compactions; what stood before one is seen as its summary only."""
    summary: list[Message] | None = None
    stop = 0
    for items, places, compacted in stretches:
        for i, item in joined_items(items, draft.notes, len(draft.messages)):
            before = len(draft.messages)
            draft.add(item, f"[{places[i]}].payload")
            if summary is not None and draft.messages[before:] and draft.messages[-1].role == "assistant":
                if (start := _opening(draft)) < stop:
                    draft.views.append(View(at=len(draft.messages) - 1, start=start, stop=stop, show=tuple(summary)))
                summary = None
        if compacted is not None:
            stop, summary = len(draft.messages), _summary(compacted, draft)
            draft.notes.add(
                "compacted: earlier messages leave the prompt for a summary, as they did in the session", stop
            )


def _opening(draft: Draft) -> int:
    """The first message that a compaction may take away: not the instructions."""
    return 1 if draft.messages and draft.messages[0].role == "system" else 0


def _summary(payload: Mapping[str, Any], draft: Draft) -> list[Message]:
    """What the model saw in place of everything before."""
    history = payload.get("replacement_history")
    at = len(draft.messages)
    if isinstance(history, list) and history:
        return [
            m
            for i, item in joined_items(history, draft.notes, at)
            for m in draft.read(item, f"replacement_history[{i}]", at)
        ]
    return draft.read({"role": "user", "content": payload.get("message")}, "compacted.payload", at)
