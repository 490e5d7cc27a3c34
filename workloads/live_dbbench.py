"""Environment `agent_memory_bench`: its database tasks, each a question about one table, on sqlite3 in memory.

The model reads and writes with `execute_sql` and ends with `submit_answer`. A question is solved if what it submits are
those of the row's label; a task that changes the table (INSERT, UPDATE, DELETE), if the table is what the gold
statement makes of it. The benchmark runs MySQL: rows whose gold statement sqlite3 cannot run are listed, as are rows
with neither label nor gold statement. The other tasks of the benchmark need containers, or data that nobody ships.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentbench_spec.rollout import BadLine
from agentbench_spec.rollouts.environments import Message, ToolCall, results

from .agent_memory_bench import NAME, checkout, row_name
from .guarded_sql import MOST_ROWS, GuardedDatabase
from .memory.dbbench import SYSTEM, TOOLS, fill, question_of, table_of
from .row_workload import Row, RowLeftOut, RowWorkload

__all__ = ["DatabaseTask", "DatabaseTasks", "make"]

_CHANGES = ("insert", "update", "delete", "replace")
_SUBMIT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "submit_answer",
        "description": "State the answer, one text for each value, and end the task.",
        "parameters": {
            "type": "object",
            "properties": {"values": {"type": "array", "items": {"type": "string"}}},
            "required": ["values"],
        },
    },
}


def make(*, data: str | Path | None = None, lenient: bool = False) -> DatabaseTasks:
    """The dbbench tasks of AgentMemoryBench. data: as for the workload. Raises ConfigError if there is no data."""
    return DatabaseTasks(RowWorkload(NAME, checkout(data), _task, group=_kind, lenient=lenient))


def _kind(value: Mapping[str, Any]) -> str:
    kinds = value.get("type")
    return str(kinds[0]) if isinstance(kinds, list) and kinds else ""


def _task(row: Row) -> DatabaseTask | None:
    return DatabaseTask(row) if "table" in row.value else None


class DatabaseTasks:
    """The rows with a table as tasks."""

    name = NAME

    def __init__(self, rows: RowWorkload[DatabaseTask]) -> None:
        self._rows = rows

    @property
    def left_out(self) -> Iterable[BadLine]:
        """Rows passed over, and why."""
        return [*self._rows.bad_lines, *self._rows.left_out]

    def environments(self, *, limit: int | None = None, seed: int = 0) -> Iterator[DatabaseTask]:
        """The tasks, in the order of the rows; with a limit, drawn from the seed."""
        return self._rows.rollouts(limit=limit, seed=seed)


class DatabaseTask:
    """One question about one table."""

    def __init__(self, row: Row) -> None:
        """Raises RowFault for a table that cannot be read, RowLeftOut for a row that nobody can judge."""
        self.id = row_name(row)
        self.labels: Mapping[str, Any] = {"category": "dbbench", "kind": _kind(row.value)}
        self.source: Mapping[str, Any] = row.source
        self._table = table_of(row)
        self._question = question_of(row, self._table[0], self._table[1])
        gold = row.value.get("sql")
        query = gold.get("query") if isinstance(gold, dict) else gold
        self._gold = str(query or "").strip()
        label = row.value.get("label")
        self._label = [] if label in (None, "") else label if isinstance(label, list) else [label]
        if self._changes:
            self._wanted = self._after_gold(row)
        elif not self._label:
            raise RowLeftOut(row, "a row without a label or a gold statement that changes the table: nothing to judge")
        self._database: GuardedDatabase | None = None

    @property
    def _changes(self) -> bool:
        return self._gold.lower().startswith(_CHANGES)

    def tools(self) -> Sequence[dict[str, Any]]:
        """Run a statement, and submit the answer."""
        return (*TOOLS, _SUBMIT)

    def start(self) -> Sequence[Message]:
        """The question."""
        if self._database is not None:
            self._database.close()
        self._database = self._filled()
        self._submitted: list[Any] | None = None
        return [Message(role="system", content=SYSTEM), Message(role="user", content=self._question)]

    def step(self, said: Message) -> Sequence[Message] | None:
        """Results of the statements; the end once an answer is submitted, or no call is made."""
        found = results(said, self._run)
        return found if found and self._submitted is None else None

    def state(self) -> Any:
        """The rows of the table, and the answer."""
        return {"rows": self._open().rows_of(self._table[0]), "answer": self._submitted}

    def score(self) -> Mapping[str, Any]:
        """solved: the table, or the submitted answer, is the row's."""
        if self._changes:
            return {"solved": self._open().rows_of(self._table[0]) == self._wanted}
        return {"solved": self._submitted is not None and _same_values(self._submitted, self._label)}

    def _run(self, call: ToolCall) -> str:
        if call.name == "submit_answer":
            values = call.arguments.get("values")
            if not isinstance(values, list):
                return "Error: submit_answer takes values, a list of texts"
            self._submitted = values
            return "submitted"
        if call.name != "execute_sql":
            return f"Error: there is no function {call.name[:80]!r}"
        try:
            columns, rows, changed = self._open().run(call.arguments["query"])
        except (KeyError, TypeError, ValueError, sqlite3.Error) as error:
            return f"Error: {type(error).__name__}: {error}"
        if not columns:
            return f"{changed} rows changed"
        return str(rows[:MOST_ROWS]) + (" ... more rows" if len(rows) > MOST_ROWS else "")

    def _filled(self) -> GuardedDatabase:
        made = GuardedDatabase()
        fill(made.connection, *self._table)
        made.guard()
        return made

    def _after_gold(self, row: Row) -> list[list[Any]] | None:
        database = self._filled()
        try:
            database.run(self._gold)
            return database.rows_of(self._table[0])
        except sqlite3.Error as error:
            raise RowLeftOut(row, f"sqlite3 cannot run the gold statement: {error}") from error
        finally:
            database.close()

    def _open(self) -> GuardedDatabase:
        if self._database is None:
            raise RuntimeError("start() comes first")
        return self._database


def _same_values(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return sorted(map(_plain, one)) == sorted(map(_plain, other))


_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


def _plain(value: Any) -> str:
    """A value as it is compared: without blanks around it, case, or the zeros of a number."""
    text = " ".join(str(value).split()).lower()
    return repr(float(text)) if _NUMBER.fullmatch(text) else text
