"""τ by turn, plain and among turns of like length: short turns lose more to clipping, and turns differ in length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from agentbench_spec.results.metrics import counted, rollout_of, tau
from agentbench_spec.results.rows import TurnRow


@dataclass(frozen=True, slots=True)
class TurnTau:
    """τ of one drafter at one place in the rollout."""

    turn: int
    rollouts: int
    output_tokens: float
    """Mean length of the turn's output."""
    context_tokens: float | None
    """Mean length of its prompt."""
    tau: float
    """Pooled, clipped."""
    tau_matched: float | None
    """As if this turn's outputs had the lengths that all turns together have; None if too few lengths are shared."""
    shared: float
    """Share of all turns whose length class this turn has, 0 to 1; below `SHARED_LEAST` nothing is matched."""


SHARED_LEAST = 0.5


def tau_by_turn(rows: Iterable[TurnRow]) -> list[TurnTau]:
    """τ by turn of the rows of one drafter, plain and length-matched; turns without a round are left out.

    Length classes are octaves of output tokens (16-31, 32-63, ...). Matched τ is the mean over the classes of the
    turn's τ in each, weighted by the class's share of all turns, over the classes that the turn has.
    """
    used = [row for row in counted(rows) if row.rounds and row.emitted is not None]
    classes = _grouped(used)
    weights = {name: len(own) / len(used) for name, own in classes.items()}
    turns: dict[int, list[TurnRow]] = {}
    for row in used:
        turns.setdefault(row.turn, []).append(row)
    return [_turn_tau(turn, own, weights) for turn, own in sorted(turns.items())]


def _turn_tau(turn: int, own: list[TurnRow], weights: dict[int, float]) -> TurnTau:
    classes = {name: tau(rows).pooled for name, rows in _grouped(own).items()}
    known = {name: value for name, value in classes.items() if value is not None}
    shared = sum(weights[name] for name in known)
    matched = sum(weights[name] * value for name, value in known.items()) / shared
    contexts = [row.context_tokens for row in own if row.context_tokens is not None]
    pooled = tau(own).pooled
    assert pooled is not None  # every row has a round
    return TurnTau(
        turn=turn,
        rollouts=len({rollout_of(row) for row in own}),
        output_tokens=fmean(row.output_tokens or 0 for row in own),
        context_tokens=fmean(contexts) if contexts else None,
        tau=pooled,
        tau_matched=matched if shared >= SHARED_LEAST else None,
        shared=shared,
    )


def _grouped(rows: Iterable[TurnRow]) -> dict[int, list[TurnRow]]:
    groups: dict[int, list[TurnRow]] = {}
    for row in rows:
        groups.setdefault((row.output_tokens or 0).bit_length(), []).append(row)
    return groups
