"""The world a generated session acts on: a file system, a key-value store and an SQL database, all in memory.

Every call is carried out and changes the world, so a result depends on the calls before it, as in a real session.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .words import REGIONS, identifier, product, program

__all__ = ["TOOLS", "World"]

_DIRECTORIES = ("src", "lib", "jobs", "api")


class World:
    """A world drawn from `draw`: `files` program files of `lines` lines, and `rows` sales."""

    def __init__(self, draw: random.Random, *, files: int, lines: int, rows: int) -> None:
        self.files: dict[str, str] = {}
        self.functions: list[str] = []
        """Names defined in the files, one a file, in the order of the files."""
        for number in range(files):
            name = identifier(draw)
            self.functions.append(name)
            path = f"{_DIRECTORIES[number % len(_DIRECTORIES)]}/module_{number:03d}.py"
            self.files[path] = program(draw, [name], lines)
        self.keys = {f"limits.{region}": str(draw.randrange(10, 1000)) for region in REGIONS}
        self._sql = sqlite3.connect(":memory:")
        self._sql.execute("CREATE TABLE sales (id INTEGER PRIMARY KEY, product TEXT, region TEXT, units INTEGER)")
        self._sql.executemany(
            "INSERT INTO sales (product, region, units) VALUES (?, ?, ?)",
            [(product(draw), draw.choice(REGIONS), draw.randrange(1, 200)) for _ in range(rows)],
        )

    def close(self) -> None:
        """Release the database."""
        self._sql.close()

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a call as the agent reads it; a call that cannot be carried out gives a text that says so."""
        if name not in _NAMES:
            return f"Error: there is no tool {name!r}"
        tool: Callable[..., str] = getattr(self, name)
        try:
            return tool(**arguments)
        except (KeyError, TypeError, ValueError, sqlite3.Error) as error:
            return f"Error: {type(error).__name__}: {error}"

    def list_files(self, folder: str = "") -> str:
        found = [f"{path}  {len(text)} bytes" for path, text in sorted(self.files.items()) if path.startswith(folder)]
        return "\n".join(found) or f"no files in {folder!r}"

    def read_file(self, path: str, first_line: int = 1, lines: int = 100) -> str:
        if path not in self.files:
            return f"Error: no file {path!r}"
        chosen = self.files[path].split("\n")[first_line - 1 : first_line - 1 + lines]
        return "\n".join(f"{number:5d}  {line}" for number, line in enumerate(chosen, first_line))

    def search(self, text: str, limit: int = 20) -> str:
        found = [
            f"{path}:{number}: {line.strip()}"
            for path, content in sorted(self.files.items())
            if text in content
            for number, line in enumerate(content.split("\n"), 1)
            if text in line
        ]
        return "\n".join([f"{len(found)} matches for {text!r}", *found[:limit]])

    def replace_text(self, path: str, old: str, new: str) -> str:
        count = self.files[path].count(old)
        self.files[path] = self.files[path].replace(old, new)
        return f"{path}: {count} replaced"

    def get_key(self, key: str) -> str:
        return self.keys[key]

    def set_key(self, key: str, value: str) -> str:
        before = self.keys.get(key)
        self.keys[key] = value
        return json.dumps({"key": key, "before": before, "after": value})

    def query(self, sql: str) -> str:
        done = self._sql.execute(sql)
        if done.description is None:
            return f"{done.rowcount} rows changed"
        return "\n".join(map(line, [[column[0] for column in done.description], *done.fetchall()]))


def line(values: Iterable[Any]) -> str:
    """A row of a result as the agent reads it."""
    return " | ".join(map(str, values))


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    shape = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": shape}}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool("list_files", "List the files of a folder.", folder="string"),
    _tool("read_file", "Read lines of a file.", path="string", first_line="integer", lines="integer"),
    _tool("search", "Find a text in all files.", text="string", limit="integer"),
    _tool("replace_text", "Replace a text in a file.", path="string", old="string", new="string"),
    _tool("get_key", "Read a setting.", key="string"),
    _tool("set_key", "Write a setting.", key="string", value="string"),
    _tool("query", "Run SQL on the table sales (id, product, region, units).", sql="string"),
)
"""What the agent may call: each is the method of its name."""
_NAMES = frozenset(tool["function"]["name"] for tool in TOOLS)
