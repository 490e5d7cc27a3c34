"""What a chat template takes: asked once with a few short conversations, so that no word is lost or bent in silence.

A template that refuses a form of messages, or prints it as Python, is tried with another form of the same words. What
it drops in every form is named, and a conversation that has it is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentbench_spec.rollout import Message

Messages = list[dict[str, Any]]
"""Messages as chat templates read them."""
Render = Callable[[Messages, bool], str]
"""(messages, with a tool list) -> text; raises what the template raises."""

_NINE = re.compile(r"[A-Za-z0-9]{9}")
_JOINT = "\n\n"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of messages a template takes; by default the usual one."""

    text_arguments: bool = False
    """Arguments of calls as JSON text instead of an object."""
    short_ids: bool = False
    """Ids of calls mapped one to one to nine letters and digits."""
    joined_users: bool = False
    """Neighbouring user messages as one."""
    folded_system: bool = False
    """The system prompt at the head of the first user message."""
    dropped: frozenset[str] = frozenset()
    """Kinds of message, of `_KINDS`, whose words the template leaves out."""
    one_call: bool = False
    """A message with two calls is refused by the template; so are turns that have one."""
    system_first: bool = False
    """A system message after the first message is refused by the template; so are turns that have one."""
    strips_reasoning: bool = False
    """The reasoning of earlier turns is left out, as the template means it to be."""
    prints_date: bool = False
    """The template asks for today's date; a fixed one stands in its place."""

    @property
    def bent(self) -> str | None:
        """What differs from the usual form, for rows; None: nothing."""
        return "; ".join(name for name, field, _ in _BENDS if getattr(self, field)) or None

    def notes(self) -> Iterator[str]:
        """The same in sentences."""
        for _, field, sentence in _BENDS:
            if getattr(self, field):
                yield f"the chat template {sentence}"

    def as_dict(self) -> dict[str, Any]:
        """What was found, for the manifest."""
        return {**asdict(self), "dropped": sorted(self.dropped)}

    def lost(self, messages: Sequence[Message]) -> str | None:
        """A kind of message among `messages` that the template drops; None if there is none."""
        found = (kind for kind in sorted(self.dropped) for at, each in enumerate(messages) if _KINDS[kind](at, each))
        return next(found, None)

    def shape(self, messages: Sequence[Message]) -> Messages:
        """The messages in this form: content always a string."""
        ids = _short_ids(messages) if self.short_ids else {}
        shaped = [self._one(message, ids) for message in messages]
        if self.folded_system and len(shaped) > 1 and shaped[0]["role"] == "system" and shaped[1]["role"] == "user":
            shaped = [_joined(shaped[0], shaped[1]), *shaped[2:]]
        return _join_users(shaped) if self.joined_users else shaped

    def _one(self, message: Message, ids: dict[str, str]) -> dict[str, Any]:
        out: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning is not None:
            out["reasoning_content"] = message.reasoning
        if message.tool_calls:
            out["tool_calls"] = [
                {
                    "type": "function",
                    "id": ids.get(call.id, call.id),
                    "function": {"name": call.name, "arguments": self._arguments(call.arguments, call.raw_arguments)},
                }
                for call in message.tool_calls
            ]
        if message.name is not None:
            out["name"] = message.name
        if message.tool_call_id is not None:
            out["tool_call_id"] = ids.get(message.tool_call_id, message.tool_call_id)
        return out

    def _arguments(self, arguments: dict[str, Any], raw: str | None) -> dict[str, Any] | str:
        if not self.text_arguments:
            return arguments
        return json.dumps(arguments, ensure_ascii=False) if raw is None else raw


_BENDS = (
    ("arguments as text", "text_arguments", "takes arguments of calls as text: they are given as JSON, as recorded"),
    ("ids of nine characters", "short_ids", "takes ids of nine characters: ids of calls are mapped one to one"),
    ("user messages joined", "joined_users", "wants user and assistant in turn: neighbouring user messages are joined"),
    ("system in the first user message", "folded_system", "takes no system message: it heads the first user message"),
)
_KINDS: dict[str, Callable[[int, Message], bool]] = {
    "tool calls": lambda _, message: bool(message.tool_calls),
    "text beside tool calls": lambda _, message: bool(message.tool_calls and message.content.strip()),
    "all but the first of several tool calls": lambda _, message: len(message.tool_calls) > 1,
    "tool results": lambda _, message: message.role == "tool",
    "the system prompt": lambda at, message: message.role == "system" and at == 0,
    "system messages after the first message": lambda at, message: message.role == "system" and at > 0,
}


