"""Which session a request belongs to, told by its beginning; a session is a rollout that can be replayed.

A request goes on with the session whose last request it begins with. Where a client sends back something else than was
said, or nothing of it, the rollout holds what was said, and a view of what the client made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentbench_spec.rollout import Message, Rollout, View
from agentbench_spec.serving.bridge.chat_request import ChatRequest


@dataclass(slots=True, eq=False)
class Conversation:
    """One session, between two requests."""

    rollout: Rollout
    """What was said so far; its messages are empty before the first answer."""
    context: tuple[Message, ...] = ()
    """What the last request showed."""
    tools: tuple[dict[str, object], ...] = ()
    whole: bool = True
    """The last request was answered to its end."""
    text: list[int] = field(default_factory=list)
    """Prompt and output of the last request: what the next prompt should begin with."""
    used: int = 0
    """When it was used last, as a number that grows."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the next turn of its session; nothing has changed yet."""

    talk: Conversation
    request: ChatRequest
    rollout: Rollout
    """The session with a place for the answer."""
    index: int
    """Of that place."""

    @property
    def turn(self) -> int:
        """Its number among the decode points of the session."""
        return self.rollout.decode_points().index(self.index)

    @property
    def rewrites(self) -> bool:
        """True if the client shows the last answer otherwise than it was given."""
        return len(self.rollout.views) > len(self.talk.rollout.views)

    def answered(self, said: Message, ids: Sequence[int], prompt: Sequence[int], *, whole: bool) -> None:
        """Take the answer into the session. whole: False if it broke off."""
        talk = self.talk
        talk.rollout = self.rollout.model_copy(update={"messages": (*self.rollout.messages[:-1], said)})
        talk.rollout.source["live"]["output_ids"][str(self.index)] = list(ids)
        talk.context, talk.tools, talk.whole = self.request.messages, self.request.tools, whole
        talk.text = [*prompt, *ids]


class Conversations:
    """The sessions of a server."""

    def __init__(self, workload: str, target: str, most: int, closed: Callable[[Rollout], None]) -> None:
        """most: sessions that may go on at once; closed: gets each session that cannot go on any more."""
        self._workload, self._target, self._most, self._closed = workload, target, most, closed
        self._open: list[Conversation] = []
        self._begun = self._clock = 0

    def place(self, request: ChatRequest) -> Asked:
        """The request in its session, a new one if it begins with the last request of none."""
        going_on = [found for talk in self._open if (found := _next_turn(talk, request))]
        if going_on:
            asked = max(going_on, key=lambda own: (len(own.talk.context), not own.rewrites, own.talk.used))
        else:
            asked = self._new(request)
        self._clock += 1
        asked.talk.used = self._clock
        return asked

    def keep(self, talk: Conversation) -> None:
        """From now on the session may go on; beyond the most, the one that was silent longest is closed."""
        if talk not in self._open:
            self._open.append(talk)
        if len(self._open) > self._most:
            silent = min(self._open, key=lambda own: own.used)
            self._open.remove(silent)
            self._closed(silent.rollout)

    def close(self) -> None:
        """Close all sessions."""
        while self._open:
            self._closed(self._open.pop(0).rollout)

    def _new(self, request: ChatRequest) -> Asked:
        self._begun += 1
        rollout = Rollout(
            id=f"session-{self._begun}",
            workload=self._workload,
            source={"name": self._workload, "live": {"target": self._target, "output_ids": {}}},
            tools=request.tools,
            messages=(*map(_others, request.messages), Message(role="assistant")),
            notes=(f"requests to {self._target}: replies are its own, all else is the client's",),
        )
        return Asked(Conversation(rollout), request, rollout, len(request.messages))


def _next_turn(talk: Conversation, request: ChatRequest) -> Asked | None:
    """The request as the next turn of a session; None if it is none."""
    seen, shown = len(talk.context), request.messages
    if shown[:seen] != talk.context or (talk.whole and len(shown) == seen):
        return None  # the same once more is another session, unless its answer never came
    said = len(talk.rollout.messages) - 1
    echo, new = _echo(shown[seen:])
    kept = echo == talk.rollout.messages[said]
    new = tuple(map(_others, new))
    if request.tools != talk.tools:
        if not new:
            return None
        new = (new[0].model_copy(update={"tools": request.tools}), *new[1:])
    index = said + 1 + len(new)
    view = View(at=index, start=said, stop=said + 1, show=() if echo is None else (echo,))
    messages = (*talk.rollout.messages, *new, Message(role="assistant"))
    views = talk.rollout.views if kept else (*talk.rollout.views, view)
    return Asked(talk, request, talk.rollout.model_copy(update={"messages": messages, "views": views}), index)


def _others(message: Message) -> Message:
    """A message of the client's; what it puts into the assistant's mouth is no reply of this target."""
    return message.model_copy(update={"synthetic": True}) if message.role == "assistant" else message


def _echo(after: Sequence[Message]) -> tuple[Message | None, tuple[Message, ...]]:
    """(what a client sends back as the last answer, None: nothing; what follows it)."""
    if after and after[0].role == "assistant":
        return after[0], tuple(after[1:])
    return None, tuple(after)
