"""What a table lacks, each part with the command that adds it; what is there is reused."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import AgentBenchError, cause_of, raise_interrupt
from agentbench_spec.reproduce.plan import Plan, Request
from agentbench_spec.reproduce.reuse import data_is_absent
from agentbench_spec.runs.setup import Tell


@dataclass(slots=True)
class Failures:
    """Columns of a table that could not be had; one never ends the table."""

    why: dict[str, str] = field(default_factory=dict)
    """Column -> why it is missing."""
    failed: list[str] = field(default_factory=list)
    """Of them, those whose data was there."""

    def attempt(self, column: str, config: RunConfig, measure: Callable[[], Path], tell: Tell) -> Path | None:
        """The folder that `measure` makes; None, and a reason, if the data is absent or measuring fails.

        Raises KeyboardInterrupt, whatever a plugin made of it.
        """
        absent = data_is_absent(config)
        if absent is None:
            tell(f"{column}: {config.workload.name}")
            try:
                return measure()
            except (Exception, SystemExit) as error:
                raise_interrupt(error)
                absent = str(error) if isinstance(error, AgentBenchError) else cause_of(error)
                self.failed.append(column)
        self.why[column] = absent
        tell(f"{column}: not run: {absent}")
        return None


def command_of(name: str, request: Request, *more: str) -> str:
    """The command that asks for the same table again, and for `more`."""
    words = ["agentbench-spec", "reproduce", name]
    words += ["--target", request.target] if request.target else []
    words += ["--embedded"] if request.embedded else []
    for drafter in request.drafters:
        words += ["--drafter", drafter]
    words += ["--limit", str(request.limit)] if request.limit else []
    words += ["--concurrency", ",".join(map(str, request.concurrency))] if request.concurrency else []
    for text in request.assignments:
        words += ["--set", text]
    words += ["--presets", str(request.presets)] if request.presets else []
    words += ["--results", str(request.results)] if request.results != Request().results else []
    words += ["--on", request.on] if request.on else []
    return shlex.join([*words, *more])


def missing_lines(wanted: Plan, request: Request, columns: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A line for each drafter and column that a table lacks. columns: (title, why it is missing)."""
    for title, why in columns:
        yield f"{title} is missing: {why}; once that is mended, add it with: {command_of(wanted.name, request)}"
    for drafter, why in wanted.missing.items():
        added = command_of(wanted.name, request, "--drafter", f"{drafter}=FOLDER_OR_HUB_ID")
        yield f"{drafter} is missing: {why}; add it with: {added}"
