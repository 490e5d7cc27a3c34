"""A run folder in memory: its rows, its manifest and the figures that follow from them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console

from agentbench_spec.results.findings.screen import findings
from agentbench_spec.results.findings.wording import Finding
from agentbench_spec.results.folder import read_rounds, read_turns
from agentbench_spec.results.machines.store import reading
from agentbench_spec.results.manifest import counting
from agentbench_spec.results.row_formats import rows_frame
from agentbench_spec.results.rows import RoundRow, TurnRow
from agentbench_spec.results.summary import Summary, render, summarise
from agentbench_spec.results.verdict import faults

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 120
"""Characters of a line of the printed table."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run as its folder holds it; `print` shows the table that `agentbench-spec run` shows."""

    folder: Path
    manifest: dict[str, Any]
    """Settings, versions, machine, data, benchmark card."""
    rows: list[TurnRow]
    """One a (rollout, turn, drafter)."""

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Run:
        """Read a run folder, finished or not; it may lie on an object store ("s3://bucket/run").

        Raises ConfigError for what cannot be read, or holds no row.
        """
        place = reading(os.fspath(folder))
        return cls(place, *read_turns(place, lenient=True))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows as a data frame, columns as results/README.md has them."""
        return rows_frame(self.rows)

    @cached_property
    def summary(self) -> Summary:
        """The figures of every drafter, loops counted or not as the run's settings say."""
        return summarise(self.rows, **counting(self.manifest))

    @cached_property
    def findings(self) -> list[Finding]:
        """What the rows say, a sentence a finding: the first screen of the report."""
        return findings(self.rows, self.summary, **counting(self.manifest))

    @property
    def drafters(self) -> list[str]:
        """Names of the drafters in the rows, in the order of the first turn that has each."""
        return list(dict.fromkeys(row.drafter for row in self.rows))

    @property
    def finished(self) -> bool:
        """False if the run was killed, or is still written."""
        return bool(self.manifest.get("finished"))

    @property
    def faults(self) -> list[str]:
        """Why figures of this run must not be quoted; empty: nothing speaks against it."""
        return faults(self.rows, self.summary) + ([] if self.finished else ["the run is not finished"])

    def rounds(self) -> list[RoundRow]:
        """One row a round; empty if the run did not write them (measure.rounds)."""
        return read_rounds(self.folder, lenient=not self.finished)

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {len(self.rows)} rows of {', '.join(self.drafters)}>"

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH)
        with console.capture() as text:
            console.print(render(self.summary))
        return "\n".join(line.rstrip() for line in text.get().splitlines())


RunOrFolder: TypeAlias = Run | str | os.PathLike[str]


def several(given: RunOrFolder | Iterable[RunOrFolder]) -> list[RunOrFolder]:
    """One run, or its folder, or several of either, as a list of runs and folders."""
    return [given] if isinstance(given, Run | str | os.PathLike) else list(given)
