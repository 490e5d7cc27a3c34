"""AgentMemoryBench: saved outputs of the six tasks, gold queries that really run, conversations in session order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentbench_spec_workloads.agent_memory_bench import TASKS
from template_kit import assert_renders

from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Rollout


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def load(path: Path, **options: Any) -> list[Rollout]:
    return list(load_workload("agent_memory_bench", data=path, **options).rollouts())


def saved(task: str, index: int = 3) -> dict[str, Any]:
    function = {"name": "bash_action", "arguments": '{"script":"ls *.log | wc -l"}'}
    return {
        "task": f"{task}-std",
        "index": index,
        "split": "test",
        "history": [
            {"role": "user", "content": "Count .log files"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "4"},
            {"reward": 1},
            {"role": "assistant", "content": "There are 4."},
        ],
        "result": {"status": "COMPLETED", "reward": 1},
    }


@pytest.mark.parametrize("task", TASKS)
def test_saved_outputs_of_every_task(task: str, tmp_path: Path) -> None:
    """Fails if a task's saved run is not recognised, a turn is lost, or a reward is taken for a message."""
    write(tmp_path / "outputs" / "2026-03-01" / f"{task}-std" / "3.json", saved(task))
    (made,) = load(tmp_path)
    assert made.labels["category"] == task and made.labels["reward"] == 1 and made.labels["split"] == "test"
    assert [m.role for m in made.messages] == ["user", "assistant", "tool", "assistant"]
    assert any("reward" in note for note in made.notes)
    assert_renders(made)


def test_older_outputs_and_demonstrations(tmp_path: Path) -> None:
    """Fails if {"messages", "result"} or a bare list of messages under alfworld/prompts is refused."""
    old = {"messages": saved("os")["history"], "result": {"status": "LIMIT"}}
    write(tmp_path / "outputs" / "t" / "os" / "1.json", old)
    demo = [{"role": "user", "content": "Put a mug."}, {"role": "assistant", "content": "go to desk"}]
    write(tmp_path / "src" / "tasks" / "alfworld" / "prompts" / "put.json", demo)
    made = {r.labels["category"]: r for r in load(tmp_path)}
    assert made["os"].labels["status"] == "LIMIT"
    assert len(made["alfworld"].decode_points()) == 1


def test_demonstrations_under_names_of_their_own(tmp_path: Path) -> None:
    """Fails if a file of alfworld/prompts, which holds a demonstration under each name, is refused or joined."""
    task, acted = {"role": "user", "content": "Put a mug on the shelf."}, {"role": "agent", "content": "I look."}
    demos = {"react_put_0": [task, acted], "react_put_1": [task, acted, task, acted]}
    write(tmp_path / "alfworld" / "prompts" / "alfworld_react.json", demos)
    rollouts = list(load_workload("agent_memory_bench", data=tmp_path).rollouts(limit=20))
    assert {r.id.rpartition("/")[2]: len(r.messages) for r in rollouts} == {"react_put_0": 2, "react_put_1": 4}
    assert {r.labels["category"] for r in rollouts} == {"alfworld"}


TABLE = {
    "table_name": "Team Information",
    "table_info": {
        "columns": [{"name": "Team", "type": "TEXT"}, {"name": "Wins"}],
        "rows": [["A", 3], ["B", 12], ["C", 7]],
    },
}


def db_row(sql: Any, kind: str = "counting", label: Any = ("B",)) -> dict[str, Any]:
    return {"description": "Who won most?", "type": [kind], "sql": sql, "label": list(label), "table": TABLE}


