"""The presets of `reproduce`: what each table of the paper takes, read from data/presets.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.paper import TableName
from agentbench_spec.runs.trained_variants import PAPER_TARGET, needs_training


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ColumnPreset(_Part):
    """One workload of a table."""

    title: str
    workload: str
    paper: str | None = None
    """The workload's name in the paper's facts, where it is not the title."""
    limit: int | None = None
    """Rollouts; None: a throughput table counts requests instead."""
    options: dict[str, Any] = {}
    tokenizer: bool = False
    """True: the workload is given the target, to count its tokens."""
    standin: bool = False
    """Generated rollouts in the place of the workload; of a workload that has a stand-in of its own, that one."""

    @property
    def paper_workload(self) -> str:
        """The workload's name in the paper's facts."""
        return self.paper or self.title

    def workload_options(self, target: str) -> dict[str, Any]:
        """Options for the workload's factory."""
        options = dict(self.options)
        if self.standin and self.workload != "synthetic_agent":
            options["offline_standin"] = True
        if self.tokenizer:
            options["tokenizer"] = target
        return options


class ThroughputPreset(_Part):
    """How a throughput table is measured."""

    concurrency: tuple[int, ...] = (1,)
    requests_per_row: int = 10
    """Rollouts served for each row of a concurrency."""
    requests_least: int = 1
    """Rollouts served at least."""
    passes: int = Field(default=3, ge=1)
    """How often each drafter serves them, in rotated order; passes of one drafter differ by what the machine does."""

    def requests(self, concurrency: int) -> int:
        """Rollouts served at a concurrency."""
        return max(self.requests_least, self.requests_per_row * concurrency)


class ArmPreset(_Part):
    """A drafter that is trained for a table, as one among others."""

    name: str
    drafter: str = "dlite"
    """Loads what comes out."""
    options: dict[str, Any] = {}
    """Of the trainer `dlite`."""
    settings: dict[str, Any] = {}
    """Of the training, over those of all arms."""


class TrainingPreset(_Part):
    """What the arms of all tables have in common."""

    workload: str
    """Rollouts file, or an installed workload."""
    options: dict[str, Any] = {}
    held_out: int = Field(ge=2)
    """Rollouts that are measured and never trained on: the first ones."""
    train: int = Field(ge=1)
    """Rollouts trained on at most; those that tell a held-out rollout's scenario are none of them."""
    settings: dict[str, Any]
    """Of the training, by the names of `agentbench-spec train --set`."""


class TablePreset(ThroughputPreset):
    """One table."""

    title: str
    drafters: tuple[str, ...]
    figures: tuple[str, ...]
    columns: tuple[ColumnPreset, ...] = ()
    embedded: tuple[ColumnPreset, ...] = ()
    embedded_throughput: ThroughputPreset | None = None
    settings: dict[str, Any] = {}
    """Of all its columns, over the shared ones."""
    open: dict[str, str] = {}
    groups: dict[str, TableName] = {}
    """Group of workloads -> the table whose columns are in it (figure 1b)."""
    without: tuple[str, ...] = ()
    """Columns of those tables that are left out."""
    k: tuple[int | Literal["auto"], ...] = ()
    """Draft tokens a round, all in one run: a table for each column, a column for each of these."""
    arms: tuple[ArmPreset, ...] = ()
    """Drafters trained for the offline form; the paper's own are not published."""


class EmbeddedPreset(_Part):
    """What stands in for the paper's target where there is no GPU."""

    target: str
    drafters: tuple[str, ...]
    """Run besides those of the table; they need no checkpoint."""
    shipped: tuple[str, ...] = ()
    """Drafters of the table whose checkpoints for `target` are in the package."""
    notes: tuple[str, ...] = ()
    """What to know of the shipped checkpoints."""
    orientation: str
    """The paper's target whose values are shown beside ours, without a verdict."""
    settings: dict[str, Any]


class Presets(_Part):
    """The whole file."""

    settings: dict[str, Any]
    stated: dict[str, str]
    open_: dict[str, str] = Field(alias="open")
    checkpoints: dict[str, dict[str, str]]
    embedded: EmbeddedPreset
    training: TrainingPreset | None = None
    tables: dict[TableName, TablePreset]

    def table(self, name: TableName, target: str | None = None, *, embedded: bool = False) -> TablePreset:
        """The preset of a table. Raises ConfigError for one that a run alone cannot fill, but for its offline form.

        target: whose drafters the error says how to train; None: the paper's.
        """
        if name not in self.tables or (self.tables[name].arms and not embedded):
            raise ConfigError(needs_training(name, target or PAPER_TARGET) or f"the presets have no {name}")
        return self.tables[name]

    def settings_lines(self, name: TableName) -> list[str]:
        """Which settings the paper states, and which it leaves open and why they are as they are."""
        stated = [f"stated by the paper: {key}: {words}" for key, words in self.stated.items()]
        opened = {**self.open_, **self.tables[name].open}
        return stated + [f"left open by the paper: {key}: {words}" for key, words in opened.items()]


@cache
def load_presets(file: Path | None = None) -> Presets:
    """The presets of a file; None: those this package ships. Raises ConfigError naming file and key."""
    shipped = resources.files("agentbench_spec.data").joinpath("presets.toml")
    try:
        tree = tomllib.loads((shipped if file is None else file).read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"presets {file}: {error}; see agentbench_spec/data/presets.toml") from None
    shared = {key: tree.pop(key) for key in _SHARED if key in tree}
    try:
        return Presets.model_validate({**shared, "tables": tree})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"presets {file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


_SHARED = ("settings", "stated", "open", "checkpoints", "embedded", "training")
