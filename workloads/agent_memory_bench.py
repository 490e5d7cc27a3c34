"""Workload `agent_memory_bench`: the six tasks of AgentMemoryBench as rollouts of several turns.

Origin: the repository s010m00n/AgentMemoryBench (commit e9b5a5ba was read); licence MIT, of its code. A project of a
like name, mazaiying/AgentMemBench, holds memory events and no rollouts; the paper spells the name as the former does,
so that one is meant here. Parts come from AgentBench (Apache-2.0), and LoCoMo is CC BY-NC 4.0 upstream (both from
memory): nothing is shipped, everything is read from a checkout or a folder of saved runs.
Size: dbbench 300 rows, os 144, kg 150, alfworld 109, webshop 200, locomo 10 conversations of 11.1K to 21.4K tokens.
The paper names it among its agent sets, 41 to 100 prompts; which, and with which memory, is not published.

| task | from saved outputs | otherwise |
|---|---|---|
| dbbench | yes | executed: the gold SELECT of a row runs on its own table in sqlite3; rows without one are listed |
| locomo | yes | the conversation itself, questions in between |
| alfworld | yes | the demonstrations in prompts/*.json; games are elsewhere |
| os, kg, webshop | yes | no: they need a container, a 50 GB Freebase, product data |

A saved output is outputs/<time>/<task>/<index>.json with `history` (older: `messages`) and `result`; rewards among the
messages are left out with a note. What is ours: the system sentence and question form of executed dbbench rows and of
locomo; a memory text that a run had injected is kept where its saved history holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentbench_spec.rollout import ConfigError, Message, Rollout, Workload

from .locate import Data, locate
from .memory import dbbench, locomo
from .questions import has_turns, turns_rollout
from .row_workload import Row, RowWorkload
from .standins import requested_standin

__all__ = ["TASKS", "make"]

NAME = "agent_memory_bench"
TASKS = ("alfworld", "dbbench", "os", "kg", "webshop", "locomo")
_ALIASES = {"db": "dbbench", "os_interaction": "os", "knowledgegraph": "kg", "knowledge_graph": "kg"}
_PATTERNS = ("outputs/*.json", "*dbbench/standard.jsonl", "*locomo/*.json", "*alfworld/prompts/*.json")
_HINT = "check out the repository s010m00n/AgentMemoryBench and give its folder, or the folder of your saved runs"


def make(
    *,
    data: str | Path | None = None,
    tasks: str | Sequence[str] = TASKS,
    questions_per_session: int = 2,
    lenient: bool = False,
    offline_standin: bool = False,
) -> Workload:
    """Rollouts of AgentMemoryBench.

    data: a checkout of the repository, a folder of saved outputs, or one file. tasks: which to take.
    questions_per_session: how many questions follow a session of a locomo conversation.

    Raises ConfigError if there is no data or an option is unknown. `RowWorkload.left_out` lists rows that cannot run.
    """
    if standin := requested_standin(NAME, offline_standin, data=data):
        return standin
    wanted = _tasks(tasks)
    if questions_per_session < 1:
        raise ConfigError(f"questions_per_session: expected 1 or more, found {questions_per_session}")
    found = checkout(data)

    def build(row: Row) -> Rollout | None:
        return _rollout(row, questions_per_session) if task_of(row.file, row.value) in (*wanted, None) else None

    return RowWorkload(NAME, found, build, group=lambda row: str(row.get("task", "")), lenient=lenient)


def checkout(data: str | Path | None) -> Data:
    """The files of the benchmark. Raises ConfigError if they are nowhere."""
    return locate(NAME, data, None, patterns=_PATTERNS, hint=_HINT)


def _tasks(given: str | Sequence[str]) -> list[str]:
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
    for name in names:
        if name not in TASKS:
            raise ConfigError(f"tasks: unknown {name!r}; known: {', '.join(TASKS)}")
    return names


def task_of(file: Path, value: dict[str, Any]) -> str | None:
    """The task of a row: what its field `task` says, else what it holds, else what its folders are called."""
    if "table" in value:
        return "dbbench"
    if "conversation" in value:
        return "locomo"
    for word in (str(value.get("task", "")), *reversed(file.parts)):
        name = word.lower().removesuffix("-std").removesuffix("_std")
        if (name := _ALIASES.get(name, name)) in TASKS:
            return name
    return None


def _rollout(row: Row, questions_per_session: int) -> Rollout:
    if has_turns(row):
        return turns_rollout(row, NAME)
    if "table" in row.value:
        note = "executed: the gold query ran in sqlite3; system sentence and form of the question are ours"
        return _made(row, dbbench.messages(row), note, tools=dbbench.TOOLS, kind=_kind(row))
    if "conversation" in row.value:
        note = "sessions are user messages, and questions follow the session that holds their last evidence"
        return _made(row, locomo.messages(row, questions_per_session), note)
    field = next((name for name in ("history", "messages") if name in row.value), None)
    if field is None:
        keys = ", ".join(map(repr, row.value)) or "none"
        raise row.fault(None, f"expected history, messages, table or conversation; the keys are {keys}")
    result = row.value.get("result")
    saved = {"status": result.get("status"), "reward": result.get("reward")} if isinstance(result, dict) else {}
    labels = {"category": task_of(row.file, row.value) or "unknown", "split": row.value.get("split"), **saved}
    return row.imported(
        {"messages": row.items(field), "tools": row.value.get("tools")},
        workload=NAME,
        name=row_name(row),
        format="openai_chat",
        labels={key: value for key, value in labels.items() if value is not None},
    )


def _kind(row: Row) -> str | None:
    kinds = row.value.get("type")
    return str(kinds[0]) if isinstance(kinds, list) and kinds else None


def _made(
    row: Row, messages: Sequence[Message], note: str, *, tools: tuple[dict[str, Any], ...] = (), kind: str | None = None
) -> Rollout:
    labels = {"category": task_of(row.file, row.value)} | ({} if kind is None else {"kind": kind})
    return Rollout(
        id=row_name(row),
        workload=NAME,
        source=row.source,
        tools=tools,
        messages=tuple(messages),
        labels=labels,
        notes=(*row.repairs, note),
    )


def row_name(row: Row) -> str:
    """The id of what is made of a row."""
    place = row.data.name_of(row.file).rpartition(".")[0]
    own = row.value.get("id") if isinstance(row.value.get("id"), str) else row.number
    return f"{NAME}/{place}" + (f"/{own}" if row.value.get("index") is None else "")
