"""What people bring (docs/field-cases.md): files of agents and harnesses, each made small, and what must come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from traces import calls, imported, noted, one, roles, write

from agentbench_spec.rollout import Rollout

WEATHER = {"city": "Ulm"}


def contents(rollout: Rollout) -> list[str]:
    return [message.content for message in rollout.messages]


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), "utf-8")
    return path


def claude(uuid: str, parent: str | None, kind: str, message: Any = None, **more: Any) -> dict[str, Any]:
    line = {"sessionId": "s", "uuid": uuid, "parentUuid": parent, "isSidechain": False, "type": kind, **more}
    return line if message is None else {**line, "message": message}


def said_block(name: str, block: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": "assistant", "content": [block], "usage": {"output_tokens": 1}}


def answered(call: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}


def claude_session() -> list[dict[str, Any]]:
    last = claude(
        "u5", "u4", "assistant", said_block("A", {"type": "tool_use", "id": "t2", "name": "Bash", "input": {}})
    )
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls a"}}
    return [
        {"type": "summary", "summary": "list files", "leafUuid": "u9"},
        claude("u1", None, "user", {"role": "user", "content": "Count the files."}),
        claude("u2", "u1", "assistant", said_block("A", {"type": "thinking", "thinking": "Two.", "signature": "x"})),
        claude("u3", "u2", "assistant", said_block("A", {"type": "text", "text": "I list both."})),
        claude("u4", "u3", "assistant", said_block("A", call)),
        last,
        last,
        claude("u6", "u4", "user", answered("t1", "x.py"), toolUseResult={"stdout": "x.py, as shown"}),
        claude("u7", "u5", "user", answered("t2", "y.py")),
        claude("sc", "u7", "user", {"role": "user", "content": "sub-agent warm-up"}, isSidechain=True),
        claude("u8", "u7", "system", subtype="informational", content="a hook ran"),
        claude("u9", "u8", "assistant", said_block("B", {"type": "text", "text": "There are two."})),
    ]


def test_claude_code_session(tmp_path: Path) -> None:
    """Fails if lines of one message stay apart, a repeat is read twice, or what was left out is not said."""
    rollout = one(write(tmp_path / "session.jsonl", *claude_session()))
    assert (rollout.id, rollout.source["format"], roles(rollout)) == ("session", "claude_code", "uatta")
    assert calls(rollout) == [("t1", "Bash"), ("t2", "Bash")] and rollout.messages[1].reasoning == "Two."
    assert contents(rollout) == ["Count the files.", "I list both.", "x.py", "y.py", "There are two."]
    for words in ("side chains", "kind 'summary'", "kind 'system'", "joined", "written twice"):
        assert noted(rollout, words)


def test_claude_code_history_that_the_user_left(tmp_path: Path) -> None:
    """Fails if a rewound branch stays in the prompt, or a compaction leaves what came before it in sight."""
    lines = [
        *claude_session(),
        claude("v1", "u9", "user", {"role": "user", "content": "Wrong question."}),
        claude("v2", "v1", "assistant", said_block("C", {"type": "text", "text": "Wrong answer."})),
        claude("w1", "u9", "user", {"role": "user", "content": "Sum up."}, isCompactSummary=True),
        claude("w2", "w1", "assistant", said_block("D", {"type": "text", "text": "Summed up."})),
    ]
    rollout = one(write(tmp_path / "s.jsonl", *lines))
    assert roles(rollout) == "uattaua" and "Wrong answer." not in contents(rollout)
    assert noted(rollout, "a branch that the user left was left out: 2 messages") and noted(rollout, "compacted")
    assert [message.content for message in rollout.context_at(6)] == ["Sum up."]


def test_claude_code_sessions_behind_one_another(tmp_path: Path) -> None:
    """Fails if two sessions in one file become one conversation."""
    other = [
        {**line, "sessionId": "t", "uuid": f"t{i}"}
        for i, line in enumerate(claude_session())
        if line["type"] in ("user", "assistant")
    ]
    rollouts, bad = imported(write(tmp_path / "s.jsonl", *claude_session(), *other))
    assert bad == [] and [(r.id, roles(r)) for r in rollouts] == [("s/1", "uatta"), ("s/2", "uatta")]


def codex_line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00.000Z", "type": kind, "payload": payload}


def codex_session() -> list[dict[str, Any]]:
    asked = [{"type": "input_text", "text": "Count lines of a.txt"}]
    return [
        codex_line("session_meta", id="r-1", cwd="/w", base_instructions={"text": "You are a coding agent."}),
        codex_line("event_msg", type="user_message", message="Count lines of a.txt"),
        codex_line("response_item", type="message", role="user", content=asked),
        codex_line("response_item", type="reasoning", summary=[{"type": "summary_text", "text": "use wc"}]),
        codex_line("response_item", type="function_call", name="shell", arguments='{"command":["wc"]}', call_id="c1"),
        codex_line("response_item", type="function_call_output", call_id="c1", output="12 a.txt\n"),
        codex_line(
            "response_item", type="message", role="assistant", content=[{"type": "output_text", "text": "It has 12."}]
        ),
    ]


@pytest.mark.parametrize("torn", [None, 0, 2, 7])
def test_codex_session(torn: int | None, tmp_path: Path) -> None:
    """Fails if the items of a session are not one rollout, or a torn line costs more than itself."""
    lines: list[Any] = list(codex_session())
    if torn is not None:
        lines.insert(torn, b'{"timestamp": "2026", "type": "response_item", "payload": {"\n\n')
    rollouts, bad = imported(write(tmp_path / "rollout.jsonl", *lines))
    assert [roles(r) for r in rollouts] == ["suata"] and len(bad) == (torn is not None)
    assert contents(rollouts[0]) == ["You are a coding agent.", "Count lines of a.txt", "", "12 a.txt\n", "It has 12."]
    assert rollouts[0].messages[2].reasoning == "use wc" and calls(rollouts[0]) == [("c1", "shell")]
    assert noted(rollouts[0], "could not be read") == (torn is not None)


def test_codex_compaction_is_replayed(tmp_path: Path) -> None:
    """Fails if the model is shown, after a compaction, what it no longer saw."""
    after = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    lines = [*codex_session(), codex_line("compacted", message="Counted: 12."), codex_line("response_item", **after)]
    rollout = one(write(tmp_path / "rollout.jsonl", *lines))
    assert [m.content for m in rollout.context_at(5)] == ["You are a coding agent.", "Counted: 12."]


def trajectory() -> dict[str, Any]:
    call = {"tool_call_id": "k1", "function_name": "bash", "arguments": {"keystrokes": "echo hi\n"}}
    step = {"step_id": 3, "source": "agent", "message": "Writing it.", "reasoning_content": "echo is enough"}
    observed = {"results": [{"source_call_id": "k1", "content": "$ "}]}
    return {
        "schema_version": "ATIF-v1.6",
        "session_id": "a-1",
        "agent": {"name": "terminus-2", "version": "2.0", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "system", "message": "You operate a terminal."},
            {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Create hello.txt"}]},
            {**step, "tool_calls": [call], "observation": observed, "metrics": {"prompt_tokens": 10}},
            {"step_id": 4, "source": "agent", "message": "Done.", "observation": {"results": [{"content": "seen"}]}},
        ],
    }


def test_atif_trajectory(tmp_path: Path) -> None:
    """Fails if a step, a call, its result or an observation of no call is lost."""
    rollout = one(document(tmp_path / "trajectory.json", trajectory()))
    assert (roles(rollout), calls(rollout)) == ("suatau", [("k1", "bash")])
    assert rollout.messages[2].reasoning == "echo is enough" and rollout.messages[3].tool_call_id == "k1"
    assert contents(rollout)[3:] == ["$ ", "Done.", "seen"] and rollout.labels["model_name"] == "m"


@pytest.mark.parametrize("body", ["messages", "input"])
def test_items_of_the_responses_api(body: str, tmp_path: Path) -> None:
    """Fails if thoughts, calls and outputs that are items of their own are refused, or stay apart."""
    items = [
        {"role": "user", "content": "Weather?"},
        {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Ask."}]},
        {"id": "f1", "type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Ulm"}'},
        {"id": "f2", "type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city":"Bonn"}'},
        {"type": "function_call_output", "call_id": "c2", "output": "11 C"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "9 C"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Cold."}]},
    ]
    rollout = one(write(tmp_path / "rows.jsonl", {"id": "x", body: items}))
    assert roles(rollout) == "uatta" and contents(rollout)[2:] == ["9 C", "11 C", "Cold."]
    assert rollout.messages[1].reasoning == "Ask." and len(rollout.messages[1].tool_calls) == 2


def sample(epoch: int, **more: Any) -> dict[str, Any]:
    thought = [{"type": "reasoning", "reasoning": "The shell can add."}, {"type": "text", "text": "Running."}]
    call = {"id": "c1", "function": "bash", "arguments": {"cmd": "echo 5"}, "type": "function"}
    messages = [
        {"id": "m2", "role": "user", "content": "attachment://9f2c", "source": "input"},
        {"id": "m3", "role": "assistant", "content": thought, "tool_calls": [call]},
        {"id": "m4", "role": "tool", "content": "5\n", "tool_call_id": "c1", "function": "bash"},
        {"id": "m5", "role": "assistant", "content": "The sum is 5."},
    ]
    return {"id": 1, "epoch": epoch, "messages": messages, "attachments": {"9f2c": "Add 2 and 3."}, **more}


def test_inspect_log(tmp_path: Path) -> None:
    """Fails if a function's name as text, a thought or an attachment is lost, or two epochs share an id."""
    log = {"version": 2, "eval": {"task": "a demo"}, "samples": [sample(1), sample(2), sample(3, attachments={})]}
    rollouts, bad = imported(document(tmp_path / "log.json", log))
    assert [(r.id, roles(r)) for r in rollouts] == [("log/1-1", "uata"), ("log/1-2", "uata")]
    assert contents(rollouts[0])[0] == "Add 2 and 3." and rollouts[0].messages[1].reasoning == "The shell can add."
    assert "messages[0].content: 'attachment://9f2c' is not among the attachments" in str(bad[0])


