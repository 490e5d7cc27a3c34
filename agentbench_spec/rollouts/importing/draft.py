"""A rollout in the making: what the reader of a format fills, and what is checked when it is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agentbench_spec.messages import Message, View, view_fault
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.importing.calls import tools_of
from agentbench_spec.rollouts.importing.jsontext import embedded_json, jsonable
from agentbench_spec.rollouts.importing.lost_words import lost_words
from agentbench_spec.rollouts.importing.notes import Notes, RowFault, short
from agentbench_spec.rollouts.importing.pairing import pair
from agentbench_spec.rollouts.importing.prompts import PromptLog
from agentbench_spec.rollouts.importing.raw_messages import messages_of, text_of
from agentbench_spec.rollouts.importing.responses import joined_items

__all__ = ["Contexts", "Draft", "items_of", "labels_of"]

_LABELS = (
    *("instance_id", "task_id", "trial", "task", "index", "split", "repo", "environment"),
    *("model", "model_name", "resolved", "target", "exit_status", "reward", "status"),
    *("category", "question_type", "domain", "sub_domain", "difficulty"),
)


@dataclass(slots=True)
class Draft:
    """What is known of one rollout so far."""

    notes: Notes = field(default_factory=Notes)
    messages: list[Message] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    tools: tuple[dict[str, Any], ...] = ()
    labels: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    """True if the order of the messages is that of recorded prompts."""
    _called: set[str] = field(default_factory=set)
    """Ids of the calls read so far."""

    def read(self, raw: Any, where: str, at: int | None = None) -> list[Message]:
        """The chat messages in `raw`: none for what is no chat turn (noted), usually one.

        where: path in the row; at: index for the notes, None: that of the next message. Raises RowFault.
        """
        at = len(self.messages) if at is None else at
        if isinstance(raw, Mapping) and raw.get("role") == "exit":
            self.notes.add("a closing message of role 'exit' is no chat turn: left out", at)
            self.notes.left_out_part(raw)
            return []
        if isinstance(raw, Mapping) and "role" not in raw and "reward" in raw:
            self.notes.add("a reward item without a role is no chat turn: left out", at)
            return []
        messages = messages_of(raw, where, self.notes, at, self._called)
        self._called.update(call.id for message in messages for call in message.tool_calls)
        return messages

    def read_logged(self, raw: Any, where: str, at: int) -> list[Message]:
        """The chat messages in `raw`; what an assistant says in a demonstration is marked as not of this run."""
        messages = self.read(raw, where, at)
        if not (isinstance(raw, Mapping) and raw.get("is_demo")):
            return messages
        if any(message.role == "assistant" for message in messages):
            self.notes.add("an assistant message of a demonstration: marked synthetic, no reference", at)
        return [m.model_copy(update={"synthetic": True}) if m.role == "assistant" else m for m in messages]

    def read_reply(self, raw: Any, where: str, at: int) -> Message:
        """The one message in a model's reply, of role assistant."""
        *others, reply = self.read(raw, where, at)
        if others:
            self.notes.add("tool results inside a model's own reply were left out", at)
        return reply

    def add(self, raw: Any, where: str) -> None:
        """Read `raw` and append what it holds."""
        self.messages += self.read(raw, where)

    def add_all(self, raw: Sequence[Any], where: str) -> None:
        """Read and append each item of a list, items of the Responses API as well; where: the path of the list."""
        for i, item in joined_items(raw, self.notes, len(self.messages)):
            self.add(item, f"{where}[{i}]")

    def add_system(self, raw: Any, where: str) -> None:
        """Put a system prompt that stands beside the messages in front of them, unless they have one.

        where: its path in the row. Raises RowFault if its words stand under an unknown key.
        """
        text = text_of(raw, where, self.notes)
        if not text.strip():
            return
        if self.messages and self.messages[0].role == "system":
            if self.messages[0].content.strip() != text.strip():
                self.notes.add(f"a system prompt stands in {where!r} and in the messages: that of the messages is kept")
                self.notes.left_out_part(raw)
            return
        self.messages.insert(0, Message(role="system", content=text))
        self.notes.add("the system prompt stood beside the messages: put in front of them")

    def declare(self, raw: Any, where: str) -> None:
        """Take a tool list."""
        self.tools = tools_of(raw, where, self.notes) or self.tools

    def use_prompts(self, log: PromptLog, *, exact: bool) -> None:
        """Take messages and views from prompts. exact: they are the recorded ones, so no message may change places."""
        self.messages, self.views = log.messages, log.views
        self.exact = exact

    def finish(
        self, *, name: str, workload: str, source: Mapping[str, Any], also: Iterable[str] = (), row: Any = None
    ) -> Rollout:
        """The rollout. also: further notes; row: what it was read from, for a note on words that are not in it.

        Raises RowFault if there is nothing to decode.
        """
        self.messages = pair(self.messages, self.notes, reorder=not (self.exact or self.views))
        if not self.messages:
            raise RowFault("messages", "is empty: a rollout without a single message")
        self._note_oddities()
        try:
            rollout = Rollout(
                id=name,
                workload=workload,
                source=dict(source),
                tools=self.tools,
                messages=tuple(self.messages),
                views=tuple(self.views),
                labels=self.labels,
                notes=(*also, *self.notes.lines()),
            )
        except ValidationError as error:
            raise RowFault("messages", str(error.errors(include_url=False)[0]["msg"])) from error
        if fault := view_fault(rollout.messages, rollout.views):
            raise RowFault(*fault)
        if not rollout.decode_points():
            raise RowFault("messages", "no assistant message after another message, so there is nothing to decode")
        lost = lost_words(row, rollout, self.notes.said)
        note = f"words that are no part of a conversation were left out: {', '.join(lost)}"
        return rollout.model_copy(update={"notes": (*rollout.notes, note)}) if lost else rollout

    def _note_oddities(self) -> None:
        declared = {tool["function"]["name"] for tool in self.tools}
        for message in self.messages:
            declared |= {tool["function"]["name"] for tool in message.tools or ()}
        called = {call.name for message in self.messages for call in message.tool_calls}
        if called and not declared:
            self.notes.add("the record declares no tools: prompts show none")
        elif unknown := sorted(called - declared):
            self.notes.add(f"calls of tools that are not declared: {', '.join(unknown)}")
        for i, message in enumerate(self.messages):
            if i and message.role == "system":
                self.notes.add("a system message in mid-conversation: kept in its place", i)