def probe(render: Render, *, prints_date: bool = False) -> Form:
    """The form that the template behind `render` takes; the usual one where it takes none, and says why when used."""
    form = _form_of_calls(render)
    joined = replace(form, joined_users=True)
    if not _shows(render, form, _USERS, "askword", "againword") and _shows(render, joined, _USERS, "askword"):
        form = joined
    folded = replace(form, folded_system=True)
    if not _shows(render, form, _SYSTEM, "systemword") and _shows(render, folded, _SYSTEM, "systemword"):
        form = folded
    thought = _text(render, form, _THOUGHT)
    return replace(
        form,
        dropped=frozenset(_dropped(render, form)),
        one_call=_text(render, form, _CALL, tools=True) is not None and _text(render, form, _CALLS, tools=True) is None,
        system_first=_text(render, form, _SYSTEM) is not None and _text(render, form, _LATE_SYSTEM) is None,
        strips_reasoning=thought is not None and "thoughtword" not in thought,
        prints_date=prints_date,
    )


def _form_of_calls(render: Render) -> Form:
    """The first form in which a call is rendered, and not as Python; the usual one if there is none."""
    forms = [Form(text_arguments=text, short_ids=short) for short in (False, True) for text in (False, True)]
    rendered = [(form, text) for form in forms if (text := _text(render, form, _CALL, tools=True)) is not None]
    good = [form for form, text in rendered if "argumentvalue" in text and "{'argumentname'" not in text]
    return (good or [form for form, _ in rendered] or [Form()])[0]


def _dropped(render: Render, form: Form) -> Iterator[str]:
    for kind, messages, word in _TRIALS:
        text = _text(render, form, messages, tools=any(message.tool_calls for message in messages))
        if text is not None and word not in text:
            yield kind


def _shows(render: Render, form: Form, messages: Sequence[Message], *words: str) -> bool:
    text = _text(render, form, messages)
    return text is not None and all(word in text for word in words)


def _text(render: Render, form: Form, messages: Sequence[Message], *, tools: bool = False) -> str | None:
    try:
        return render(form.shape(messages), tools)
    except Exception:  # whatever code of a template raises: it does not take this form
        return None


def _short_ids(messages: Sequence[Message]) -> dict[str, str]:
    """id -> nine letters and digits that depend on the id alone, as long as no two ids meet in them."""
    given = [call.id for message in messages for call in message.tool_calls]
    given += [message.tool_call_id for message in messages if message.tool_call_id is not None]
    short: dict[str, str] = {name: name for name in given if _NINE.fullmatch(name)}
    for name in given:
        salt = name
        while name not in short:
            digest = hashlib.sha256(salt.encode()).hexdigest()[:9]
            if digest in short.values():
                salt += " "
            else:
                short[name] = digest
    return short


def _join_users(messages: Messages) -> Messages:
    out: Messages = []
    for message in messages:
        if out and message["role"] == out[-1]["role"] == "user":
            out[-1] = _joined(out[-1], message)
        else:
            out.append(message)
    return out


def _joined(before: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    return {**user, "content": before["content"] + _JOINT + user["content"]}


def _said(role: Any, content: str, **more: Any) -> Message:
    return Message(role=role, content=content, **more)


def _calling(*arguments: str, content: str = "") -> Message:
    calls = [
        {"id": f"call_probe_{i}", "name": "probe", "arguments": {"argumentname": value}}
        for i, value in enumerate(arguments, 1)
    ]
    return Message.model_validate({"role": "assistant", "content": content, "tool_calls": calls})


_CALL = (
    _said("user", "askword"),
    _calling("argumentvalue"),
    _said("tool", "resultword", tool_call_id="call_probe_1", name="probe"),
)
_CALLS = (
    _CALL[0],
    _calling("argumentvalue", "secondvalue"),
    _CALL[2],
    _CALL[2].model_copy(update={"tool_call_id": "call_probe_2"}),
)
_USERS = (_said("user", "askword"), _said("user", "againword"))
_SYSTEM = (_said("system", "systemword"), _said("user", "askword"))
_THOUGHT = (
    _said("user", "askword"),
    _said("assistant", "answerword", reasoning="thoughtword"),
    _said("user", "againword"),
)
_LATE_SYSTEM = (
    _said("system", "systemword"),
    _said("user", "askword"),
    _said("assistant", "answerword"),
    _said("system", "lateword"),
    _said("user", "againword"),
)
_TRIALS = (
    ("tool calls", _CALL, "argumentvalue"),
    ("text beside tool calls", (_CALL[0], _calling("argumentvalue", content="besideword"), _CALL[2]), "besideword"),
    ("all but the first of several tool calls", _CALLS, "secondvalue"),
    ("tool results", _CALL, "resultword"),
    ("the system prompt", _SYSTEM, "systemword"),
    ("system messages after the first message", _LATE_SYSTEM, "lateword"),
)
"""(kind of message, a conversation that has it, a word of it)."""