def test_tau2_results(tmp_path: Path) -> None:
    """Fails if results are paired by order where their `id` names the call, or the user's own calls end the row."""
    user_call = {"id": "w", "name": "check_status_bar", "arguments": {}, "requestor": "user"}
    pair = [{"id": name, "name": name, "arguments": {}, "requestor": "assistant"} for name in ("a1", "a2")]
    messages = [
        {"role": "user", "content": "Slow.", "tool_calls": None, "turn_idx": 0},
        {"role": "assistant", "content": None, "tool_calls": pair},
        {"id": "a2", "role": "tool", "content": "second", "requestor": "assistant", "error": False},
        {"id": "a1", "role": "tool", "content": "first", "requestor": "assistant", "error": False},
        {"role": "user", "content": None, "tool_calls": [user_call]},
        {"id": "w", "role": "tool", "content": "Airplane mode", "requestor": "user"},
        {"role": "user", "content": "It shows a plane."},
        {"role": "assistant", "content": "Turn it off."},
    ]
    results = {
        "info": {"num_trials": 1},
        "tasks": [{"id": "T1"}],
        "simulations": [{"id": "sim-1", "messages": messages}],
    }
    rollout = one(document(tmp_path / "results.json", results))
    assert roles(rollout) == "uattua" and contents(rollout)[2:4] == ["first", "second"]
    assert noted(rollout, "calls that the user made") and noted(rollout, "a result of the user's own call")


