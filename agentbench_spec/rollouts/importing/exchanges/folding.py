"""Rows that are one model call each, every one with the whole context, folded into one rollout a session.

A request goes on where an earlier one of its session stopped if its messages begin with all of that one's. Where the
history was rewritten, or a sub-agent runs beside, it does not: that is a rollout of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_spec.jsonl import BadLine
from agentbench_spec.messages import Message
from agentbench_spec.rollouts.importing.draft import Draft
from agentbench_spec.rollouts.importing.exchanges.model_call import Exchange, exchange_of, reply_items, system_of
from agentbench_spec.rollouts.importing.exchanges.telemetry import holds_spans, request_rows
from agentbench_spec.rollouts.importing.notes import RowFault, short
from agentbench_spec.rollouts.importing.prompts import PromptLog
from agentbench_spec.rollouts.importing.raw_messages import text_of
from agentbench_spec.rollouts.importing.responses import joined_items
from agentbench_spec.rollouts.importing.shapes import is_role_message
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["FOLDED", "folded_rows", "requests"]

FOLDED = "exchanges"
"""Member of a folded value: the calls, each as {"length": messages of `context` it saw, "reply": ...}."""
_OPEN_SESSIONS = 256


@dataclass(slots=True)
class _Thread:
    """Calls of which each goes on where the one before it stopped."""

    row: Row
    last: Exchange
    calls: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 1

    def takes(self, new: Exchange) -> bool:
        """True if `new` sees all that the last call saw, and more."""
        length = len(self.last.context)
        if len(new.context) <= length or new.context[:length] != self.last.context:
            return False
        return self.last.reply is None or _is_reply(new.context[length])

    def repeats(self, new: Exchange) -> bool:
        return new.context == self.last.context and new.reply == self.last.reply

    def add(self, new: Exchange, row: Row) -> None:
        self.calls.append({"length": len(self.last.context), "reply": self.last.reply})
        self.last = new
        self.rows += 1
        self.row.repairs += row.repairs

    def folded(self, threads: int) -> Row:
        """The row itself if it is alone, else one with all calls. threads: of the session."""
        if self.rows == 1 and not self.calls:
            return self.row
        calls = [*self.calls, {"length": len(self.last.context), "reply": self.last.reply}]
        value = {**self.last.rest, "context": self.last.context, FOLDED: calls}
        notes = [f"{self.rows} rows, each one request with the whole context, were folded into one rollout"]
        if threads > 1:
            notes.append(f"the session's history was rewritten, or sub-agents ran beside: {threads} rollouts")
        return Row(self.row.path, self.row.number, value, repairs=[*self.row.repairs, *notes])


def _is_reply(item: Any) -> bool:
    role = item.get("role") if isinstance(item, dict) else None
    return role in ("assistant", "model", "ai") or not is_role_message(item)


def folded_rows(rows: Iterable[Row | BadLine]) -> Iterator[Row | BadLine]:
    """`rows`, with those that are requests of one session folded; a row that is none passes as it is.

    At most 256 sessions are held at a time; one that goes on after it was closed begins another rollout, which loses
    nothing, since a request repeats its whole context.
    """
    sessions: OrderedDict[str, list[_Thread]] = OrderedDict()
    for row in rows:
        found = exchange_of(row.value) if isinstance(row, Row) else None
        if found is None or isinstance(row, BadLine):
            yield row
            continue
        threads = sessions.setdefault(found.session, [])
        sessions.move_to_end(found.session)
        _place(found, row, threads)
        if len(sessions) > _OPEN_SESSIONS:
            yield from _closed(sessions.popitem(last=False)[1])
        elif len(threads) > _OPEN_SESSIONS:
            yield threads.pop(0).folded(1)
    for threads in sessions.values():
        yield from _closed(threads)


def _place(found: Exchange, row: Row, threads: list[_Thread]) -> None:
    for thread in reversed(threads):
        if found.session and thread.repeats(found) and found.reply is None and "id" not in found.rest:
            thread.row.repairs.append("a request that was logged twice was read once")
            return
    longest = max((t for t in threads if t.takes(found)), key=lambda t: len(t.last.context), default=None)
    if longest is not None:
        longest.add(found, row)
    else:
        threads.append(_Thread(row, found))


def _closed(threads: list[_Thread]) -> Iterator[Row]:
    yield from (thread.folded(len(threads)) for thread in threads)


def requests(value: Any, draft: Draft) -> None:
    """One model call, or several that were folded; prompts are exact where the replies are recorded."""
    context, calls, rest = _calls(value)
    for key in ("tools", "functions", "tool_definitions"):
        draft.declare(rest.get(key), key)
    opening = _opening(rest, draft)
    read = _read(context, draft, len(opening))
    flat = [*opening, *(message for _, messages in read for message in messages)]
    if any(call["reply"] is not None for call in calls):
        _from_replies(opening, read, calls, draft)
    else:
        draft.messages = flat
    if draft.messages and draft.messages[-1].role != "assistant":
        draft.notes.add("the last reply is not recorded: an empty placeholder stands for it", len(draft.messages))
        draft.messages.append(Message(role="assistant", synthetic=True))


def _calls(value: Any) -> tuple[list[Any], list[dict[str, Any]], Any]:
    """(context of the last call, the calls, what else the row holds). Raises RowFault if there is no one session."""
    if holds_spans(value):
        rows = list(folded_rows(request_rows(Row(Path(), 1, value))))
        if len(rows) != 1 or isinstance(rows[0], BadLine):
            raise RowFault("spans", f"hold {len(rows)} sessions; import the file, which gives a rollout for each")
        value = rows[0].value
    if isinstance(value, dict) and FOLDED in value and isinstance(value.get("context"), list):
        return value["context"], value[FOLDED], value
    found = exchange_of(value)
    if found is None:
        raise RowFault(None, f"expected a model call with its messages, found {short(value)}")
    return found.context, [{"length": len(found.context), "reply": found.reply}], found.rest


def _opening(rest: Any, draft: Draft) -> list[Message]:
    key, raw = system_of(rest)
    text = text_of(raw, key, draft.notes)
    if text:
        draft.notes.add("the system prompt stood beside the messages: put in front of them")
    return [Message(role="system", content=text)] if text else []


def _read(context: list[Any], draft: Draft, at: int) -> list[tuple[int, list[Message]]]:
    """(place in the context, messages) of each item of the last context, which holds all earlier ones."""
    read: list[tuple[int, list[Message]]] = []
    for i, item in joined_items(context, draft.notes, at):
        read.append((i, draft.read(item, f"messages[{i}]", at)))
        at += len(read[-1][1])
    return read


def _from_replies(
    opening: list[Message], read: list[tuple[int, list[Message]]], calls: list[dict[str, Any]], draft: Draft
) -> None:
    """Prompts as they were; a reply that later contexts show in another form is kept as it was said."""
    log = PromptLog()
    for n, call in enumerate(calls):
        context = [*opening, *(message for i, messages in read if i < call["length"] for message in messages)]
        reply = _reply(call["reply"], f"requests[{n}].reply", draft, len(context))
        later = [message for i, messages in read if i >= call["length"] for message in messages]
        if reply is None and n < len(calls) - 1 and later and later[0].role == "assistant":
            reply = later[0]
        if reply is not None:
            log.turn(context, reply)
        elif n == len(calls) - 1:
            log.turn(context, Message(role="assistant", synthetic=True))
            draft.notes.add("the last reply is not recorded: an empty placeholder stands for it", len(context))
    draft.use_prompts(log, exact=True)
    draft.notes.add("prompts are the recorded requests")


def _reply(raw: Any, where: str, draft: Draft, at: int) -> Message | None:
    """The one assistant message of a reply, None if there is none."""
    items = joined_items(reply_items(raw), draft.notes, at)
    said = [message for i, item in items for message in draft.read(item, f"{where}[{i}]", at)]
    said = [message for message in said if message.role == "assistant"]
    if len(said) > 1:
        draft.notes.add("a reply of several choices or messages: the first is kept", at)
        draft.notes.left_out_part([message.model_dump() for message in said[1:]])
    return said[0] if said else None