class Contexts:
    """Reads recorded prompts one after the other; what stands where it stood in the last one is read once only."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._last: list[tuple[Any, list[Message]]] = []

    def read(self, items: Sequence[Any], where: str) -> list[Message]:
        """The chat messages of a prompt; where: path of its list. Raises RowFault if there is none."""
        read: list[tuple[Any, list[Message]]] = []
        at = 0
        for i, item in enumerate(items):
            known = i < len(self._last) and self._last[i][0] == item
            messages = self._last[i][1] if known else self._draft.read_logged(item, f"{where}[{i}]", at)
            read.append((item, messages))
            at += len(messages)
        if not at:
            raise RowFault(where, "holds no chat message")
        self._last = read
        return [message for _, messages in read for message in messages]


def items_of(row: Mapping[str, Any], key: str, notes: Notes) -> list[Any]:
    """The list at `key`, parsed first where it is JSON text. Raises RowFault if it is no list."""
    value = row.get(key)
    if isinstance(value, str):
        notes.add(f"{key} given as text: parsed")
        value = embedded_json(value, key, notes.add)
    if not isinstance(value, list):
        raise RowFault(key, f"expected a list, found {short(value)}")
    return value


def labels_of(row: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """The short facts of a row worth grouping by."""
    found = {key: row[key] for key in _LABELS if isinstance(row.get(key), str | int | float | bool)}
    return {key: jsonable(value, notes.add) for key, value in found.items() if len(str(value)) <= 200}
