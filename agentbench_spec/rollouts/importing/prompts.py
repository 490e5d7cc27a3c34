"""From the exact prompts of a run to one list of messages, plus the views where a prompt rewrote history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from agentbench_spec.messages import Message, View

__all__ = ["PromptLog"]


@dataclass(frozen=True, slots=True)
class _Item:
    """One message of the prompt as it is now; [start, stop) are the recorded messages it stands for."""

    message: Message
    start: int
    stop: int


@dataclass(slots=True)
class _Change:
    """Items [a, a_stop) of the prompt so far became messages [b, b_stop) of the next prompt."""

    a: int
    a_stop: int
    b: int
    b_stop: int


class PromptLog:
    """Collects messages and views from (prompt, reply) pairs in their order.

    After `turn(context, reply)`, a rollout of `messages` and `views` has `context_at(index of reply) == context`.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.views: list[View] = []
        self._items: list[_Item] = []

    def turn(self, context: Sequence[Message], reply: Message) -> int:
        """Record that the model saw `context` and said `reply`; returns the reply's index. context: not empty."""
        changes, seen = self._changes(context)
        for message in context[seen:]:
            self.append(message)
        for change in reversed(changes):
            self._rewrite(change, context, at=len(self.messages))
        return self.append(reply)

    def append(self, message: Message) -> int:
        """Add a message that follows everything so far; returns its index."""
        index = len(self.messages)
        self.messages.append(message)
        self._items.append(_Item(message, index, index + 1))
        return index

    def _changes(self, context: Sequence[Message]) -> tuple[list[_Change], int]:
        """What became of the items, and how many messages of `context` they account for."""
        now = [item.message for item in self._items]
        same = _common_prefix(now, context)
        if same == len(now):
            return [], same
        changes = list(_in_place(now, context, same) or _differences(now, context, same))
        seen = len(context)
        last = changes[-1]
        if last.a_stop == len(now):
            last.b_stop = min(last.b_stop, last.b + (last.a_stop - last.a))
            seen = last.b_stop
            if last.a == last.a_stop:
                changes.pop()
        else:
            seen = last.b_stop + len(now) - last.a_stop
        return self._whole_stretches(changes), seen

    def _whole_stretches(self, changes: Sequence[_Change]) -> list[_Change]:
        """Changes widened so that none touches only a part of what an earlier view shows, or nothing at all."""
        whole: list[_Change] = []
        for change in changes:
            self._widen(change)
            if whole and change.a < whole[-1].a_stop:
                whole[-1].a_stop, whole[-1].b_stop = change.a_stop, change.b_stop
            else:
                whole.append(change)
        return whole

    def _widen(self, change: _Change) -> None:
        items = self._items
        if change.a == change.a_stop:
            if change.a:
                change.a, change.b = change.a - 1, change.b - 1
            else:
                change.a_stop, change.b_stop = change.a_stop + 1, change.b_stop + 1
        while change.a and _one_stretch(items[change.a - 1], items[change.a]):
            change.a, change.b = change.a - 1, change.b - 1
        while change.a_stop < len(items) and _one_stretch(items[change.a_stop - 1], items[change.a_stop]):
            change.a_stop, change.b_stop = change.a_stop + 1, change.b_stop + 1

    def _rewrite(self, change: _Change, context: Sequence[Message], at: int) -> None:
        items = self._items
        start = items[change.a].start
        # a stretch that is shown by nothing lies between two items: it goes with the item before it
        stop = items[change.a_stop].start if change.a_stop < len(items) else items[change.a_stop - 1].stop
        new = context[change.b : change.b_stop]
        self.views.append(View(at=at, start=start, stop=stop, show=tuple(self._stored(m, start, stop) for m in new)))
        items[change.a : change.a_stop] = [_Item(message, start, stop) for message in new]

    def _stored(self, message: Message, start: int, stop: int) -> int | Message:
        """The index of a recorded message in the stretch that equals `message`, or the message itself."""
        return next((i for i in range(start, stop) if _same(self.messages[i], message)), message)


def _same(a: Message, b: Message) -> bool:
    return a is b or a == b


def _one_stretch(a: _Item, b: _Item) -> bool:
    return (a.start, a.stop) == (b.start, b.stop)


def _common_prefix(a: Sequence[Message], b: Sequence[Message]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if not _same(x, y)), min(len(a), len(b)))


def _in_place(now: Sequence[Message], context: Sequence[Message], same: int) -> list[_Change]:
    """Changes message for message, where the last message of `now` stands at its place in `context`; else none."""
    if len(context) < len(now) or not _same(now[-1], context[len(now) - 1]):
        return []
    return [_Change(i, i + 1, i, i + 1) for i in range(same, len(now)) if not _same(now[i], context[i])]


def _differences(now: Sequence[Message], context: Sequence[Message], same: int) -> Iterator[_Change]:
    """Changes by the longest matching stretches."""
    old, new = ([message.model_dump_json() for message in messages[same:]] for messages in (now, context))
    for tag, a, a_stop, b, b_stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield _Change(same + a, same + a_stop, same + b, same + b_stop)