def gemini() -> list[dict[str, Any]]:
    two = [{"functionCall": {"name": name, "args": {"path": name}}} for name in ("read", "stat")]
    found = [{"functionResponse": {"name": name, "response": {"output": f"of {name}"}}} for name in ("stat", "read")]
    return [
        {"role": "user", "parts": [{"text": "Read notes.txt"}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "I will."}, *two]},
        {"role": "user", "parts": found},
        {"role": "model", "parts": [{"text": "It says: buy milk."}]},
    ]


@pytest.mark.parametrize("body", [None, "messages", "contents", "history"])
def test_gemini_parts(body: str | None, tmp_path: Path) -> None:
    """Fails if text under `parts` is lost, or responses without ids answer the call of another name."""
    value: Any = gemini() if body is None else {"id": "g", body: gemini()}
    rollout = one(document(tmp_path / "checkpoint.json", value))
    assert roles(rollout) == "uatta" and rollout.messages[1].reasoning == "Hm."
    assert contents(rollout) == ["Read notes.txt", "I will.", "of read", "of stat", "It says: buy milk."]


def test_anthropic_blocks_in_all_places(tmp_path: Path) -> None:
    """Fails if a system prompt of blocks is lost, results that stand apart are swapped, or server tools speak."""
    use = [{"type": "tool_use", "id": name, "name": "ls", "input": {"p": name}} for name in ("t1", "t2")]
    found = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "B1"}]},
        {"role": "user", "content": [{"type": "text", "text": "hurry"}, {"type": "tool_result", "tool_use_id": "t1"}]},
    ]
    server = [
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a question"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "page", "title": "The title"}]},
        {"type": "text", "text": "Done."},
    ]
    messages = [{"role": "user", "content": "List"}, {"role": "assistant", "content": use}, *found]
    row = {
        "id": "x",
        "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
        "messages": [*messages, {"role": "assistant", "content": server}],
    }
    rollout = one(write(tmp_path / "rows.jsonl", row))
    assert roles(rollout) == "suattua"
    assert contents(rollout) == ["You are an agent.", "List", "", "", "B1", "hurry", "Done."]
    for words in ("'redacted_thinking'", "'server_tool_use'", "'web_search_tool_result'", "text stood before"):
        assert noted(rollout, words)


