"""The audit: every string of a source is in the rollout, in a note, in a refusal, or of a kind that is named here.

It is written anew here, not with the importer's own check, so that a kind which the importer leaves out by mistake
shows.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from test_field_imports import claude_session, codex_session, gemini, sample, trajectory
from traces import DATA, chat, result, said

from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.importing import RowFault, convert_row, read_rows
from agentbench_spec.rollouts.importing.detect import UnknownFormat, detect

FEW = 3
LEFT_OUT = {
    "identifiers": "id uuid parentUuid leafUuid sessionId message_id call_id tool_call_id tool_use_id toolCallId "
    "session_id instance_id task_id traj_id trajectory_id step_id turn_id response_id signature index source_call_id",
    "times": "timestamp created ended started",
    "markers": "type role from source object status kind finish_reason stop_reason version schema_version mini_version "
    "subtype level message_type trajectory_format media_type cache_control phase",
    "usage": "usage metrics cost token_count model_stats",
    "names": "model model_name agent cwd git originator cli_version environment",
    "binary": "encrypted_content data",
}
"""Kind -> members that are no words of a conversation."""
KINDS = {name for names in LEFT_OUT.values() for name in names.split()}


def strings(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, string) of every string of more than a few characters outside of the named kinds."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, str):
        if len(value.strip()) > FEW and not value.startswith("attachment://"):
            yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in KINDS:
                yield from strings(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item, path)


def shown(rollout: Rollout) -> str:
    """All text a prompt or a reader of the rollout may see."""
    messages = [*rollout.messages, *(m for view in rollout.views for m in view.show if isinstance(m, Message))]
    held = [rollout.id, rollout.labels, rollout.tools, *(m.model_dump() for m in messages)]
    texts = [text for item in held for _, text in _all(item)]
    return "\n".join((*texts, *(json.dumps(held, ensure_ascii=False, default=str) for held in (rollout.tools, texts))))


def _all(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield "", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield "", str(key)
            yield from _all(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _all(item)


def lost(value: Any, rollout: Rollout) -> list[str]:
    """Places of `value` whose words are in neither the rollout nor its notes."""
    text, notes = shown(rollout), "\n".join(rollout.notes)
    listed = {
        name for note in rollout.notes if "left out: " in note for name in note.split("left out: ")[1].split(", ")
    }
    told = {name for name in LOG_NOTES if name in notes}
    found = []
    for path, words in strings(value):
        named = any(".".join(path[:n]) in listed for n in range(1, len(path) + 1)) or not listed.isdisjoint(path)
        whole = words in text or json.dumps(words, ensure_ascii=False)[1:-1] in text or words in notes
        if not (named or whole or any(where in path for name in told for where in LOG_NOTES[name])):
            found.append(f"{'.'.join(path)}: {words[:60]!r}")
    return found


LOG_NOTES = {
    "bookkeeping events": ("history", "content", "message", "args", "extras"),
    "a result of the user's own call": ("content",),
    "side chains": ("content",),
    "kind 'summary'": ("summary",),
    "kind 'system'": ("content", "words", "text", "payload"),
    "kind 'event_msg'": ("payload",),
    "kind 'turn_context'": ("payload",),
    "'server_tool_use'": ("input", "name"),
    "_tool_result'": ("content",),
    "replaced by the text [": ("image_url", "source"),
    "a closing message of role 'exit'": ("content", "extra"),
    "a summary without a place": ("summary",),
    "open with another message": ("messages", "response"),
}
"""Words of a note that tell of something left out -> where in the source its words stand."""


def fixture_rows() -> list[Any]:
    """Every row of every fixture file that is a rollout by itself."""
    rows = [
        row.value
        for path in sorted(DATA.rglob("*"))
        if path.is_file()
        for row in read_rows(path)
        if hasattr(row, "value")
    ]
    rows += [claude_session(), codex_session(), trajectory(), sample(1), gemini()]
    return [row for row in rows if _known(row)]


def _known(value: Any) -> bool:
    try:
        return detect(value) != "rollout"
    except UnknownFormat:
        return False


def audit(value: Any) -> list[str] | None:
    """What conversion of `value` lost; None if it was refused, which names the key."""
    try:
        return lost(value, convert_row(copy.deepcopy(value), id="r"))
    except RowFault as fault:
        assert str(fault)
        return None


@pytest.mark.parametrize("value", fixture_rows(), ids=lambda value: str(len(json.dumps(value))))
def test_no_fixture_loses_a_word(value: Any) -> None:
    """Fails if any string of a trace in a known format is dropped without a word."""
    assert not audit(value)


WORDS = "the words that must not be lost"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"where": WORDS}}}
TURN = [said("", tool_calls=[CALL]), result("a result"), said("done now")]
KEYS = (
    *("parts", "text", "message", "refusal", "value", "output", "response", "body", "data", "words", "msg", "answer"),
    *("args", "input", "parameters", "kwargs", "payload", "toolInput", "system_prompt", "instructions", "thought"),
)


def moved() -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows whose words were moved under another key, or given another shape."""
    shapes = {
        "text": WORDS,
        "list": [{"type": "text", "text": WORDS}],
        "object": {"text": WORDS},
        "odd": {"x": [WORDS]},
    }
    for key in KEYS:
        for shape, value in shapes.items():
            for role in ("user", "assistant", "system", "tool"):
                yield f"message {role} {key} {shape}", chat({"role": role, key: value}, *TURN)
            yield f"beside {key} {shape}", chat(said("yes, sir", **{key: value}))
            yield f"row {key} {shape}", chat(said("yes, sir"), **{key: value})
            yield f"part {key} {shape}", chat(said([{"type": "mystery", key: value}]))
            yield f"untyped part {key} {shape}", chat(said([{key: value}]))
            yield f"text part {key} {shape}", chat(said([{"type": "text", key: value}]))
            yield f"result {key} {shape}", chat(*TURN[:1], {"role": "tool", "tool_call_id": "c1", key: value}, said())
            block = {"type": "tool_result", "tool_use_id": "c1", key: value}
            yield f"result part {key} {shape}", chat(*TURN[:1], {"role": "user", "content": [block]}, said())
            yield f"body {key} {shape}", {"id": "r", key: chat(said(WORDS))["messages"], "note": value}
        for name in ("tool_calls", "toolCalls"):
            flat = {"id": "c1", "name": "look", key: {"where": WORDS}}
            yield f"{name} {key} flat", chat(said("", **{name: [flat]}), result(), said())
            nested = {"id": "c1", "function": {"name": "look", key: json.dumps({"where": WORDS})}}
            yield f"{name} {key} nested", chat(said("", **{name: [nested]}), result(), said())
        use = {"type": "tool_use", "id": "c1", "name": "look", key: {"where": WORDS}}
        yield f"block {key}", chat(said([use]), result(), said())


