"""One row a request: folded by prefix into sessions, split where history was rewritten; OpenTelemetry spans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from traces import imported, noted, one, roles, write

from agentbench_spec.rollouts.importing import RowFault, convert_row

USER = [{"role": "user", "content": f"question {n}"} for n in range(4)]
SAID = [{"role": "assistant", "content": f"answer {n}"} for n in range(4)]
CONTEXTS = [[USER[0]], [USER[0], SAID[0], USER[1]], [USER[0], SAID[0], USER[1], SAID[1], USER[2]]]


def asked(session: str, context: list[Any], **more: Any) -> dict[str, Any]:
    return {"session_id": session, "model": "m", "input": context, **more}


def test_rows_that_repeat_the_context_are_one_rollout(tmp_path: Path) -> None:
    """Fails if each request becomes a rollout, or sessions that take turns in the file are mixed."""
    rows = [asked(session, context, output_length=7, pre_gap=0.1) for context in CONTEXTS for session in ("s", "t")]
    rollouts, bad = imported(write(tmp_path / "t.jsonl", *rows))
    assert bad == [] and [(r.id, roles(r)) for r in rollouts] == [("t/s", "uauaua"), ("t", "uauaua")]
    assert [m.synthetic for m in rollouts[0].messages] == [False] * 5 + [True]
    assert noted(rollouts[0], "3 rows, each one request") and noted(rollouts[0], "the last reply is not recorded")


def test_replies_of_their_own_give_exact_prompts(tmp_path: Path) -> None:
    """Fails if a reply that the next context shows otherwise is lost, or stands in the prompt."""
    stripped = [USER[0], {"role": "assistant", "content": "answer"}, USER[1]]
    rows = [asked("s", CONTEXTS[0], output="thinking... answer"), asked("s", stripped, output="second answer")]
    rollout = one(write(tmp_path / "t.jsonl", *rows))
    assert [m.content for m in rollout.messages] == ["question 0", "thinking... answer", "question 1", "second answer"]
    assert [m.content for m in rollout.context_at(3)] == ["question 0", "answer", "question 1"]


def test_a_rewritten_history_begins_a_rollout(tmp_path: Path) -> None:
    """Fails if requests of a session that do not go on from one another are joined."""
    cut = [{"role": "user", "content": "a summary"}, USER[3]]
    rows = [*(asked("s", context) for context in CONTEXTS), asked("s", cut), asked("s", [*cut, SAID[3], USER[0]])]
    rollouts, bad = imported(write(tmp_path / "t.jsonl", *rows))
    assert bad == [] and [roles(r) for r in rollouts] == ["uauaua", "uuaua"]
    assert all(noted(r, "rewritten, or sub-agents ran beside: 2 rollouts") for r in rollouts)


def test_messages_with_a_session_are_folded_and_conversations_are_not(tmp_path: Path) -> None:
    """Fails if rows of `messages` that only share a session are joined, or that repeat one another are not."""
    grown = [
        {"trajectory_id": 7, "turn_index": n, "messages": [*context, SAID[n]]} for n, context in enumerate(CONTEXTS)
    ]
    assert roles(one(write(tmp_path / "grown.jsonl", *grown))) == "uauaua"
    apart = [{"conversation_id": "c", "messages": [USER[n], SAID[n]]} for n in (0, 1)]
    rollouts, _ = imported(write(tmp_path / "apart.jsonl", *apart))
    assert [roles(r) for r in rollouts] == ["ua", "ua"] and not noted(rollouts[0], "folded")


@pytest.mark.parametrize(
    "reply",
    [
        "answer 2",
        {"choices": [{"message": SAID[2]}]},
        {"role": "assistant", "content": [{"type": "text", "text": "answer 2"}], "type": "message"},
        {
            "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "answer 2"}]}
            ]
        },
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "answer 2"}]}}]},
    ],
    ids=["text", "choices", "Anthropic", "Responses", "Gemini"],
)
@pytest.mark.parametrize("wrap", ["input", "request"])
def test_replies_of_every_api(reply: Any, wrap: str, tmp_path: Path) -> None:
    """Fails if the reply of a logged call is lost for the API it came from."""
    system = {"system": "You are terse."}
    row = {"input": CONTEXTS[2], **system} if wrap == "input" else {"request": {"messages": CONTEXTS[2], **system}}
    rollout = one(write(tmp_path / "t.jsonl", {"id": "x", **row, "response": reply}))
    assert roles(rollout) == "suauaua" and rollout.messages[-1].content == "answer 2"


def parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": m["role"], "parts": [{"type": "text", "content": m["content"]}]} for m in messages]


def numbered(prefix: str, messages: list[dict[str, Any]], inner: str = "") -> dict[str, Any]:
    return {f"{prefix}.{n}.{inner}{key}": m[key] for n, m in enumerate(messages) for key in m}


ATTRIBUTES: dict[str, Callable[[list[Any], Any], dict[str, Any]]] = {
    "gen_ai": lambda context, reply: {
        "gen_ai.input.messages": json.dumps(parts(context)),
        "gen_ai.output.messages": json.dumps(parts([reply])),
    },
    "OpenLLMetry": lambda context, reply: {
        **numbered("gen_ai.prompt", context),
        **numbered("gen_ai.completion", [reply]),
    },
    "OpenInference": lambda context, reply: {
        **numbered("llm.input_messages", context, "message."),
        **numbered("llm.output_messages", [reply], "message."),
    },
}


def spans(convention: str) -> list[dict[str, Any]]:
    """Spans of three calls, the last first, and of a tool."""
    calls = [
        {
            "traceId": "t1",
            "spanId": str(n),
            "name": "chat m",
            "startTimeUnixNano": str(10 + n),
            "attributes": {"gen_ai.operation.name": "chat", **ATTRIBUTES[convention](context, SAID[n])},
        }
        for n, context in enumerate(CONTEXTS)
    ]
    tool = {"traceId": "t1", "spanId": "9", "name": "execute_tool ls", "attributes": {"gen_ai.tool.name": "ls"}}
    return [*reversed(calls), tool]


def as_otlp(span: dict[str, Any]) -> dict[str, Any]:
    pairs = [{"key": key, "value": {"stringValue": value}} for key, value in span["attributes"].items()]
    return {**span, "attributes": pairs}


LAYOUTS: dict[str, Callable[[list[Any]], Any]] = {
    "trace": lambda found: {"trace_id": "t1", "spans": found},
    "OTLP": lambda found: {"resourceSpans": [{"scopeSpans": [{"spans": [as_otlp(span) for span in found]}]}]},
}


@pytest.mark.parametrize("convention", ATTRIBUTES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_spans_of_model_calls(convention: str, layout: str, tmp_path: Path) -> None:
    """Fails if the calls of a trace are not one rollout in the order they began, in any convention."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(LAYOUTS[layout](spans(convention))), "utf-8")
    rollout = one(path)
    assert rollout.source["format"] == "requests" and roles(rollout) == "uauaua"
    assert [m.content for m in rollout.messages if m.role == "assistant"] == ["answer 0", "answer 1", "answer 2"]
    assert noted(rollout, "1 spans that are no model call were left out: execute_tool ls")


