"""SQL that a model wrote, on a sqlite3 database in memory: one statement, bounded, and nothing outside the database."""

from __future__ import annotations

import sqlite3
from typing import Any

__all__ = ["MOST_ROWS", "GuardedDatabase", "quoted"]

MOST_STEPS = 5_000_000
"""Virtual machine steps of one statement."""
MOST_ROWS = 200
"""Rows of a result that are shown."""
MOST_BYTES = 200_000
"""Of one value, and of a statement's text."""
_PAGES = 4096
"""Of 4 KiB each: what the database may grow to."""
_FORBIDDEN = frozenset(
    {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_CREATE_VTABLE}
)
_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


class GuardedDatabase:
    """A connection to a database in memory that takes statements from a model once `guard` was called."""

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        self.connection = connection or sqlite3.connect(":memory:", isolation_level=None)
        self._left = 0

    def guard(self) -> None:
        """From here on: no other file, no pragma, no virtual table, no extension; sizes and steps are bounded."""
        connection = self.connection
        connection.execute(f"PRAGMA max_page_count = {_PAGES}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MOST_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(_authorized)
        connection.set_progress_handler(self._tick, 1000)

    def run(self, sql: str, most_rows: int = MOST_ROWS + 1) -> tuple[list[str], list[tuple[Any, ...]], int]:
        """(columns, the first rows, rows changed; -1 for a query). Raises sqlite3.Error; TypeError for no text."""
        self._left = MOST_STEPS // 1000
        done = self.connection.execute(sql)
        try:
            if done.description is None:
                return [], [], done.rowcount
            return [column[0] for column in done.description], done.fetchmany(most_rows), -1
        finally:
            done.close()

    def rows_of(self, table: str) -> list[list[Any]] | None:
        """The first 10,000 rows of a table, in their order; None if there is none of that name."""
        try:
            return [list(row) for row in self.run(f"SELECT * FROM {quoted(table)} ORDER BY rowid", 10_000)[1]]
        except sqlite3.Error:
            return None

    def close(self) -> None:
        """Release the database."""
        self.connection.close()

    def _tick(self) -> int:
        self._left -= 1
        return self._left < 0


def quoted(name: str) -> str:
    """An identifier as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _authorized(action: int, first: str | None, second: str | None, *_: Any) -> int:
    called = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN or called else sqlite3.SQLITE_OK
