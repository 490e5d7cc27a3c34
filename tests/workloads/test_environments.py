"""Environments: gold calls solve every task, wrong ones do not, and hostile calls cost a sentence and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from agentbench_spec_workloads.bfcl_v3 import SHIPPED
from agentbench_spec_workloads.live_bfcl import MOST_STEPS
from agentbench_spec_workloads.live_bfcl import make as bfcl
from agentbench_spec_workloads.live_dbbench import make as dbbench
from agentbench_spec_workloads.live_synthetic import make as synthetic
from bfcl_fixtures import needs_bfcl, row, write_folder

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout, ToolCall, read_rollouts
from agentbench_spec.rollouts.environments import Environment


def calling(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments, id="c"),))


DONE = Message(role="assistant", content="Done.")


def answer(task: Environment, name: str, **arguments: Any) -> str:
    """What the one call is answered with; fails if the task ends."""
    found = task.step(calling(name, **arguments))
    assert found is not None and len(found) == 1 and found[0].tool_call_id == "c"
    return found[0].content


def played(task: Environment, said: Iterable[Message]) -> list[Message]:
    """What the task says to these messages; it must end with the last of them."""
    heard = list(task.start())
    said = list(said)
    for i, message in enumerate(said):
        more = task.step(message)
        assert (more is None) == (i == len(said) - 1), f"{task.id}: message {i} of {len(said)}"
        heard += more or ()
    return heard


def gold(rollout: Rollout) -> list[Message]:
    return [message for message in rollout.messages if message.role == "assistant"]


@needs_bfcl
def test_gold_calls_reach_the_gold_state_in_every_shipped_row() -> None:
    """Fails if a user turn, a function list, a result or the comparison of states is not the benchmark's."""
    recorded = {rollout.id: rollout for rollout in read_rollouts(SHIPPED)}
    tasks = {task.id: task for task in bfcl(subset="shipped").environments()}
    assert tasks.keys() == recorded.keys()
    for name, task in tasks.items():
        heard = played(task, gold(recorded[name]))
        assert [m.content for m in heard] == [m.content for m in recorded[name].messages if m.role != "assistant"]
        assert [tool["function"]["name"] for tool in task.tools()] == [
            tool["function"]["name"] for tool in recorded[name].tools
        ]
        assert task.score()["solved"] is True, name


@pytest.fixture
def files(tmp_path: Path) -> Environment:
    """A file-system task of two user turns: make a.txt, write hi in it."""
    (task,) = bfcl(data=write_folder(tmp_path, row()), categories="base").environments()
    return task


@needs_bfcl
def test_a_wrong_call_leaves_a_task_unsolved(files: Environment) -> None:
    """The control: fails if anything but the gold state counts as solved."""
    played(files, [calling("touch", file_name="b.txt"), DONE, calling("echo", content="hi", file_name="a.txt"), DONE])
    assert files.score() == {"solved": False, "user_turns": 2}
    played(files, [calling("touch", file_name="a.txt"), DONE, calling("echo", content="hi", file_name="a.txt"), DONE])
    assert files.score() == {"solved": True, "user_turns": 2}, "the world was not made anew"


@needs_bfcl
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cat", {"file_name": "../../../../etc/passwd"}),
        ("cat", {"file_name": "/etc/passwd"}),
        ("cat", {"file_name": ["a"]}),
        ("cat", {}),
        ("cat", {"file_name": "a.txt", "more": 1}),
        ("_load_scenario", {"scenario": {}}),
        ("__init__", {}),
        ("rm", {"file_name": "a.txt"}),
        ("echo", {"content": "x" * 100_000, "file_name": "../x"}),
    ],
)
def test_a_hostile_call_on_the_file_system_costs_a_sentence(
    files: Environment, name: str, arguments: dict[str, Any]
) -> None:
    """Fails if a path leaves the world, a private or withheld function runs, or the task dies."""
    files.start()
    before = files.state()
    said = answer(files, name, **arguments)
    assert "root:" not in said and re.search("error|invalid|no such|not found|no function", said, re.IGNORECASE)
    assert files.state() == before
    assert "a.txt" in answer(files, "touch", file_name="a.txt") or "a.txt" in json.dumps(files.state())


