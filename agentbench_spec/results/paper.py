"""What the DLite paper publishes, as far as it is known, and how a measured value stands to it.

The facts are in data/paper_tables.csv, each with where it was read; most cells of the paper's tables are not known
here, and stay unknown. A published number is a rounded one: 2.39 stands for 2.385 to 2.395.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, get_args

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.intervals import Interval

TableName = Literal["table1", "table2", "table3", "table4", "table5", "figure1b", "figure4b", "figure5", "ksweep"]
TABLES: tuple[TableName, ...] = get_args(TableName)
Verdict = Literal["inside", "above", "below", "unknown"]
"""Where our interval lies, seen from the paper's value: around it, above it, below it."""

DRAFTERS = {"none": "autoregressive", "eagle3": "EAGLE-3", "dflash": "DFlash", "dspark": "DSpark", "dlite": "DLite"}
"""Entry-point name -> the paper's name."""
METRICS = {"speedup": "speedup", "tau_raw": "tau", "tokens_per_s": "throughput_tps", "draft_kv_share": "draft-KV share"}
"""Our figure -> the paper's. Its τ is our raw τ: the released loop counts the last round unclipped. Its speed-up is
taken to be of decoding alone: 2.7 after a prompt of 64K tokens is out of reach with the prefill in it."""
TARGETS = ("Qwen3-4B", "Qwen3-8B")
PAPER_GPU = "H800"
"""What its speeds were measured on."""
FALL = "agentic over general"
"""The column of figure 1b that holds how much of τ is left."""
MEAN = "mean"
"""The column of table 4 that holds mean τ."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of paper_tables.csv."""

    table: str
    target: str
    workload: str
    drafter: str
    metric: str
    value: str
    """As published, so that its decimals are known."""
    source: str
    """Where it was read."""


@dataclass(frozen=True, slots=True)
class Published:
    """A value of the paper: the range of numbers that would be printed so."""

    text: str
    low: float
    high: float
    source: str


@cache
def paper_facts() -> tuple[Fact, ...]:
    """All facts known, in the order of the file."""
    text = resources.files("agentbench_spec.data").joinpath("paper_tables.csv").read_text("utf-8")
    return tuple(Fact(**line) for line in csv.DictReader(text.splitlines()))


def published(table: TableName, target: str, workload: str, drafter: str, metric: str) -> Published | None:
    """The paper's value of a cell, in our names for drafter and metric; None: not known.

    table: of figure 1b a range per group of workloads is known, for existing drafters together.
    """
    if metric == "draft_kv_share":
        return _draft_kv_share() if drafter in ("eagle3", "dflash", "dspark") else None
    if table == "figure1b":
        return _figure1b(workload) if metric == "tau_raw" and drafter not in ("none", "dlite") else None
    if workload == MEAN:
        return _mean_tau(drafter) if metric == "tau_raw" else None
    wanted = (table.removeprefix("table"), target, workload, DRAFTERS.get(drafter), METRICS.get(metric))
    for fact in paper_facts():
        if (fact.table, fact.target, fact.workload, fact.drafter, fact.metric) == wanted:
            return _rounded(fact)
    return None


def _rounded(fact: Fact) -> Published:
    value, half = float(fact.value), 0.5 * 10.0 ** -len(fact.value.partition(".")[2])
    return Published(fact.value, value - half, value + half, fact.source)


def _mean_tau(drafter: str) -> Published | None:
    """The pair of table 4, of which neither target nor workloads nor concurrencies are known."""
    found = (fact for fact in paper_facts() if fact.metric == "tau_mean" and fact.drafter == DRAFTERS.get(drafter))
    return next(map(_rounded, found), None)


def _draft_kv_share() -> Published | None:
    """What the paper says of another engine and drafter, for orientation."""
    ends = {fact.metric: fact for fact in paper_facts() if fact.metric.startswith("draft_kv_maintenance_pct")}
    low, high = ends.get("draft_kv_maintenance_pct_min"), ends.get("draft_kv_maintenance_pct_max")
    if low is None or high is None:
        return None
    text = f"{low.value}-{high.value} % ({low.drafter}, {low.target})"
    return Published(text, float(low.value) / 100, float(high.value) / 100, low.source)


def _figure1b(group: str) -> Published | None:
    if group == FALL:
        return next((_left(fact) for fact in paper_facts() if fact.metric == "tau_fall_pct_above"), None)
    ends = {
        fact.metric: fact
        for fact in paper_facts()
        if fact.table == "fig1b" and fact.workload.partition(" ")[0] == group
    }
    if len(ends) != 2:
        return None
    low, high = ends["tau_min_approx"], ends["tau_max_approx"]
    return Published(f"about {low.value}-{high.value}", float(low.value), float(high.value), low.source)


def _left(fact: Fact) -> Published:
    """What a fall by more than this leaves."""
    most = 1 - float(fact.value) / 100
    return Published(f"below {most:.2f} (falls by over {fact.value} %)", 0.0, most, fact.source)


def paper_target(source: str) -> str | None:
    """The paper's name of a target, by the last part of its hub id or folder; None: the paper does not have it."""
    name = source.rstrip("/").rpartition("/")[2]
    return name if name in TARGETS else None


def verdict(interval: Interval | None, paper: Published | None) -> Verdict:
    """Whether the paper's value is inside our interval, or our interval lies above or below it."""
    if interval is None or paper is None:
        return "unknown"
    if interval.low > paper.high:
        return "above"
    return "below" if interval.high < paper.low else "inside"


def check_table(name: str) -> TableName:
    """`name` as a table's name. Raises ConfigError listing the known ones."""
    for table in TABLES:
        if name == table:
            return table
    raise ConfigError(f"unknown table {name!r}; known: {', '.join(TABLES)}")
