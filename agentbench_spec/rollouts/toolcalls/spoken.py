"""What a target said, taken apart: text, tool calls, and calls that cannot be read, with the reason in words for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.rollout import Message, ToolCall

MOST_CHARACTERS = 1_000_000
"""A longer call is refused unread: what follows from its size is no part of a benchmark."""
Tools = Sequence[dict[str, Any]]
"""Function declarations, as a rollout has them."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A call that was meant and cannot be read."""

    why: str
    """In words that go back to the model."""


Piece = str | ToolCall | Unreadable
"""A part of what was said, in order."""
Parse = Callable[[str, Tools], Iterator[Piece]]
"""(text, tools in force) -> its pieces. Nothing of the text is evaluated."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One output of a target as a message is made of it."""

    content: str
    """The text beside the calls."""
    calls: tuple[ToolCall, ...] = ()
    faults: tuple[str, ...] = ()
    """Why calls that were meant cannot be read, in words that go back to the model."""
    reasoning: str | None = None

    @property
    def called(self) -> bool:
        """True if the output makes a call, or means to."""
        return bool(self.calls or self.faults)

    def message(self) -> Message:
        """The assistant message of this output."""
        return Message(role="assistant", content=self.content, tool_calls=self.calls, reasoning=self.reasoning)


_THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def gathered(text: str, parse: Parse, tools: Tools) -> Spoken:
    """`text` taken apart by `parse`; a call inside a thought is none."""
    reasoning, said = _without_thought(text)
    return gathered_pieces(list(parse(said, tools)), reasoning)


def gathered_pieces(pieces: Sequence[Piece], reasoning: str | None = None) -> Spoken:
    """The pieces of an output as one."""
    return Spoken(
        content="".join(piece for piece in pieces if isinstance(piece, str)).strip("\n"),
        calls=tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
        faults=tuple(piece.why for piece in pieces if isinstance(piece, Unreadable)),
        reasoning=reasoning,
    )


def _without_thought(text: str) -> tuple[str | None, str]:
    """(thought, what follows it). A prompt may have opened the thought; one that is never closed has no call after."""
    for opens, closes in _THOUGHTS:
        opened = text.lstrip().startswith(opens)
        thought, closed, said = text.partition(closes)
        if closed and (opened or "<tool_call>" not in thought):
            return thought.lstrip().removeprefix(opens).strip("\n"), said.lstrip("\n")
        if opened:
            return text.lstrip().removeprefix(opens).strip("\n"), ""
    return None, text


def blocks(text: str, opens: str, read: Callable[[str], tuple[list[Piece], str]]) -> Iterator[Piece]:
    """The pieces of a text in which every call begins with `opens`; read: what follows it -> (pieces, the rest)."""
    while True:
        before, found, rest = text.partition(opens)
        if before.strip():
            yield before
        if not found:
            return
        pieces, text = read(rest)
        yield from pieces


def up_to(text: str, closes: str) -> tuple[str, str, bool]:
    """(what stands before `closes`, what follows it, whether it is there at all)."""
    body, found, rest = text.partition(closes)
    return body, rest, bool(found)


def calls_of(value: Any) -> Iterator[Piece]:
    """The call, or calls, that a JSON value stands for."""
    for one in value if isinstance(value, list) else [value]:
        inner = one.get("function") if isinstance(one, dict) else None
        yield _call_of(inner if isinstance(inner, dict) else one)


def _call_of(value: Any) -> Piece:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return Unreadable('a call is a JSON object with "name" and "arguments"')
    given = value.get("arguments", value.get("parameters", {}))
    return call(value["name"], given, id=str(value.get("id") or ""))


def call(name: str, given: Any, **fields: Any) -> Piece:
    """The call of `name`; given: its arguments, an object or its JSON text."""
    raw = given if isinstance(given, str) else None
    if raw is not None:
        found = read_json(raw)
        if isinstance(found, Unreadable):
            return Unreadable(f"the arguments of {name} cannot be read: {found.why}")
        given, rest = found
        if rest.strip():
            return Unreadable(f"the arguments of {name} go on after their end: {rest.strip()[:40]!r}")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        return Unreadable(f"the arguments of {name} must be a JSON object, found {type(given).__name__}")
    try:
        json.dumps([name, given], ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeError, ValueError, RecursionError):
        return Unreadable(f"the arguments of {name[:40]!r} hold what is no text or no finite number")
    return ToolCall(name=name, arguments=given, raw_arguments=raw, **fields)


def read_json(text: str) -> tuple[Any, str] | Unreadable:
    """(the JSON value at the start of `text`, the rest), or why there is none."""
    text = text.lstrip()
    if len(text) > MOST_CHARACTERS:
        return Unreadable(f"a call may have {MOST_CHARACTERS:,} characters, this one has {len(text):,}")
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError:
        return Unreadable("the JSON is nested too deeply")
    except json.JSONDecodeError as error:
        at = repr(text[error.pos : error.pos + 20]) if error.pos < len(text.rstrip()) else "its end"
        return Unreadable(f"not JSON: {error.msg.removesuffix(' starting at')} at {at}")
    except ValueError as error:
        return Unreadable(f"not JSON: {error}")
    return value, text[end:]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def without_fence(text: str) -> str:
    """The text inside a fence of three backticks, closed or not, if it begins with one."""
    opened, fence, rest = text.lstrip().partition("```")
    language, newline, body = rest.partition("\n")
    if opened or not fence or not newline or not (language.strip().isalnum() or not language.strip()):
        return text
    inside, closed, _ = body.rpartition("```")
    return inside if closed else body
