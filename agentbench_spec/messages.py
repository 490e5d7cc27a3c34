"""The parts a rollout is made of: messages, tool calls, and views of messages the model saw otherwise.

Public through `agentbench_spec.rollout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["FrozenModel", "Message", "ToolCall", "View", "shown", "view_fault"]


class FrozenModel(BaseModel):
    """Base of everything a rollout holds: immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(FrozenModel):
    """One call an assistant message makes."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    raw_arguments: str | None = None
    """The arguments as recorded, kept where they were a string, for exact replay."""


class Message(FrozenModel):
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    """Thinking recorded apart from the content."""
    tools: tuple[dict[str, Any], ...] | None = None
    """If not None: the tool list in force from this message on (it replaces the earlier one)."""
    synthetic: bool = False
    """True if the text is ours, not recorded; a synthetic assistant message is never a reference."""


class View(FrozenModel):
    """From decode point `at` on, the model saw `show` in place of messages[start:stop].

    This is how a history that was not append-only is kept: an old observation cut to a stub, a closed window, a
    condensed stretch. `start < stop <= at`; a later view takes the place of the earlier ones inside its stretch and
    may not cut one in two.
    """

    at: int
    start: int
    stop: int
    show: tuple[int | Message, ...] = ()
    """Messages, or indices of recorded messages before `at`; empty: the stretch was dropped."""


def shown(messages: Sequence[Message], views: Sequence[View], index: int) -> tuple[Message, ...]:
    """messages[:index] as the model saw them when message `index` was asked for."""
    out: list[Message] = []
    position = 0
    for view in views_in_force(views, index):
        out += messages[position : view.start]
        out += (messages[item] if isinstance(item, int) else item for item in view.show)
        position = view.stop
    return (*out, *messages[position:index])


def views_in_force(views: Sequence[View], index: int) -> list[View]:
    """The views that count at `index`, in the order of their stretches, without those a later one replaced."""
    kept: list[View] = []
    covered = bytearray(index)
    for view in reversed(views):
        if view.at <= index and not covered[view.start]:
            covered[view.start : view.stop] = b"\1" * (view.stop - view.start)
            kept.append(view)
    return sorted(kept, key=lambda view: view.start)


def view_fault(messages: Sequence[Message], views: Sequence[View]) -> tuple[str, str] | None:
    """(field, reason) of the first view that cannot be applied; None if all can."""
    points = {i for i, message in enumerate(messages) if message.role == "assistant" and i > 0}
    before = 0
    in_force: list[View] = []
    for i, view in enumerate(views):
        for field, reason in (*_faults_alone(view, points, before), *_faults_among(view, in_force)):
            return f"views[{i}].{field}", reason
        before = view.at
        in_force = [old for old in in_force if not (view.start <= old.start and old.stop <= view.stop)]
        in_force.append(view)
        if not _seen(in_force, view.at):
            return f"views[{i}].show", f"leaves no message to see at decode point {view.at}"
    return None


def _faults_alone(view: View, points: set[int], before: int) -> Iterator[tuple[str, str]]:
    if view.at not in points:
        yield "at", f"expected a decode point (the index of an assistant message), found {view.at}"
    if view.at < before:
        yield "at", f"views stand in the order of their decode points; {view.at} comes after {before}"
    if not 0 <= view.start < view.stop <= view.at:
        yield "start", f"expected 0 <= start < stop <= at, found {view.start}, {view.stop}, {view.at}"
    for item in view.show:
        if isinstance(item, int) and not 0 <= item < view.at:
            yield "show", f"index {item} is outside 0..{view.at - 1}"


def _faults_among(view: View, in_force: Sequence[View]) -> Iterator[tuple[str, str]]:
    for old in in_force:
        apart = old.stop <= view.start or view.stop <= old.start
        if not apart and not (view.start <= old.start and old.stop <= view.stop):
            yield "start", f"cuts the earlier view of messages[{old.start}:{old.stop}] in two; cover all of it"


def _seen(in_force: Sequence[View], index: int) -> int:
    """How many messages are seen at `index`."""
    return index + sum(len(view.show) - (view.stop - view.start) for view in in_force)