@pytest.mark.parametrize(("name", "row"), [pytest.param(*made, id=made[0]) for made in moved()])
def test_words_under_another_key_are_read_named_or_refused(name: str, row: dict[str, Any]) -> None:
    """Fails if words under a key nobody knows leave an empty message, or go without being named."""
    assert not audit(row)
    try:
        rollout = convert_row(copy.deepcopy(row), id="r")
    except RowFault:
        return
    empty = [m for m in rollout.messages if not (m.content or m.tool_calls or m.reasoning or m.synthetic)]
    assert not empty or WORDS in shown(rollout) or name.startswith(("row", "body"))


@pytest.mark.parametrize("format", ["sharegpt", "nebius", "openhands", "swe_agent", "atif", "claude_code", "codex"])
@pytest.mark.parametrize("key", ["words", "text", "payload"])
def test_renamed_members_of_every_format(format: str, key: str) -> None:
    """Fails if a reader of one format drops a message whose text was renamed."""
    for value in (v for v in fixture_rows() if detect(v) == format):
        for name in ("content", "value", "text", "message", "observation"):
            renamed = json.loads(json.dumps(value).replace(f'"{name}":', f'"{key}":'))
            if _known(renamed):
                assert not audit(renamed)


def test_the_audit_catches_a_planted_loss() -> None:
    """Fails if the audit would pass a rollout from which a message's text, a call's argument or a note was taken."""
    row = chat(*TURN, extra_member="a remark of the row")
    rollout = convert_row(row, id="r")
    assert lost(row, rollout) == []
    emptied = [m.model_copy(update={"content": ""}) if m.role == "tool" else m for m in rollout.messages]
    assert lost(row, rollout.model_copy(update={"messages": tuple(emptied)})) == ["messages.content: 'a result'"]
    bare = [
        m.model_copy(update={"tool_calls": tuple(c.model_copy(update={"arguments": {}}) for c in m.tool_calls)})
        for m in rollout.messages
    ]
    assert "messages.tool_calls.function.arguments.where" in lost(row, rollout.model_copy(update={"messages": bare}))[0]
    assert lost(row, rollout.model_copy(update={"notes": ()})) == ["extra_member: 'a remark of the row'"]


def test_the_importer_itself_names_what_it_cannot_place() -> None:
    """Fails if words of a row that are no part of the conversation go without a note that says where they stood."""
    rollout = convert_row(chat(said(), info={"why": "it was late"}), id="r")
    assert "words that are no part of a conversation were left out: info.why" in rollout.notes
    assert convert_row(chat(said(), call_id="not words at all", usage={"a": "tokens, many"}), id="r").notes == ()


def test_fixture_rows_cover_the_formats() -> None:
    """Fails if the audit runs over less than it says."""
    assert len({detect(value) for value in fixture_rows()}) >= 12 and len(fixture_rows()) > 40