@needs_bfcl
def test_endless_calls_end_a_task_as_in_the_benchmark(files: Environment) -> None:
    """Fails if a model that pages forever holds the run up."""
    files.start()
    for _ in range(MOST_STEPS):
        assert files.step(calling("ls"))
    assert files.step(calling("ls")) is None
    assert files.score()["solved"] is False


@needs_bfcl
def test_a_smaller_limit_is_the_beginning_of_a_larger() -> None:
    """Fails if a sample of tasks depends on its size."""
    names = [task.id for task in bfcl(categories="base").environments(limit=6, seed=3)]
    assert [task.id for task in bfcl(categories="base").environments(limit=2, seed=3)] == names[:2]


@needs_bfcl
def test_a_file_of_rollouts_has_no_world() -> None:
    """Fails if recorded rollouts are taken for tasks."""
    with pytest.raises(ConfigError, match="no world to act on"):
        bfcl(data=SHIPPED)


def one_synthetic(**options: int) -> Environment:
    (task,) = synthetic(sessions=1, **options).environments()
    return task


def solve(task: Environment) -> list[Message]:
    """Do what each request says, as an agent would that reads the words."""
    said: list[Message] = []
    heard = list(task.start())
    while True:
        text = heard[-1].content
        if rename := re.match(r"Rename the function (\S+) to (\S+),", text):
            found = answer(task, "search", text=rename[1], limit=1000)
            for path in dict.fromkeys(line.partition(":")[0] for line in found.split("\n")[1:]):
                answer(task, "replace_text", path=path, old=rename[1], new=rename[2])
        elif region := re.search(r"reports\.(\w+)\.", text):
            total = answer(task, "query", sql=f"SELECT SUM(units) FROM sales WHERE region = '{region[1]}'")
            answer(task, "set_key", key=f"reports.{region[1]}", value=total.split("\n")[1])
        elif limit := re.match(r"Set the key (\S+) to (\d+)", text):
            answer(task, "set_key", key=limit[1], value=limit[2])
        said.append(DONE)
        more = task.step(DONE)
        if more is None:
            return said
        heard += more


def test_the_synthetic_requests_can_be_done() -> None:
    """Fails if a request has no solution, or doing nothing is one."""
    task = one_synthetic(requests=9, files=3)
    assert len(solve(task)) == 9
    assert task.score() == {"solved": True, "done": 9}
    played(task, [DONE] * 9)
    assert task.score() == {"solved": False, "done": 0}


def test_synthetic_tasks_are_the_same_again() -> None:
    """Fails if a world depends on anything but seed and number."""
    (one, two), (other, *_) = ([*synthetic(sessions=2).environments()] for _ in range(2))
    assert [m.content for m in one.start()] == [m.content for m in other.start()] != [m.content for m in two.start()]
    assert one.state() == other.state() != two.state()
    with pytest.raises(ConfigError, match="sessions"):
        synthetic(sessions=0)


HOSTILE = [
    "ATTACH DATABASE '{path}' AS other",
    "VACUUM INTO '{path}'",
    "PRAGMA writable_schema = 1",
    "SELECT load_extension('{path}')",
    "SELECT writefile('{path}', 'x')",
    "CREATE VIRTUAL TABLE v USING fts5(x)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "SELECT zeroblob(100000000)",
    "SELECT replace(hex(zeroblob(90000)), '0', hex(zeroblob(90000)))",
    "SELECT 1; DROP TABLE sales",
    "SELECT '" + "x" * 10_000_000 + "'",
    "not sql",
    "",
    7,
    None,
]


@pytest.mark.parametrize("sql", HOSTILE, ids=lambda sql: str(sql)[:24])
def test_hostile_sql_costs_a_sentence(sql: Any, tmp_path: Path) -> None:
    """Fails if a statement reaches a file, changes a setting, runs without end, fills the memory, or ends the task."""
    task = one_synthetic()
    task.start()
    before = task.state()
    target = tmp_path / "out.db"
    said = answer(task, "query", sql=sql.format(path=target) if isinstance(sql, str) else sql)
    assert said.startswith("Error: ") or said == "-1 rows changed", said[:200]
    assert not target.exists() and len(said) < 500
    assert task.state() == before
    assert answer(task, "query", sql="SELECT 1 AS one") == "one\n1"


