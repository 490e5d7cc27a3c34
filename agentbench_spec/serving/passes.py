"""A finished part as the row of a throughput pass, which the table over concurrency is made of."""

from __future__ import annotations

from collections.abc import Sequence

from agentbench_spec.engine.batching import ids_digest
from agentbench_spec.errors import MeasurementError
from agentbench_spec.results import metrics
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.throughput.pass_rows import ThroughputRow
from agentbench_spec.serving.part import PartResult


def served_pass(result: PartResult, concurrency: int) -> ThroughputRow:
    """The pass of one drafter through its servers.

    Raises MeasurementError if the part is not one uninterrupted window: a throughput has no meaning across a restart.
    """
    if len(result.windows) != 1 or not result.windows[0]["whole"] or not result.rows:
        raise MeasurementError(f"{result.name} at concurrency {concurrency} was interrupted; measure it anew")
    window, first = result.windows[0], result.rows[0]
    row = ThroughputRow(
        target=first.target or "",
        workload=first.workload,
        drafter=first.drafter,
        k=max(own.k for own in result.rows),
        thinking=first.thinking,
        concurrency=concurrency,
        backend=first.backend,
        engine_version=first.engine_version,
        async_scheduling=first.async_scheduling,
        servers=window["servers"],
        left_out=metrics.left_out(result.rows, include_degenerate=True),
    )
    kept = metrics.counted(result.rows, include_degenerate=True)
    if not kept:
        row.status, row.error = "error", next((own.error for own in result.rows if own.error), "no turn was decoded")
        return row
    _count(row, kept)
    row.served_s = window["wall_s"] * window["servers"]
    row.windows = [(tokens, seconds * window["servers"]) for tokens, seconds in window.get("stretches", ())]
    return row


def _count(row: ThroughputRow, kept: Sequence[TurnRow]) -> None:
    """Tokens, rounds and outputs of the turns that count; a total is None if one of its parts is unknown."""
    row.turns, row.degenerate_turns = len(kept), sum(metrics.looped(own) for own in kept)
    row.output_tokens = sum(own.output_tokens or 0 for own in kept)
    row.emitted, row.emitted_raw = _total(kept, "emitted"), _total(kept, "emitted_raw")
    row.rounds = _total(kept, "rounds")
    for own in kept:
        if own.emitted is not None and own.emitted_raw is not None and own.rounds is not None:
            emitted, raw, rounds = row.rollouts.get(own.rollout, (0, 0, 0))
            row.rollouts[own.rollout] = (emitted + own.emitted, raw + own.emitted_raw, rounds + own.rounds)
        if own.output_ids is not None:
            row.outputs[f"{own.rollout}#{own.turn}"] = ids_digest(own.output_ids)


def _total(rows: Sequence[TurnRow], name: str) -> int | None:
    values: list[int | None] = [getattr(row, name) for row in rows]
    return None if None in values else sum(value for value in values if value is not None)