def test_lists_under_names_of_their_own(tmp_path: Path) -> None:
    """Fails if demonstrations, each under its name, are refused, or an unanswered last call is lost."""
    call = {"id": "c", "type": "function", "function": {"name": "take_action", "arguments": '{"action": "go"}'}}
    acted = {"role": "agent", "content": None, "tool_calls": [call]}
    seen = {"role": "tool", "tool_call_id": "c", "content": "You see a mug."}
    task = {"role": "user", "content": "Put a mug on the shelf."}
    value = {"react_put_0": [task, acted, seen, acted], "react_put_1": [task, {"role": "agent", "content": "I look."}]}
    rollouts, bad = imported(document(tmp_path / "alfworld.json", value))
    assert bad == [] and [(r.id, roles(r)) for r in rollouts] == [
        ("alfworld/react_put_0", "uata"),
        ("alfworld/react_put_1", "ua"),
    ]
    assert [name for name, _ in calls(rollouts[0])] == ["c", "c#2"] and noted(rollouts[0], "a call has no result")


def test_a_history_alone_with_actions_is_no_event_log(tmp_path: Path) -> None:
    """Fails if messages that also name an action are taken for OpenHands events."""
    call = {"id": "call_a", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    history = [
        {"role": "system", "content": "You fix bugs.", "agent": "main"},
        {"role": "user", "content": "The test fails.", "agent": "main"},
        {"role": "assistant", "content": "Let me look.", "action": "ls", "agent": "main", "tool_calls": [call]},
        {"role": "tool", "content": "a.py\r\nb.py", "tool_call_ids": ["call_a"], "agent": "main"},
        {"role": "assistant", "content": "Done.", "action": "submit", "agent": "main"},
    ]
    rollout = one(document(tmp_path / "demo.traj", {"history": history}))
    assert (roles(rollout), calls(rollout)) == ("suata", [("call_a", "bash")])


@pytest.mark.parametrize("key", ["args", "input", "parameters", "kwargs", "params"])
def test_call_arguments_under_another_name(key: str, tmp_path: Path) -> None:
    """Fails if a call loses its arguments because a library calls them otherwise."""
    made = {"role": "assistant", "content": "", "tool_calls": [{"name": "weather", key: WEATHER, "id": "c1"}]}
    messages = [{"role": "user", "content": "Weather?"}, made, {"role": "tool", "content": "9 C", "tool_call_id": "c1"}]
    rollout = one(write(tmp_path / "rows.jsonl", {"id": "x", "messages": messages}))
    assert rollout.messages[1].tool_calls[0].arguments == WEATHER


@pytest.mark.parametrize("place", ["call_ref", "invocation_id", "metadata", "part"])
def test_results_find_their_calls_by_an_id_under_any_name(place: str, tmp_path: Path) -> None:
    """Fails if results are swapped because nobody knows the member that names their call."""

    def answer(name: str, text: str) -> dict[str, Any]:
        if place == "part":
            return {"role": "user", "content": [{"type": "tool_result", "reply_to": name, "content": text}]}
        return {"role": "tool", "content": text, place: {"of": name} if place == "metadata" else name}

    made = [{"id": name, "name": name, "arguments": {}} for name in ("a1", "a2")]
    asked = [{"role": "user", "content": "Two."}, {"role": "assistant", "content": "", "tool_calls": made}]
    messages = [*asked, answer("a2", "second"), answer("a1", "first"), {"role": "assistant", "content": "Done."}]
    rollout = one(write(tmp_path / "rows.jsonl", {"id": "x", "messages": messages}))
    assert contents(rollout)[2:4] == ["first", "second"] and noted(rollout, "the id of a result's call stands in")


def test_calls_of_a_user_that_nobody_marked(tmp_path: Path) -> None:
    """Fails if calls under a user's message refuse the row, or their results are left as those of the assistant."""
    messages = [
        {"role": "user", "content": "Mine.", "tool_calls": [{"id": "u1", "name": "f", "arguments": {}}]},
        {"role": "tool", "tool_call_id": "u1", "content": "the user's own"},
        {"role": "assistant", "content": "Done."},
    ]
    rollout = one(write(tmp_path / "rows.jsonl", {"id": "x", "messages": messages}))
    assert contents(rollout) == ["Mine.", "Done."]
    assert noted(rollout, "calls that the user made") and noted(rollout, "a result of the user's own call")
