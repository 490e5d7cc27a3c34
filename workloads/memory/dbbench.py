"""dbbench rows, executed: the gold SELECT of a row runs on its own table in an in-memory sqlite3 database.

The benchmark runs MySQL. A query that sqlite3 cannot run is no row for this workload; it is listed, not bent. Columns
are text, as the benchmark makes them; results are spelled as its client prints them, a list of tuples.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from agentbench_spec.rollout import Message, ToolCall

from ..guarded_sql import quoted
from ..row_workload import Row, RowLeftOut

__all__ = ["TOOLS", "fill", "messages", "question_of", "table_of"]

SYSTEM = "You answer questions about a database table. Run SQL with the tool, then state the answer."
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "execute_sql",
            "description": "Run one SQL statement and return its rows.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    },
)
_MAX_STEPS = 2_000_000
"""Virtual machine steps after which a query is given up; the longest table has about a hundred rows."""


def messages(row: Row) -> list[Message]:
    """Question, gold query, its real result, and the answer the row holds.

    Raises RowFault if the table is malformed, RowLeftOut if the row has no gold query or sqlite3 cannot run it.
    """
    name, columns, rows = table_of(row)
    query = _gold_query(row)
    if query is None:
        kind = "/".join(map(str, row.value.get("type") or ["?"]))
        raise RowLeftOut(row, f"a {kind} row without a gold query: nothing to run")
    result = _run(row, name, columns, rows, query)
    call = ToolCall(name="execute_sql", arguments={"query": query}, id="call_0")
    return [
        Message(role="system", content=SYSTEM),
        Message(role="user", content=question_of(row, name, columns)),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content=result, tool_call_id=call.id, name=call.name),
        _answer(row),
    ]


def question_of(row: Row, name: str, columns: Sequence[str]) -> str:
    """The row's question, and what it says of its table."""
    about = row.optional("add_description") or f"The table is called {name}; its columns are {', '.join(columns)}."
    return f"{row.text('description')}\n{about}"


def _gold_query(row: Row) -> str | None:
    gold = row.value.get("sql")
    found = gold.get("query") if isinstance(gold, dict) else gold
    return found if isinstance(found, str) and found.strip().lower().startswith(("select", "with")) else None


def _answer(row: Row) -> Message:
    label = row.value.get("label")
    if label in (None, "", []):
        return Message(role="assistant", content="(no answer is recorded)", synthetic=True)
    listed = label if isinstance(label, list) else [label]
    return Message(role="assistant", content="The answer is " + ", ".join(map(str, listed)) + ".")


def table_of(row: Row) -> tuple[str, list[str], list[list[Any]]]:
    """Name, columns and cells of the row's table. Raises RowFault."""
    table: Any = row.value["table"]
    try:
        info = table["table_info"]
        name, columns, rows = str(table["table_name"]), [str(c["name"]) for c in info["columns"]], list(info["rows"])
    except (KeyError, TypeError):
        raise row.fault("table", "expected table_name, and table_info with columns (name) and rows") from None
    if not columns or not all(isinstance(r, list) and len(r) == len(columns) for r in rows):
        raise row.fault("table.table_info.rows", f"expected lists of {len(columns)} cells")
    return name, columns, rows


def _run(row: Row, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], query: str) -> str:
    connection = sqlite3.connect(":memory:")
    try:
        fill(connection, name, columns, rows)
        connection.set_authorizer(_reading_only)
        connection.set_progress_handler(lambda: 1, _MAX_STEPS)
        return str(connection.execute(query).fetchall())
    except sqlite3.Error as error:
        raise RowLeftOut(row, f"sqlite3 cannot run the gold query: {error}") from error
    finally:
        connection.close()


def fill(connection: sqlite3.Connection, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Make the table; cells are text, as the benchmark makes them."""
    shape = ", ".join(f"{quoted(column)} TEXT" for column in columns)
    connection.execute(f"CREATE TABLE {quoted(name)} ({shape})")
    marks = ", ".join("?" * len(columns))
    cells = [[None if cell is None else str(cell) for cell in one] for one in rows]
    connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", cells)


def _reading_only(action: int, *_: Any) -> int:
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY
