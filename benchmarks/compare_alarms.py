"""How often `compare` raises a false alarm on noise, and how often it finds a drafter that got slower in one bucket.

    python benchmarks/compare_alarms.py [--times 200] [RUN ...]

Both runs of a pair are one set of rows whose decode seconds are multiplied, turn by turn and drafter by drafter, by
lognormal noise of 3 or 5 %. A false alarm is any regression (exit 1) without a change. A fault is one drafter that is
15 % slower in one octave of contexts; it is found if that speed-up is said to have fallen. The rows are generated ones
of 6 and 12 rollouts, and those of the RUN folders (all recorded ones if none is named).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from agentbench_spec.results.changes import WHOLE, bucket_of
from agentbench_spec.results.compare import Comparison, compare_runs
from agentbench_spec.results.folder import read_turns
from agentbench_spec.results.intervals import FEW_CLUSTERS
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow

DRAFTERS = ("ngram", "suffix", "eagle3", "dflash", "dspark", "dlite")
Fault = tuple[str, str]
"""Drafter and bucket that get slower."""


def generated(rollouts: int, seed: int = 0) -> list[TurnRow]:
    """Rollouts of twelve turns whose contexts grow from 500 to 8,000 tokens, decoded by seven drafters."""
    draw, rows = np.random.default_rng(seed), []
    for rollout in range(rollouts):
        for turn, context in enumerate(np.geomspace(500, 8000, 12)):
            tokens = int(draw.lognormal(4, 0.6)) + 8
            for drafter in (BASELINE, *DRAFTERS):
                tau = 1.0 if drafter == BASELINE else draw.lognormal(0.6, 0.25)
                rounds = max(1, round(tokens / tau))
                seconds = 0.05 * rounds * (1 if drafter == BASELINE else 1.2)
                rows.append(_row(f"r{rollout}", turn, drafter, int(context), tokens, rounds, seconds))
    return rows


def _row(rollout: str, turn: int, drafter: str, context: int, tokens: int, rounds: int, seconds: float) -> TurnRow:
    return TurnRow(
        workload="generated",
        rollout=rollout,
        turn=turn,
        message=2 * turn + 1,
        drafter=drafter,
        k=0 if drafter == BASELINE else 7,
        temperature=0.0,
        decode_mode="generate",
        history_mode="recorded",
        prefix_mode="kept",
        thinking=None,
        clock="host",
        context_tokens=context,
        rounds=rounds,
        emitted=tokens,
        emitted_raw=tokens,
        output_tokens=tokens + 1,
        decode_s=seconds,
    )


def noisy(
    rows: Sequence[TurnRow], noise: float, draw: np.random.Generator, fault: Fault | None = None
) -> list[TurnRow]:
    """The rows with other seconds."""
    factors = np.exp(noise * draw.standard_normal(len(rows)))
    slow = [1 / 0.85 if (row.drafter, bucket_of(row.context_tokens)) == fault else 1.0 for row in rows]
    return [
        row if row.decode_s is None else replace(row, decode_s=row.decode_s * factor * more)
        for row, factor, more in zip(rows, factors.tolist(), slow, strict=True)
    ]


def compared(
    rows: Sequence[TurnRow], noise: float, draw: np.random.Generator, fault: Fault | None = None
) -> Comparison:
    """Two runs of `rows`, the second one with the fault."""
    return compare_runs(({}, noisy(rows, noise, draw)), ({}, noisy(rows, noise, draw, fault)))


def false_alarms(rows: Sequence[TurnRow], noise: float, times: int, draw: np.random.Generator) -> int:
    """Pairs of runs, out of `times` without a change, in which something is said to have fallen."""
    return sum(bool(compared(rows, noise, draw).regressions) for _ in range(times))


def found(rows: Sequence[TurnRow], noise: float, times: int, draw: np.random.Generator, fault: Fault) -> int:
    """Pairs of runs, out of `times` with the fault, in which it is said to have fallen where it did."""
    runs = (compared(rows, noise, draw, fault).changes for _ in range(times))
    return sum(
        any((c.drafter, c.bucket) == fault and c.figure == "speedup" and c.judgement == "fell" for c in changes)
        for changes in runs
    )


def judged_faults(rows: Sequence[TurnRow], draw: np.random.Generator) -> list[Fault]:
    """The buckets of the last drafter that have enough rollouts to be judged."""
    changes = [c for c in compared(rows, 0.03, draw).changes if c.figure == "speedup" and c.bucket != WHOLE]
    enough = [c for c in changes if c.interval is not None and c.interval.clusters >= FEW_CLUSTERS]
    return [(c.drafter, c.bucket) for c in enough if c.drafter == changes[-1].drafter]


def lines(name: str, rows: Sequence[TurnRow], times: int) -> Iterator[str]:
    """One line for each size of noise."""
    draw = np.random.default_rng(0)
    first = compared(rows, 0.03, draw).changes
    clusters = max(c.interval.clusters if c.interval else 1 for c in first)
    cells = sum(c.figure == "speedup" for c in first)
    faults = judged_faults(rows, draw)
    for noise in (0.03, 0.05):
        alarms = false_alarms(rows, noise, times, draw)
        seen = [f"{bucket}: {found(rows, noise, times, draw, (who, bucket)) / times:.0%}" for who, bucket in faults]
        told = ", ".join(seen) or "not judged"
        yield f"| {name} | {clusters} | {cells} | {noise:.0%} | {alarms / times:.1%} | {told} |"


def main() -> None:
    """Simulate and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    arguments.add_argument("--times", type=int, default=200)
    given = arguments.parse_args()
    results = Path(__file__).parents[1] / "results"
    folders = given.runs or sorted(path.parent for path in results.glob("*/**/turns.jsonl"))
    print("| rows | rollouts | speed-ups | noise a turn | false alarms | 15 % slower found, by bucket |")
    print("|---|---|---|---|---|---|")
    for rollouts in (6, 12):
        print(*lines(f"generated, {rollouts}", generated(rollouts), given.times), sep="\n", flush=True)
    for folder in folders:
        print(*lines(folder.name, read_turns(folder)[1], given.times), sep="\n", flush=True)


if __name__ == "__main__":
    main()
