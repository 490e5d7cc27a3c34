"""How far planted stalls move a speed-up, by estimator: rows of a recorded run, its clocks drawn anew.

usage: python benchmarks/robust_headline.py [--run results/recorded/bfcl-v3-smollm2-135m] [--repeats 12]

Every round takes its drafter's recorded step at that context, more for a wider verify, times noise of a round (4 %) and
of a turn (3 %). Then stalls are planted: in 10 % of all (turn, drafter) cells every round, or a run of half of them,
takes 10 to 50 times as long; or one round in ten, anywhere, takes 15 times as long (a third process on two cores); or
the machine is three times slower, for everyone, in half of the run.
Printed is how far the speed-up moves from the same clocks without stalls: median and worst over drafters and repeats.
Rows follow of the product's estimator on rows that know less: rounds not timed, as in older runs; a chunk a round, as a
server sends them, which verifies the same number of drafts in each. The last one is a whole run: it judges each turn
when it is decoded, decodes a disturbed one again for all drafters, at most twice, and marks what stays disturbed. A
stall hits one tenth of all decodings there, those of a repeat included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from agentbench_spec.engine.rounds import Round, Turn
from agentbench_spec.engine.timing import Times
from agentbench_spec.results.costs import Pair, paired
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.metrics import BASELINE, by_drafter, turn_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import FAR_ABOVE, steady_decode_s
from agentbench_spec.runs.attempts import best
from agentbench_spec.runs.fill import Decoded
from agentbench_spec.runs.stalls import Stalls

Estimator = Callable[[Sequence[TurnRow]], Sequence[float]]
"""Rows of plain decoding, then as many of one drafter -> decode seconds of each."""


def each(estimator: Estimator, rows: Sequence[TurnRow]) -> list[float]:
    """An estimator that knows one drafter, for both halves."""
    half = len(rows) // 2
    return [*estimator(rows[:half]), *estimator(rows[half:])]


def sums(rows: Sequence[TurnRow]) -> list[float]:
    """Nothing done: the plain ratio of sums."""
    return [row.decode_s or 0.0 for row in rows]


def medians(rows: Sequence[TurnRow]) -> list[float]:
    """Median step of the run by verify width, times rounds."""
    by_width: dict[int, list[float]] = {}
    for row in rows:
        for width, s in zip(row.proposed_lengths or (), row.round_s or (), strict=True):
            by_width.setdefault(width, []).append(s)
    steps = {width: float(np.median(found)) for width, found in by_width.items()}
    return [sum(steps[width] for width in row.proposed_lengths or ()) for row in rows]


def trimmed(rows: Sequence[TurnRow], share: float = 0.1) -> list[float]:
    """Turns whose mean step is among the highest or lowest tenth take the mean step of the others."""
    steps = np.array([(row.decode_s or 0.0) / (row.rounds or 1) for row in rows])
    low, high = np.quantile(steps, [share, 1 - share])
    kept = (steps >= low) & (steps <= high)
    steps = np.where(kept, steps, steps[kept].mean())
    return [float(step * (row.rounds or 1)) for step, row in zip(steps, rows, strict=True)]


def steady(rows: Sequence[TurnRow], far_above: float, seen: Callable[[TurnRow], TurnRow] | None = None) -> list[float]:
    """The product's: rounds (or whole turns) far above their like take the time of their like."""
    return [s or 0.0 for s in steady_decode_s([seen(row) for row in rows] if seen else rows, far_above=far_above)]


def not_timed(row: TurnRow) -> TurnRow:
    """The row as an older run has it."""
    return replace(row, round_s=None)


def chunks(row: TurnRow) -> TurnRow:
    """The row as a client sees it."""
    return replace(row, backend="sglang", concurrency=1, proposed_lengths=None, round_s=None, chunk_gaps_s=row.round_s)


ESTIMATORS: dict[str, Estimator] = {
    "ratio of sums": sums,
    "median by width": partial(each, medians),
    "trimmed turns": partial(each, trimmed),
    "far above 1.5": partial(steady, far_above=1.5),
    "far above 2": partial(steady, far_above=2.0),
    "far above 3": partial(steady, far_above=3.0),
    "rounds not timed": partial(steady, far_above=FAR_ABOVE, seen=not_timed),
    "served, chunks": partial(steady, far_above=FAR_ABOVE, seen=chunks),
}


WHOLE_RUN, REPEATS = "a whole run", 2
"""The product from end to end, and how often it decodes a disturbed turn again."""


def drawn(row: TurnRow, rng: np.random.Generator) -> list[float]:
    """Seconds of each round of a turn on a quiet machine."""
    widths = 1 + 0.06 * np.array(row.proposed_lengths)
    step_s = (row.decode_s or 0.0) / (row.rounds or 1) / widths.mean()
    noise = rng.lognormal(0, 0.04, len(widths)) * rng.lognormal(0, 0.03)
    return list(step_s * widths * noise)


def stall(kind: str, cells: Sequence[list[float]], rng: np.random.Generator) -> list[list[float]]:
    """The same rounds with stalls planted."""
    out = [list(cell) for cell in cells]
    if kind == "one round in ten":
        return [[s * (15 if rng.random() < 0.1 else 1) for s in cell] for cell in out]
    for i in rng.choice(len(out), size=round(0.1 * len(out)), replace=False):
        length = len(out[i]) if kind == "whole turns" else (len(out[i]) + 1) // 2
        start = rng.integers(len(out[i]) - length + 1)
        factor = rng.uniform(10, 50)
        out[i][start : start + length] = [factor * s for s in out[i][start : start + length]]
    return out