def test_one_trace_is_one_row_for_the_library() -> None:
    """Fails if `convert_row` refuses a trace, or joins the sessions of two."""
    assert roles(convert_row({"trace_id": "t1", "spans": spans("gen_ai")})) == "uauaua"
    apart = [{**span, "traceId": span["spanId"]} for span in spans("gen_ai")]
    with pytest.raises(RowFault, match="hold 3 sessions"):
        convert_row({"trace_id": "t1", "spans": apart})


def test_spans_on_lines(tmp_path: Path) -> None:
    """Fails if spans that stand on lines are rollouts of their own."""
    found = [span for span in reversed(spans("gen_ai")) if span["name"] == "chat m"]
    assert roles(one(write(tmp_path / "spans.jsonl", *found))) == "uauaua"


def test_turns_that_are_whole_messages(tmp_path: Path) -> None:
    """Fails if a recorded session under `turns` becomes prompts with placeholders (SPEED-Bench's agentic split)."""
    tool = {"type": "function", "function": {"name": "ls"}}
    whole = {"question_id": "q", "category": "agentic", "turns": [USER[0], SAID[0]], "tools": [tool]}
    rollout = one(write(tmp_path / "t.jsonl", whole))
    assert roles(rollout) == "ua" and rollout.messages[1].content == "answer 0" and len(rollout.tools) == 1
    texts = {**whole, "turns": [json.dumps(message) for message in (USER[0], SAID[0])]}
    assert one(write(tmp_path / "t.jsonl", texts)).messages == rollout.messages
    both = {**whole, "turns": ["question 0"], "messages": [USER[0], SAID[0]]}
    assert one(write(tmp_path / "t.jsonl", both)).messages == rollout.messages