def write_rows(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "data" / "dbbench" / "standard.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return tmp_path


def test_a_gold_query_really_runs(tmp_path: Path) -> None:
    """Fails if the observation is not what the database gives, columns are not text, or the answer is lost."""
    query = "SELECT `Team` FROM `Team Information` WHERE CAST(`Wins` AS INTEGER) > 5 ORDER BY `Wins`"
    (made,) = load(write_rows(tmp_path, db_row({"query": query})))
    asked, called, result, answer = made.messages[1:]
    assert called.tool_calls[0].arguments == {"query": query}
    assert result.content == "[('B',), ('C',)]", "text columns: '12' comes before '7'"
    assert answer.content == "The answer is B." and "Team, Wins" in asked.content
    assert made.labels["category"] == "dbbench" and "executed" in made.notes[-1]
    assert_renders(made)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (db_row(None, "INSERT"), "INSERT row without a gold query"),
        (db_row("INSERT INTO t VALUES (1)", "INSERT"), "INSERT row without a gold query"),
        (db_row("SELECT * FROM absent"), "cannot run the gold query: no such table"),
        (db_row("SELECT load_extension('x')"), "cannot run the gold query"),
        (db_row("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT max(i) FROM n"), "interrupted"),
    ],
)
def test_what_cannot_run_is_listed_and_left_out(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Fails if a query that failed becomes an observation, harms this machine, hangs, or vanishes unlisted."""
    good = db_row("SELECT COUNT(*) FROM `Team Information`")
    workload = load_workload("agent_memory_bench", data=write_rows(tmp_path, good, row))
    assert [r.messages[3].content for r in workload.rollouts()] == ["[(3,)]"]
    (left_out,) = workload.left_out  # type: ignore[attr-defined]
    assert why in left_out.reason and left_out.line == 2


def conversation() -> dict[str, Any]:
    talk = {f"session_{n}": [{"speaker": "Ann", "dia_id": f"D{n}:1", "text": f"news {n}"}] for n in (10, 2, 1)}
    talk["session_2"].append({"speaker": "Bob", "dia_id": "D2:2", "text": "look", "blip_caption": "a cat"})
    talk["session_2"].append({"speaker": "Bob", "dia_id": "D2:3", "text": "and", "img_url": ["http://x.invalid/a.jpg"]})
    questions = [
        {"question": "Q about two?", "answer": 2022, "evidence": ["D1:1", "D2:1"], "category": 2},
        {"question": "Q nobody can answer?", "evidence": ["D10:1"], "category": 5},
        {"question": "Q at the end?", "answer": "yes", "evidence": [], "category": 1},
        {"question": "Q left over?", "answer": "no", "evidence": ["D10:1"], "category": 1},
    ]
    return {
        "qa": questions,
        "conversation": {"speaker_a": "Ann", "speaker_b": "Bob", "session_2_date_time": "May 2", **talk},
    }


def test_a_conversation_in_the_order_of_its_sessions(tmp_path: Path) -> None:
    """Fails if session 10 comes before session 2, a question before its evidence, too many are asked, or an image is
    passed over in silence."""
    path = write(tmp_path / "data" / "locomo" / "locomo0.json", [conversation()])
    (made,) = load(path)
    users = [m.content for m in made.messages if m.role == "user"]
    assert users[0] == "Session 1\nAnn: news 1"
    assert users[1] == "Session 2, May 2\nAnn: news 2\nBob: look [image: a cat]\nBob: and [image]"
    assert users[2:] == ["Q about two?", "Session 10\nAnn: news 10", "Q nobody can answer?", "Q at the end?"]
    answers = [made.messages[i] for i in made.decode_points()]
    assert answers[0].content == "2022" and not answers[0].synthetic
    assert answers[1].synthetic and not answers[2].synthetic
    assert_renders(made)
    (one_each,) = load(path, questions_per_session=1)
    assert len(one_each.decode_points()) == 2


def test_tasks_choose_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    """Fails if a task is mixed in unasked or an unknown name passes."""
    for task in ("os", "kg"):
        write(tmp_path / "outputs" / "t" / task / "3.json", saved(task))
    assert [r.labels["category"] for r in load(tmp_path, tasks="kg")] == ["kg"]
    with pytest.raises(ConfigError, match="tasks: unknown 'chess'"):
        load(tmp_path, tasks="chess")
    with pytest.raises(ConfigError, match="history, messages, table or conversation"):
        load(write(tmp_path / "x.json", {"a": 1}))
    with pytest.raises(ConfigError, match=r"is read from files only.*s010m00n/AgentMemoryBench"):
        load_workload("agent_memory_bench")
