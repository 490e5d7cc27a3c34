"""What a turn takes of a GPU by each method, from the rows of a run, and how steps lengthen when several decode."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.costs import e2e_s
from agentbench_spec.results.intervals import Interval, jackknife_interval
from agentbench_spec.results.metrics import BASELINE, by_drafter, counted, rollout_of, turn_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied
from agentbench_spec.results.throughput.pass_rows import ThroughputRow


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer a step takes with several rows at work than with one: straight lines between measured points."""

    points: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """(rows at work, seconds of a step over those of a step of one row), ascending."""
    most: int = 1
    """Rows at once that were measured: a batch is never made larger."""

    def at(self, rows: int) -> float:
        """The factor for so many rows; beyond the last point, the last line goes on."""
        if rows <= self.points[0][0] or len(self.points) == 1:
            return self.points[0][1]
        (low, before), (high, after) = next(
            (pair for pair in pairwise(self.points) if rows <= pair[1][0]), (self.points[-2], self.points[-1])
        )
        return before + (after - before) * (rows - low) / (high - low)


@dataclass(frozen=True, slots=True)
class TurnService:
    """One recorded turn as a GPU serves it with one method."""

    context_tokens: int
    prefill_s: float
    """The target's new positions, and the drafter's share of them; nothing else runs meanwhile."""
    rounds: int
    step_s: float
    """Of a round with no other row at work."""
    output_tokens: int
    weight: float = 1.0
    """How often it comes, against the others."""

    @property
    def alone_s(self) -> float:
        """Seconds of the turn on an idle GPU."""
        return self.prefill_s + self.rounds * self.step_s


@dataclass(frozen=True, slots=True)
class Service:
    """How a method serves the rollouts of a run."""

    method: str
    rollouts: tuple[tuple[TurnService, ...], ...]
    slowdown: Slowdown = Slowdown()
    session_bytes: float | None = None
    """KV of target and drafter for a session, at its longest, mean over rollouts; None: not recorded."""

    mixed: bool = False
    """Sessions ask for single turns, by their weights; else they walk whole rollouts."""

    def turn_s(self) -> float:
        """Mean seconds of a turn on an idle GPU."""
        return _mean_s(self.rollouts)

    def interval(self) -> Interval | None:
        """Interval of that mean over rollouts; None with fewer than two."""
        return jackknife_interval(self.rollouts, _mean_s)

    def tokens(self) -> float:
        """Mean output tokens of a turn."""
        return _mean((turn.weight, turn.output_tokens) for own in self.rollouts for turn in own)

    def walk(self, draw: random.Random) -> Sequence[TurnService]:
        """What a session asks for next, turn by turn."""
        if not self.mixed:
            return self.rollouts[draw.randrange(len(self.rollouts))]
        turns = [turn for own in self.rollouts for turn in own]
        return draw.choices(turns, [turn.weight for turn in turns])

    def scaled(self, factor: float) -> Service:
        """The same with every second `factor` times as long: an end of the interval."""
        rollouts = tuple(
            tuple(replace(turn, prefill_s=factor * turn.prefill_s, step_s=factor * turn.step_s) for turn in own)
            for own in self.rollouts
        )
        return replace(self, rollouts=rollouts)


def _mean_s(rollouts: Sequence[Sequence[TurnService]]) -> float:
    return _mean((turn.weight, turn.alone_s) for own in rollouts for turn in own)


def _mean(weighed: Iterable[tuple[float, float]]) -> float:
    pairs = list(weighed)
    return sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs)


def services_of(rows: Sequence[TurnRow], passes: Sequence[ThroughputRow] = ()) -> dict[str, Service]:
    """Method -> how it serves the turns that all methods of the run decoded, the baseline first.

    passes: of a throughput run on the same machine, for batches; a method without any serves one turn at a time.
    Raises ConfigError if no turn was timed by all, or prefills were not.
    """
    steady = steadied(counted(rows, include_degenerate=True))
    timed = [row for row in steady if not row.disturbed and row.decode_s is not None and row.rounds is not None]
    methods = by_drafter(timed)
    if BASELINE not in methods:
        raise ConfigError(f"the run has no timed turn of plain decoding ({BASELINE}), which every saving is against")
    shared = set.intersection(*({turn_of(row) for row in own} for own in methods.values()))
    if not shared:
        raise ConfigError("no turn was timed by all methods of the run: leave the ones that failed out of it")
    if any(e2e_s(row) is None or row.prefill_s is None for row in timed if turn_of(row) in shared):
        raise ConfigError(
            "the run has turns without prefill times (through servers there are none): run our own engine"
        )
    slow = slowdowns(passes)
    order = [BASELINE, *(name for name in methods if name != BASELINE)]
    return {name: _service(name, [r for r in methods[name] if turn_of(r) in shared], slow.get(name)) for name in order}


def _service(name: str, rows: Sequence[TurnRow], slow: Slowdown | None) -> Service:
    rollouts: dict[tuple[str, str], list[TurnRow]] = {}
    for row in rows:
        rollouts.setdefault(rollout_of(row), []).append(row)
    peaks = [_peak_bytes(own) for own in rollouts.values()]
    known = [peak for peak in peaks if peak is not None]
    return Service(
        name,
        tuple(tuple(map(_turn, sorted(own, key=lambda row: row.turn))) for own in rollouts.values()),
        slow or Slowdown(),
        fmean(known) if len(known) == len(peaks) else None,
    )


def _turn(row: TurnRow) -> TurnService:
    rounds = row.rounds or 0
    return TurnService(
        context_tokens=row.context_tokens or 0,
        prefill_s=(row.prefill_s or 0.0) + (row.draft_ingest_s or 0.0),
        rounds=rounds,
        step_s=(row.decode_s or 0.0) / rounds if rounds else 0.0,
        output_tokens=row.output_tokens or 0,
    )


def _peak_bytes(rows: Iterable[TurnRow]) -> float | None:
    parts = [(row.target_kv_bytes, row.draft_state_bytes) for row in rows]
    sums = [float(kv + state) for kv, state in parts if kv is not None and state is not None]
    return max(sums) if sums and len(sums) == len(parts) else None


def slowdowns(passes: Iterable[ThroughputRow], without: int | None = None) -> dict[str, Slowdown]:
    """Method -> how its steps lengthen with rows at work; a method without a pass at concurrency 1 has none.

    From the steps with every row busy; of a pass of an older version, which does not tell them apart, from all of its
    steps at the mean rows at work. without: a concurrency whose passes are left out, to be foretold from the others.
    """
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in passes:
        if row.status == "ok" and row.clock != "attribution" and (point := _step(row)):
            found.setdefault(row.drafter, {}).setdefault(row.concurrency, []).append(point)
    curves = {}
    for name, points in found.items():
        if 1 in points:
            alone_s = fmean(s for _, s in points[1])
            kept = [
                (fmean(b for b, _ in own), fmean(s for _, s in own) / alone_s)
                for c, own in points.items()
                if c != without
            ]
            curves[name] = Slowdown(tuple(sorted(kept)), max(points))
    return curves


def _step(row: ThroughputRow) -> tuple[float, float] | None:
    if row.full_steps and row.full_s:
        return float(row.concurrency), row.full_s / row.full_steps
    if row.steps and row.decode_s and row.busy_rows:
        return row.busy_rows, row.decode_s / row.steps
    return None
