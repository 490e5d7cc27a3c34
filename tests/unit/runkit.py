"""Calls the command line as a user would, in this process: arguments in, exit code and both streams out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from agentbench_spec.cli import app
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.rows import CLOCK_FIELDS, TurnRow

SMALL = ("--max-new-tokens", "24", "--set", "target.fast_linears=false")
"""Short turns, and no racing of kernels, whose choice would be kept in the user's cache."""


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """The JSON object of the last stdout line."""
        value = json.loads(self.out.splitlines()[-1])
        assert isinstance(value, dict)
        return value

    @property
    def error(self) -> str:
        """The one line on stderr that says what was wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith(("error: ", "ContractError: "))]
        assert len(lines) == 1 and "Traceback" not in self.err, self.err
        return lines[0]


def call(*arguments: object) -> Done:
    """Run the command line. An exception that it does not turn into an exit code is raised here."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def verbs() -> dict[str, Any]:
    """Verb -> command, those of a group under "group verb"."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_group(app).commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {sub}": own for sub, own in inner.items()} if inner else {name: command}
    return found


def replay(target: Path, workload: object, out: Path, *arguments: object) -> Done:
    """`agentbench-spec run` with short turns."""
    return call("run", "--target", target, "--workload", workload, "--out", out, *SMALL, *arguments)


def without_clocks(rows: list[TurnRow]) -> list[dict[str, Any]]:
    """Rows as two runs of one thing must have them in common."""
    return [{n: getattr(row, n) for n in row.__slots__ if n not in CLOCK_FIELDS} for row in rows]


def rows_of(folder: Path) -> list[TurnRow]:
    """The rows of a run folder."""
    return read_run(folder)[1]
