"""LoCoMo conversations: sessions arrive one by one, and questions about what was said so far are asked in between.

Upstream LoCoMo is CC BY-NC 4.0 (from memory of its card), whatever the licence of a repository that copies it: it is
read from a path only, and never shipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentbench_spec.rollout import Message

from ..row_workload import Row, unrecorded

__all__ = ["messages"]

_SESSION = re.compile(r"session_(\d+)$")
_EVIDENCE = re.compile(r"D(\d+)")


def messages(row: Row, questions_per_session: int) -> list[Message]:
    """Each session as one user message, followed by up to that many of the questions it is the last evidence for.

    Questions without evidence come after the last session. A question is a user message, its short answer the
    reference; where there is none (adversarial questions), the decode point is marked as unrecorded.
    """
    conversation = row.value["conversation"]
    if not isinstance(conversation, dict):
        raise row.fault("conversation", f"expected an object, found {type(conversation).__name__}")
    sessions = sorted(int(found[1]) for key in conversation if (found := _SESSION.match(key)))
    if not sessions:
        raise row.fault("conversation", "expected session_1, session_2, ...")
    asked = _by_session(row, sessions)
    out = [Message(role="system", content="Remember the conversation; answer questions about it in a few words.")]
    for number in sessions:
        out.append(Message(role="user", content=_session(row, conversation, number)))
        for question in asked.get(number, [])[:questions_per_session]:
            out += (Message(role="user", content=question["question"]), _answer(question))
    return out


def _by_session(row: Row, sessions: list[int]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for i, question in enumerate(row.items("qa")):
        if not isinstance(question, dict) or not isinstance(question.get("question"), str):
            raise row.fault(f"qa[{i}].question", "expected text")
        evidence = [int(n) for n in _EVIDENCE.findall(str(question.get("evidence") or ""))]
        known = [number for number in evidence if number in sessions]
        found.setdefault(max(known, default=sessions[-1]), []).append(question)
    return found


def _session(row: Row, conversation: dict[str, Any], number: int) -> str:
    listed = conversation[f"session_{number}"]
    if not isinstance(listed, list):
        raise row.fault(f"conversation.session_{number}", "expected a list of what was said")
    when = conversation.get(f"session_{number}_date_time")
    return "\n".join([f"Session {number}" + (f", {when}" if when else ""), *_lines(row, listed, number)])


def _lines(row: Row, listed: list[Any], number: int) -> Iterator[str]:
    for i, said in enumerate(listed):
        if not isinstance(said, dict) or not isinstance(said.get("text"), str):
            raise row.fault(f"conversation.session_{number}[{i}].text", "expected text")
        yield f"{said.get('speaker', 'someone')}: {said['text']}{_image(said)}"


def _image(said: dict[str, Any]) -> str:
    """What stands for a picture: its caption, or that there was one."""
    if caption := said.get("blip_caption"):
        return f" [image: {caption}]"
    return " [image]" if said.get("img_url") else ""


def _answer(question: dict[str, Any]) -> Message:
    answer = question.get("answer")
    return unrecorded() if answer in (None, "") else Message(role="assistant", content=str(answer))