def test_endless_rows_are_cut() -> None:
    """Fails if a result without end is collected, or a cut is not said."""
    task = one_synthetic()
    task.start()
    rows = answer(task, "query", sql="WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n")
    assert rows.startswith("i\n1\n2\n") and rows.endswith("\n200\n... more rows")


def test_files_cannot_grow_without_end() -> None:
    """Fails if a replacement that doubles a text may be made again and again."""
    task = one_synthetic()
    task.start()
    path = answer(task, "list_files", folder="").split("  ")[0]
    said = [answer(task, "replace_text", path=path, old="e", new="e" * 60) for _ in range(6)]
    assert said[-1].startswith("Error: the files would have")
    assert sum(map(len, task.state()["files"].values())) <= 1_000_000


TABLE = {
    "table_name": "Team Information",
    "table_info": {
        "columns": [{"name": "Team"}, {"name": "Wins"}],
        "rows": [["A", 3], ["B", 12], ["C", 7]],
    },
}
ASKED = {"description": "Which team has most wins?", "type": ["ranking"], "table": TABLE, "label": ["B", "12.0"]}
CHANGED = {
    "description": "Team A won once more.",
    "type": ["UPDATE"],
    "table": TABLE,
    "sql": {"query": "UPDATE `Team Information` SET Wins = 4 WHERE Team = 'A'"},
}


def database_tasks(folder: Path, *rows: dict[str, Any]) -> Any:
    path = folder / "dbbench" / "standard.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")
    return dbbench(data=folder)


def test_a_question_is_solved_by_its_values(tmp_path: Path) -> None:
    """Fails if the right values in another order or spelling of a number are wrong, or wrong ones right."""
    (task,) = database_tasks(tmp_path, ASKED).environments()
    task.start()
    assert answer(task, "execute_sql", query="SELECT Team FROM `Team Information` WHERE Wins = '12'") == "[('B',)]"
    assert task.step(calling("submit_answer", values=["12", "b "])) is None
    assert task.score() == {"solved": True}
    played(task, [calling("submit_answer", values=["B"])])
    assert task.score() == {"solved": False}
    played(task, [DONE])
    assert task.score() == {"solved": False}


def test_a_change_is_judged_by_the_table(tmp_path: Path) -> None:
    """Fails if words count where the table was to be changed, or another change does."""
    (task,) = database_tasks(tmp_path, CHANGED).environments()
    played(task, [calling("submit_answer", values=["done"])])
    assert task.score() == {"solved": False}
    task.start()
    assert answer(task, "execute_sql", query="UPDATE `Team Information` SET Wins = '4' WHERE Wins = '3'") == (
        "1 rows changed"
    )
    task.step(DONE)
    assert task.score() == {"solved": True}


def test_rows_that_nobody_can_judge_are_listed(tmp_path: Path) -> None:
    """Fails if a row is dropped in silence."""
    unjudged = {**ASKED, "label": None}
    broken = {**CHANGED, "sql": "UPDATE nowhere SET x = 1"}
    tasks = database_tasks(tmp_path, unjudged, ASKED, broken)
    assert len(list(tasks.environments())) == 1
    assert [bad.line for bad in tasks.left_out] == [1, 3]


def test_hostile_calls_on_the_table(tmp_path: Path) -> None:
    """Fails if a call of an unknown tool, without its argument, or out of the database ends the task."""
    (task,) = database_tasks(tmp_path, ASKED).environments()
    task.start()
    for name, arguments in (
        ("execute_sql", {}),
        ("execute_sql", {"query": f"ATTACH '{tmp_path / 'x.db'}' AS x"}),
        ("drop_everything", {}),
        ("submit_answer", {"values": "B"}),
    ):
        assert answer(task, name, **arguments).startswith("Error: ")
    assert list(tmp_path.glob("*.db")) == []
