"""How many tokens to draft, and whether to draft at all, by context and concurrency: read from runs of several K.

Each K is judged by its speed-up over plain decoding in its own run. Where intervals overlap, it says so and names no
winner: the rows do not tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentbench_spec.results import metrics
from agentbench_spec.results.changes import WHOLE, bucket_of, bucket_order
from agentbench_spec.results.costs import Pair, paired, speedup
from agentbench_spec.results.derived.k_arms import arm_of
from agentbench_spec.results.export import Sheet
from agentbench_spec.results.intervals import Interval, speedup_intervals, spread_text
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.throughput.pass_figures import good, pass_figure
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, by_cell


class Place(NamedTuple):
    """Where one choice is made."""

    workload: str
    drafter: str
    concurrency: int
    """Rollouts decoded at once."""
    context: str
    """Stretch of prompt lengths."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One K at one place."""

    k: int | str
    """Draft tokens asked for; in words where they were chosen round by round."""
    speedup: float
    interval: Interval | None
    turns: int

    @property
    def text(self) -> str:
        """ "K = 3: 1.42 [1.30, 1.55]"."""
        return f"K = {self.k}: {self.speedup:.2f}{spread_text(self.interval)}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the rows say of one place."""

    place: Place
    tried: tuple[Tried, ...]
    """Every K that was run, the fastest first."""

    @property
    def best(self) -> Tried:
        """The K of the highest speed-up."""
        return self.tried[0]

    @property
    def rivals(self) -> tuple[Tried, ...]:
        """Other K that the rows do not tell apart from the best."""
        return tuple(each for each in self.tried[1:] if _overlap(self.best.interval, each.interval))

    @property
    def speculate(self) -> bool | None:
        """True if the best K is faster than plain decoding, False if none is; None: not told apart."""
        if (best := self.best.interval) is not None and best.low > 1:
            return True
        return False if all(each.interval and each.interval.high < 1 for each in self.tried) else None


def _overlap(one: Interval | None, other: Interval | None) -> bool:
    """True also where an interval is not known: then nothing is told apart."""
    return one is None or other is None or (one.low <= other.high and other.low <= one.high)


def choices_of(runs: Iterable[Sequence[TurnRow]]) -> list[Choice]:
    """A choice for every place at which two K or more were run, by several runs or by one with arms.


    Runs of one K at one place count as one. runs: the rows of each; they may differ in k and in nothing else, see
    `one_but_for_k`. Raises MeasurementError if the rows of one run were measured under different conditions.
    """
    pairs: dict[Place, dict[int | str, list[Pair]]] = {}
    for rows in runs:
        metrics.one_condition(rows)
        for place, pair in _places(rows):
            pairs.setdefault(place, {}).setdefault(pair[1].k_asked, []).append(pair)
    found = {
        place: [own for k, some in by_k.items() if (own := _tried(k, some))]
        for place, by_k in pairs.items()
        if len(by_k) > 1
    }
    return [
        Choice(place, tuple(sorted(tried, key=lambda each: -each.speedup)))
        for place, tried in sorted(found.items(), key=lambda item: (*item[0][:3], bucket_order(item[0].context)))
        if len(tried) > 1
    ]


def choices_of_passes(runs: Iterable[Sequence[ThroughputRow]]) -> list[Choice]:
    """The same from passes over many rows at once, by concurrency; of two runs of one K at one place the first counts.

    runs: the passes of each, of one K; they may differ in k and in nothing else.
    """
    tried: dict[Place, dict[int, Tried]] = {}
    for cells in map(by_cell, runs):
        for (drafter, concurrency), own in cells.items():
            passes, plain = good(own), good(cells.get((BASELINE, concurrency), []))
            if drafter == BASELINE or not passes or not plain:
                continue
            mean, interval = pass_figure(passes, plain, "speedup")
            if mean.pooled is not None:
                first = passes[0]
                found = Tried(first.k, mean.pooled, interval, first.turns)
                tried.setdefault(Place(first.workload, drafter, concurrency, WHOLE), {}).setdefault(first.k, found)
    return [
        Choice(place, tuple(sorted(by_k.values(), key=lambda each: -each.speedup)))
        for place, by_k in sorted(tried.items())
        if len(by_k) > 1
    ]


OF_TURNS = tuple(name for name in metrics.CONDITIONS if name != "concurrency")
OF_PASSES = ("schema", "backend", "target", "thinking")
"""Fields in which runs of turns, and of passes, must agree; concurrency is part of the place."""


def one_but_for_k(runs: Iterable[Sequence[TurnRow | ThroughputRow]], conditions: Sequence[str] = OF_TURNS) -> bool:
    """True if the runs were measured under one set of conditions but for k and concurrency."""
    seen = {tuple((name, getattr(row, name)) for name in conditions) for rows in runs for row in rows}
    return len(seen) <= 1


def _places(rows: Sequence[TurnRow]) -> Iterator[tuple[Place, Pair]]:
    """Each turn of each drafter with plain decoding's, at both places it belongs to."""
    for workload in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == workload]
        for drafter in dict.fromkeys(row.drafter for row in own):
            for pair in paired(own, drafter) if drafter not in metrics.PLAIN else ():
                for context in (WHOLE, bucket_of(pair[1].context_tokens)):
                    yield Place(workload, arm_of(drafter)[0], pair[1].concurrency or 1, context), pair


def _tried(k: int | str, pairs: Sequence[Pair]) -> Tried | None:
    value = speedup(pairs).pooled
    return None if value is None else Tried(k, value, speedup_intervals(pairs).pooled, len(pairs))


def policy_sheet(choices: Sequence[Choice], title: str = "How many tokens to draft") -> Sheet:
    """The choices as text: the best K with its interval, what is as good, and whether drafting pays at all."""
    headings = ("drafter", "workload", "concurrency", "context", "best K", "not told apart from", "draft at all")
    lines = [
        [
            own.place.drafter,
            own.place.workload,
            str(own.place.concurrency),
            own.place.context,
            own.best.text,
            ", ".join(f"K = {each.k}" for each in own.rivals) or "-",
            {True: "yes", False: "no", None: "not told apart"}[own.speculate],
        ]
        for own in choices
    ]
    return Sheet(title, headings, lines, [_MEANING], labels=4)


_MEANING = (
    "Speed-up over plain decoding, each K paired with it turn by turn, or pass by pass. Not told apart: the 95 % "
    "intervals overlap or are missing. Draft at all: yes if the best K's interval is above 1, no if every K's is below."
)
