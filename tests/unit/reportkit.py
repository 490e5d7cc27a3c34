"""Timed turns and small run folders for the tests of figures and report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rowkit import make_row

from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.writer import RunWriter


def timed(
    rollout: str, turn: int, drafter: str, matched: Sequence[int], round_ms: Sequence[float], **fields: Any
) -> TurnRow:
    """A row whose clocks follow from `round_ms`: draft, verify, accept, append and other milliseconds of a round."""
    seconds = [1e-3 * ms * len(matched) for ms in round_ms]
    names = ("draft_s", "verify_s", "accept_s", "draft_append_s", "other_s")
    clocks = dict(zip(names, seconds, strict=True))
    total = sum(seconds)
    clocks |= {"decode_s": total, "attributed_decode_s": total, "prefill_s": 0.05, "draft_ingest_s": 0.01}
    clocks |= {"context_tokens": 600 * (turn + 1), "draft_state_bytes": 0 if drafter == "none" else 4096 * (turn + 1)}
    return make_row(rollout, turn, drafter, matched, **(clocks | {"identical": True, "divergence": "none"} | fields))


def two_rollouts(drafter: str = "ngram") -> list[TurnRow]:
    """Two rollouts of two turns: plain decoding at 10 ms a token, a drafter at 12 ms a round that accepts 2 of 3."""
    rows = []
    for rollout in ("r0", "r1"):
        for turn in (0, 1):
            rows.append(timed(rollout, turn, "none", [0] * 6, (0.0, 9.0, 0.5, 0.0, 0.5)))
            rows.append(timed(rollout, turn, drafter, [2, 2], (1.0, 10.0, 0.5, 0.25, 0.25), k=3))
    return rows


MANIFEST: dict[str, Any] = {
    "started": "2026-01-01T00:00:00+00:00",
    "argv": ["agentbench-spec", "run"],
    "settings_digest": "0" * 64,
    "settings": {
        "target": {"source": "toy"},
        "workload": {"name": "toy", "options": {"subset": "small"}},
        "decode": {"max_new_tokens": 16},
        "measure": {"seed": 0, "include_degenerate": False},
    },
    "model": {},
    "data": {"sha256": "1" * 64},
    "git": {"sha": "abcdef0123456789", "dirty": False},
    "packages": {"agentbench-spec": "0.1.0"},
    "host": {"cpu": "A CPU", "threads": 1, "ram_bytes": 8 << 30, "gpus": []},
    "card": {
        "target": "toy",
        "dtype": "float64",
        "device": "cpu",
        "weight_bytes": 50_000_000,
        "kv_bytes_per_token": 512,
        "read_bytes_per_s": 1e10,
        "phase_cost_s": 2e-6,
        "floor_s": 0.005,
    },
}


def write_run(folder: Path, rows: Sequence[TurnRow], *, finish: bool = True, **changes: Any) -> Path:
    """A run folder holding `rows`, written by the package's own writer."""
    with RunWriter.create(folder, MANIFEST | changes) as writer:
        for rollout in dict.fromkeys(row.rollout for row in rows):
            for turn in dict.fromkeys(row.turn for row in rows if row.rollout == rollout):
                writer.turn([row for row in rows if (row.rollout, row.turn) == (rollout, turn)])
            writer.rollout_done(rollout)
        if finish:
            writer.finish()
    return folder
