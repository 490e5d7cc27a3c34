"""OpenHands output rows: flat events, [action, observation] pairs, and older events with their fields at top level.

The model's own words are in `tool_call_metadata.model_response`; several events share one response where it made
several calls. A condensation event drops earlier events from the prompts that follow; it becomes a view.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentbench_spec.messages import Message, ToolCall
from agentbench_spec.rollouts.importing.completions import response_message
from agentbench_spec.rollouts.importing.draft import Draft, items_of
from agentbench_spec.rollouts.importing.jsontext import jsonable
from agentbench_spec.rollouts.importing.notes import RowFault, short
from agentbench_spec.rollouts.importing.prompts import PromptLog

__all__ = ["openhands"]

_UNCOUNTED = {"agent_state_changed", "change_agent_state", "null", "condensation_request"}
"""Events that are not even counted where a summary's place is given."""
_BOOKKEEPING = {*_UNCOUNTED, "recall", "condense"}
_EVENT_FIELDS = {"id", "timestamp", "source", "action", "message", "cause", "args", "extras", "tool_call_metadata"}
_ARGUMENTS_OF_THE_FRAMEWORK = {"thought", "confirmation_state", "security_risk", "blocking", "hidden", "keep_prompt"}


@dataclass(slots=True)
class _Seen:
    """One event that is still in the prompt, with the messages it gave (often none)."""

    event_id: int | None
    messages: list[Message]
    summary: bool = False


@dataclass(slots=True)
class _Reader:
    draft: Draft
    log: PromptLog = field(default_factory=PromptLog)
    seen: list[_Seen] = field(default_factory=list)
    pending: list[Message] = field(default_factory=list)
    """Messages that no prompt has shown yet."""
    response_id: Any = None
    open_rebuilt: list[tuple[Any, str]] = field(default_factory=list)
    """(event id, call id) of calls rebuilt from actions and not yet answered."""

    @property
    def at(self) -> int:
        return len(self.log.messages) + len(self.pending)

    def show(self, event: Mapping[str, Any], messages: Sequence[Message]) -> None:
        """Something the model reads."""
        self.seen.append(_Seen(_event_id(event), list(messages)))
        self.pending += messages

    def say(self, event: Mapping[str, Any], message: Message) -> None:
        """Something the model said, asked for with all that is still in the prompt."""
        context = [shown for seen in self.seen for shown in seen.messages]
        if context:
            self.log.turn(context, message)
            self.pending.clear()
            self.seen.append(_Seen(_event_id(event), [message]))
        else:
            self.show(event, [message])

    def done(self) -> PromptLog:
        """The log, with what came after the last reply."""
        for message in self.pending:
            self.log.append(message)
        return self.log


def openhands(value: Any, draft: Draft) -> None:
    """{"instance_id", "history": [...]} or a bare list of events."""
    row = {"history": value} if isinstance(value, list) else value
    if not isinstance(row, Mapping):
        raise RowFault(None, f"expected an object or a list of events, found {type(value).__name__}")
    reader = _Reader(draft)
    for where, event in _events(items_of(row, "history", draft.notes)):
        _read_event(reader, event, where)
    draft.use_prompts(reader.done(), exact=False)


