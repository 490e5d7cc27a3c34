"""Tool calls and their results: every call gets an id of its own, results stand in call order, orphans are said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentbench_spec.messages import Message, ToolCall
from agentbench_spec.rollouts.importing.notes import Notes

__all__ = ["pair"]


class _Ids:
    """Gives each call an id that no other call of the rollout has, and remembers what it was recorded as."""

    def __init__(self, messages: Sequence[Message], notes: Notes) -> None:
        self._taken = {call.id for message in messages for call in message.tool_calls}
        self._used: Counter[str] = Counter()
        self._notes = notes

    def of(self, call: ToolCall, message: int, position: int) -> str:
        if not call.id:
            self._notes.add("a call without an id: given one", message)
            return self._fresh(f"call_{message}_{position}")
        self._used[call.id] += 1
        if self._used[call.id] == 1:
            return call.id
        self._notes.add("a call id is used again: renamed", message)
        return self._fresh(f"{call.id}#{self._used[call.id]}")

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class _Open:
    """A call that has no result yet."""

    recorded: str
    """Its id in the source."""
    name: str
    """Its id in the rollout."""
    function: str


def pair(messages: Sequence[Message], notes: Notes, *, reorder: bool = True) -> list[Message]:
    """The messages with unique call ids, results that name their call, and results in call order.

    reorder: False where the order is a recorded prompt's and must stay.
    """
    ids = _Ids(messages, notes)
    out: list[Message] = []
    waiting: list[_Open] = []
    caller = start = 0
    while start < len(messages):
        message = messages[start]
        if message.role == "tool":
            stop = next((i for i in range(start, len(messages)) if messages[i].role != "tool"), len(messages))
            out += _answers(messages[start:stop], start, waiting, notes, reorder=reorder)
            start = stop
            continue
        if message.tool_calls:
            _note_open(waiting, caller, notes)
            names = [ids.of(call, start, i) for i, call in enumerate(message.tool_calls)]
            waiting = [_Open(c.id, name, c.name) for c, name in zip(message.tool_calls, names, strict=True)]
            caller, message = start, _with_ids(message, names)
        out.append(message)
        start += 1
    _note_open(waiting, caller, notes)
    return out


def _with_ids(message: Message, names: Sequence[str]) -> Message:
    if [call.id for call in message.tool_calls] == list(names):
        return message
    calls = (call.model_copy(update={"id": name}) for call, name in zip(message.tool_calls, names, strict=True))
    return message.model_copy(update={"tool_calls": tuple(calls)})


def _note_open(waiting: Sequence[_Open], caller: int, notes: Notes) -> None:
    for _ in waiting:
        notes.add("a call has no result", caller)


def _answers(
    results: Sequence[Message], start: int, waiting: list[_Open], notes: Notes, *, reorder: bool
) -> list[Message]:
    """A run of results with the ids of the calls they answer; answered calls leave `waiting`."""
    order = {call.name: i for i, call in enumerate(waiting)}
    named = [_named(result, start + i, waiting, notes) for i, result in enumerate(results)]
    places = [order.get(message.tool_call_id or "", len(order)) for message in named]
    if not reorder or places == sorted(places):
        return named
    notes.add("results stood in another order than their calls: put in call order", start)
    return [message for _, message in sorted(zip(places, named, strict=True), key=lambda pair: pair[0])]


def _named(result: Message, at: int, waiting: list[_Open], notes: Notes) -> Message:
    found = next(_matches(result, waiting), None)
    if found is None:
        notes.add("a result without an open call: kept", at)
        return result
    waiting.remove(found)
    if result.tool_call_id is None:
        notes.add("a result without a call id: given that of the next open call", at)
    return result if result.tool_call_id == found.name else result.model_copy(update={"tool_call_id": found.name})


def _matches(result: Message, waiting: Sequence[_Open]) -> Iterator[_Open]:
    """The open calls that `result` may answer: of its id; without one, of its function's name first, then in order."""
    if result.tool_call_id is not None:
        return (call for call in waiting if call.recorded == result.tool_call_id)
    return iter(sorted(waiting, key=lambda call: call.function != result.name))
