"""Rows for tests, built from what a turn's rounds did, so that every count in them agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentbench_spec.results.metrics import count_rounds
from agentbench_spec.results.rows import TurnRow


def make_row(
    rollout: str = "r0",
    turn: int = 0,
    drafter: str = "ngram",
    matched: Sequence[int] | None = None,
    *,
    emitted: int | None = None,
    **fields: Any,
) -> TurnRow:
    """A row whose counts follow from `matched` (accepted drafts a round, of k asked for); `fields` override."""
    values: dict[str, Any] = {
        "workload": "toy",
        "rollout": rollout,
        "turn": turn,
        "message": 2 * turn + 1,
        "drafter": drafter,
        "k": 7,
        "temperature": 0.0,
        "decode_mode": "generate",
        "history_mode": "recorded",
        "prefix_mode": "kept",
        "thinking": None,
        "clock": "host",
    }
    if matched is not None:
        values |= _counts(list(matched), emitted, 0 if drafter == "none" else fields.get("k", 7))
    return TurnRow(**(values | fields))


def _counts(matched: list[int], emitted: int | None, k: int) -> dict[str, Any]:
    counts = count_rounds(matched, sum(matched) + len(matched) if emitted is None else emitted)
    return {
        "k": k,
        "rounds": counts.rounds,
        "emitted": counts.emitted,
        "emitted_raw": counts.emitted_raw,
        "tau": counts.tau,
        "tau_raw": counts.tau_raw,
        "output_tokens": counts.emitted + 1,
        "matched": sum(matched),
        "proposed": k * len(matched),
        "matched_lengths": matched,
        "proposed_lengths": [k] * len(matched),
    }