def _events(items: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for i, item in enumerate(items):
        pair = item if isinstance(item, list) else None
        for k, event in enumerate([item] if pair is None else pair):
            where = f"history[{i}]" if pair is None else f"history[{i}][{k}]"
            if pair is not None and event is None:
                continue
            if not isinstance(event, Mapping):
                raise RowFault(where, f"expected an event object, found {short(event)}")
            yield where, event


def _read_event(reader: _Reader, event: Mapping[str, Any], where: str) -> None:
    action, observation = event.get("action"), event.get("observation")
    if isinstance(action, str) and action:
        kind, handler = action, _ACTIONS.get(action, _agent_action)
    elif isinstance(observation, str) and observation:
        kind, handler = observation, _observation
    else:
        raise RowFault(where, f"expected an event with an action or an observation, found {short(dict(event))}")
    if kind in _BOOKKEEPING:
        reader.draft.notes.add(f"bookkeeping events of kind {kind!r}, which no prompt shows, were left out")
        if kind not in _UNCOUNTED:
            reader.seen.append(_Seen(_event_id(event), []))
    else:
        handler(reader, event, where)


def _event_id(event: Mapping[str, Any]) -> int | None:
    value = event.get("id")
    return value if isinstance(value, int) else None


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args")
    if isinstance(args, Mapping):
        return args
    return {key: value for key, value in event.items() if key not in _EVENT_FIELDS}


def _metadata(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("tool_call_metadata")
    return found if isinstance(found, Mapping) else {}


def _read(reader: _Reader, role: str, content: Any, where: str, **more: Any) -> list[Message]:
    return reader.draft.read({"role": role, "content": content, **more}, where, reader.at)


def _system(reader: _Reader, event: Mapping[str, Any], where: str) -> None:
    args = _args(event)
    reader.draft.declare(args.get("tools"), f"{where}.args.tools")
    reader.show(event, _read(reader, "system", args.get("content"), f"{where}.args"))


def _message(reader: _Reader, event: Mapping[str, Any], where: str) -> None:
    if event.get("source") == "agent":
        _agent_action(reader, event, where)
        return
    args = _args(event)
    images = args.get("image_urls") or ()
    parts = [{"type": "text", "text": args.get("content")}, *({"type": "image_url"} for _ in images)]
    reader.show(event, _read(reader, "user", parts if images else args.get("content"), f"{where}.args"))


def _agent_action(reader: _Reader, event: Mapping[str, Any], where: str) -> None:
    response = _metadata(event).get("model_response")
    if isinstance(response, Mapping):
        _response(reader, event, response, f"{where}.tool_call_metadata.model_response")
    elif event.get("source") not in ("agent", None):
        reader.draft.notes.add(
            f"an action of source {event.get('source')!r}, which the model did not say, was left out"
        )
        reader.seen.append(_Seen(_event_id(event), []))
    else:
        reader.response_id = None
        reader.say(event, _rebuilt(reader, event, where))


def _response(reader: _Reader, event: Mapping[str, Any], response: Mapping[str, Any], where: str) -> None:
    """The message of a response, once for all events that share it."""
    if response.get("id") is not None and response["id"] == reader.response_id:
        reader.seen.append(_Seen(_event_id(event), []))
        return
    reader.response_id = response.get("id")
    reader.say(event, reader.draft.read_reply(response_message(response, where), where, reader.at))


def _rebuilt(reader: _Reader, event: Mapping[str, Any], where: str) -> Message:
    """What the model said, from the fields of its action: the record holds no response."""
    action, args = str(event["action"]), _args(event)
    thought = args.get("content" if action == "message" else "thought")
    message = _read(reader, "assistant", thought if isinstance(thought, str) else "", where)[0]
    if action == "message":
        return message
    reader.draft.notes.add("the model's own text is not recorded: rebuilt from its action as a call", reader.at)
    values = {str(k): v for k, v in args.items() if k not in _ARGUMENTS_OF_THE_FRAMEWORK and v is not None}
    arguments = jsonable(values, lambda text: reader.draft.notes.add(text, reader.at))
    call_id = f"event_{reader.at}"
    reader.open_rebuilt.append((event.get("id"), call_id))
    call = ToolCall(name=action, arguments=arguments or {}, id=call_id)
    return message.model_copy(update={"tool_calls": (call,)})


def _observation(reader: _Reader, event: Mapping[str, Any], where: str) -> None:
    content = event.get("content")
    if content is None and isinstance(event.get("extras"), Mapping):
        content = event["extras"].get("content", event.get("message"))
    call_id = _metadata(event).get("tool_call_id") or _answered(reader, event)
    if call_id:
        reader.show(event, _read(reader, "tool", content, where, tool_call_id=call_id))
        return
    if not (reader.log.messages and not reader.log.messages[-1].tool_calls):
        reader.draft.notes.add("an observation of no recorded call: kept as a user message", reader.at)
    reader.show(event, _read(reader, "user", content, where))


def _answered(reader: _Reader, event: Mapping[str, Any]) -> str | None:
    """The rebuilt call an observation belongs to: by its cause, or else the one that waits longest."""
    cause = event.get("cause")
    for entry in reader.open_rebuilt:
        if cause is None or entry[0] == cause:
            reader.open_rebuilt.remove(entry)
            return entry[1]
    return None


def _condensation(reader: _Reader, event: Mapping[str, Any], where: str) -> None:
    """Earlier events leave the prompt; a summary may stand in their place and in that of an earlier summary."""
    args = _args(event)
    forgotten = _forgotten(args)
    kept = [seen for seen in reader.seen if seen.event_id not in forgotten]
    gone = len(reader.seen) - len(kept)
    summary, offset = args.get("summary"), args.get("summary_offset")
    if isinstance(summary, str) and isinstance(offset, int):
        kept = [seen for seen in kept if not seen.summary]
        message = _read(reader, "user", summary, f"{where}.args.summary")
        kept.insert(offset, _Seen(None, message, summary=True))
    elif summary:
        reader.draft.notes.add("a summary without a place was not shown to the model: left out", reader.at)
    reader.seen = kept
    reader.draft.notes.add(f"condensed: {gone} earlier events leave the prompt, as they did in the run", reader.at)


def _forgotten(args: Mapping[str, Any]) -> Container[int | None]:
    listed = args.get("forgotten_event_ids")
    if isinstance(listed, list):
        return {value for value in listed if isinstance(value, int)}
    start, end = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
    return range(start, end + 1) if isinstance(start, int) and isinstance(end, int) else ()


_ACTIONS: dict[str, Callable[[_Reader, Mapping[str, Any], str], None]] = {
    "system": _system,
    "message": _message,
    "condensation": _condensation,
}
