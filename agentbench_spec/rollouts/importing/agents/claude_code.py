"""Claude Code session files, and its stream of JSON lines: one rollout a session.

A line holds one block of a message, so lines that share `message.id` are joined; a line written twice (`uuid`) is read
once. Side chains (sub-agents), summaries, system lines and rewound branches are left out with a note; a compaction
becomes a view, since the model saw nothing of what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.messages import View
from agentbench_spec.rollouts.importing.draft import Draft
from agentbench_spec.rollouts.importing.notes import RowFault, short

__all__ = ["claude_code", "split_sessions"]

_LINE_FIELDS = ("toolUseResult", "tool_use_result", "isMeta", "permissionMode", "thinkingMetadata", "todos")


def split_sessions(lines: Sequence[Any]) -> list[list[Any]]:
    """The sessions of a file that holds several behind one another; a session that goes on under a new id is one."""
    parts: list[list[Any]] = []
    names: set[Any] = set()
    for line in lines:
        name = line.get("sessionId") or line.get("session_id") if isinstance(line, Mapping) else None
        opens = name is not None and line.get("type") == "user" and not _is_side_chain(line)
        begins = opens and name not in names and line.get("parentUuid") is None and not line.get("isCompactSummary")
        if not parts or (begins and names):
            parts.append([])
        if opens:
            names.add(name)
        parts[-1].append(line)
    return parts


@dataclass(slots=True)
class _Message:
    """One message, joined from its lines."""

    role: str
    content: Any
    where: str
    uuid: Any
    parent: Any
    prompt: bool
    """True for something a person typed, as opposed to tool results."""
    summary: bool
    """True for the text that stands for everything before it after a compaction."""


def claude_code(value: Any, draft: Draft) -> None:
    """The lines of one session."""
    if not isinstance(value, list):
        raise RowFault(None, f"expected the lines of a Claude Code session, found {short(value)}")
    compacted: list[int] = []
    for message in _without_rewound(list(_messages(value, draft)), draft):
        if message.summary and draft.messages:
            compacted.append(len(draft.messages))
        before = len(draft.messages)
        draft.add({"role": message.role, "content": message.content}, message.where)
        if message.role == "assistant":
            draft.views += [View(at=before, start=0, stop=stop) for stop in compacted[-1:]]
            compacted.clear()
    if draft.views:
        draft.notes.add("compacted: what came before a summary leaves the prompt, as it did in the session")


def _messages(lines: Sequence[Any], draft: Draft) -> Iterator[_Message]:
    read, joined = list[_Message](), dict[Any, _Message]()
    seen: set[Any] = set()
    for i, line in enumerate(lines):
        uuid = line.get("uuid") if isinstance(line, Mapping) else None
        if uuid is not None and uuid in seen:
            draft.notes.add("a line that was written twice was read once")
        elif _is_chat(line, f"[{i}]", draft):
            message = line["message"]
            draft.notes.left_out({key: line[key] for key in _LINE_FIELDS if line.get(key)})
            name = message.get("id") if line["type"] == "assistant" else None
            if name is not None and name in joined:
                draft.notes.add("lines of one message were joined")
                joined[name].content = _joined(joined[name].content, message.get("content"))
                joined[name].uuid = uuid
            else:
                read.append(_message(line, message, f"[{i}].message"))
                joined |= {name: read[-1]} if name is not None else {}
        seen.add(uuid)
    yield from read


def _message(line: Mapping[str, Any], message: Mapping[str, Any], where: str) -> _Message:
    content, role = message.get("content"), message.get("role") or line["type"]
    results = isinstance(content, list) and any(
        isinstance(b, Mapping) and b.get("type") == "tool_result" for b in content
    )
    prompt, summary = role == "user" and not results, bool(line.get("isCompactSummary"))
    return _Message(role, content, where, line.get("uuid"), line.get("parentUuid"), prompt, summary)


def _is_side_chain(line: Mapping[str, Any]) -> bool:
    return bool(line.get("isSidechain")) or line.get("parent_tool_use_id") is not None


def _is_chat(line: Any, where: str, draft: Draft) -> bool:
    """True for a line of the main conversation; what others hold is left out with a note."""
    if not isinstance(line, Mapping):
        raise RowFault(where, f"expected a line of a session, found {short(line)}")
    kind = line.get("type")
    if kind not in ("user", "assistant"):
        reason = f"lines of kind {kind!r}, which the model did not see as such, were left out"
    elif _is_side_chain(line):
        reason = "side chains (sub-agents) were left out"
    elif line.get("isApiErrorMessage"):
        reason = "errors of the API were left out"
    elif not isinstance(line.get("message"), Mapping):
        raise RowFault(f"{where}.message", f"expected a message object, found {short(line.get('message'))}")
    else:
        return True
    draft.notes.add(reason)
    draft.notes.left_out_part(line)
    return False


def _joined(content: Any, more: Any) -> list[Any]:
    """The blocks of both, a block that is repeated once; a text that only grew takes the place of its beginning."""
    blocks = _blocks(content)
    for block in _blocks(more):
        if block in blocks:
            continue
        last = blocks[-1] if blocks else None
        if _text(last) and _text(block).startswith(_text(last)):
            blocks[-1] = block
        else:
            blocks.append(block)
    return blocks


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


def _text(block: Any) -> str:
    return str(block.get("text") or "") if isinstance(block, Mapping) and block.get("type") == "text" else ""


def _without_rewound(messages: list[_Message], draft: Draft) -> list[_Message]:
    """The messages without the branches that the user left by going back to an earlier one."""
    kept: list[_Message] = []
    for message in messages:
        place = next((i for i in range(len(kept) - 1, -1, -1) if kept[i].uuid == message.parent is not None), None)
        if message.prompt and place is not None and _goes_on(kept[place + 1 :]):
            for gone in kept[place + 1 :]:
                draft.notes.left_out_part(gone.content)

            draft.notes.add(f"a branch that the user left was left out: {len(kept) - place - 1} messages")
            del kept[place + 1 :]
        kept.append(message)
    return kept


def _goes_on(messages: Sequence[_Message]) -> bool:
    """True if a conversation goes on in `messages`, which are not only results of calls made at once."""
    return any(message.prompt or message.role == "assistant" for message in messages)