def hit(kind: str, cell: list[float], rng: np.random.Generator) -> list[float]:
    """The rounds of one decoding, which a stall meets as often as it meets a cell of `stall`."""
    if kind == "one round in ten":
        return stall(kind, [cell], rng)[0]
    return stall(kind, [cell] * 10, rng)[0] if kind in ("whole turns", "half turns") else cell


def as_run(rows: Sequence[TurnRow], kind: str, rng: np.random.Generator) -> tuple[list[TurnRow], list[TurnRow]]:
    """The rows without stalls and with them, of the attempts that count where disturbed turns are decoded again."""
    stalls, order = Stalls(), list(dict.fromkeys(turn_of(row) for row in rows))
    kept: list[tuple[TurnRow, list[float], Decoded]] = []
    for turn in order:
        own = {row.drafter: row for row in rows if turn_of(row) == turn}
        calm, attempts = [], []
        while not attempts or (len(attempts) <= REPEATS and any(d.disturbed for d in attempts[-1].values())):
            calm.append({name: drawn(row, rng) for name, row in own.items()})
            attempts.append({name: decoded(row, hit(kind, calm[-1][name], rng)) for name, row in own.items()})
            stalls.judge(attempts[-1])
        counts = best(attempts)
        stalls.learn(attempts[counts])
        kept += [(row, calm[counts][name], attempts[counts][name]) for name, row in own.items()]
    quiet = timed([row for row, *_ in kept], [cell for _, cell, _ in kept])
    noisy = timed([row for row, *_ in kept], [last.wall.round_s if last.wall else [] for *_, last in kept])
    told = [{"disturbed": last.disturbed, "slow_rounds": last.slow_rounds} for *_, last in kept]
    return quiet, [replace(row, **columns) for row, columns in zip(noisy, told, strict=True)]


def decoded(row: TurnRow, cell: list[float]) -> Decoded:
    """The decoding that gave the row, with these seconds of its rounds."""
    rounds = [Round(width, 0, 1) for width in row.proposed_lengths or ()]
    return Decoded(Turn(0, [0], rounds=rounds), 0, 0, wall=Times(sum(cell), round_s=cell))


def slower_half(rows: Sequence[TurnRow], cells: Sequence[list[float]]) -> list[list[float]]:
    """The same rounds on a machine that is three times slower for half of the run, for everyone."""
    order = {turn: n for n, turn in enumerate(dict.fromkeys((row.rollout, row.turn) for row in rows))}
    slow = [order[row.rollout, row.turn] < len(order) / 2 for row in rows]
    return [[s * (3 if hit else 1) for s in cell] for cell, hit in zip(cells, slow, strict=True)]


def timed(rows: Sequence[TurnRow], cells: Sequence[list[float]]) -> list[TurnRow]:
    """The rows with these seconds of their rounds."""
    return [replace(row, round_s=cell, decode_s=sum(cell)) for row, cell in zip(rows, cells, strict=True)]


def pooled(pairs: Sequence[Pair], estimator: Estimator) -> float:
    """The speed-up over the pairs, with the seconds that the estimator gives each side."""
    base, own = [base for base, _ in pairs], [row for _, row in pairs]
    seconds = estimator([*base, *own])
    base_s, own_s = sum(seconds[: len(base)]), sum(seconds[len(base) :])
    tokens = sum(row.emitted or 0 for row in own) / sum(row.emitted or 0 for row in base)
    return float(base_s / own_s * tokens)


KINDS = ("none", "whole turns", "half turns", "one round in ten", "slow half")


def moved(rows: Sequence[TurnRow], kind: str, repeats: int) -> dict[str, list[float]]:
    """Per estimator: how far the speed-up of each drafter in each repeat is from its quiet value, in per cent.

    Without stalls: from the ratio of sums.
    """
    found: dict[str, list[float]] = {name: [] for name in (*ESTIMATORS, WHOLE_RUN)}
    rows = [row for row in rows if row.rounds and row.decode_s]
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat)
        cells = [drawn(row, rng) for row in rows]
        quiet = timed(rows, cells)
        hit = slower_half(rows, cells) if kind == "slow half" else stall(kind, cells, rng)
        noisy = quiet if kind == "none" else timed(rows, hit)
        for drafter in (name for name in by_drafter(rows) if name != BASELINE):
            calm, busy = (paired(own, drafter) for own in (quiet, noisy))
            for name, estimator in ESTIMATORS.items():
                against = pooled(calm, sums if kind == "none" else estimator)
                found[name].append(100 * abs(pooled(busy, estimator) / against - 1))
        if kind != "slow half":
            own, ours = as_run(rows, kind, rng), partial(steady, far_above=FAR_ABOVE)
            for drafter in (name for name in by_drafter(rows) if name != BASELINE):
                calm, busy = (paired(each, drafter) for each in own)
                found[WHOLE_RUN].append(
                    100 * abs(pooled(busy, ours) / pooled(calm, sums if kind == "none" else ours) - 1)
                )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("results/recorded/bfcl-v3-smollm2-135m"))
    parser.add_argument("--repeats", type=int, default=12)
    options = parser.parse_args()
    rows = read_run(options.run)[1]
    print(f"{'median % (worst %)':18}" + "".join(f"{kind:>20}" for kind in KINDS))
    columns = {kind: moved(rows, kind, options.repeats) for kind in KINDS}
    for name in (*ESTIMATORS, WHOLE_RUN):
        cells = (
            f"{np.median(own):8.2f} ({max(own):7.2f})" if (own := found[name]) else "" for found in columns.values()
        )
        print(f"{name:18}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
