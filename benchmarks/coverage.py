"""How often a 95 % interval holds the truth, and how often drafters that are alike are told apart.

    python benchmarks/coverage.py [--times 2000]

Simulated runs: n rollouts of 3 to 15 turns. Lengths and ratios of a turn are lognormal (standard deviations of the
logarithm 0.8 and 0.5, as in the recorded BFCL-v3 run), 30 % of either variance lies between rollouts (ICC 0.3), and
the machine adds noise of 3 % a turn. A turn's length and its τ or speed-up are independent, or correlated by 0.5
(recorded: 0.1 to 0.5) or -0.5. The truth is the ratio of the expectations. "alike": two drafters on the same turns,
each with noise of 10 % of its own.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from agentbench_spec.results.intervals import Array, Interval, clustered_interval, ratio_of_sums

ROLLOUTS = (2, 3, 6, 10, 20, 40)
CORRELATIONS = {"independent": 0.0, "correlated, 0.5": 0.5, "correlated, -0.5": -0.5}
_ICC, _LENGTH_SD, _RATIO_SD, _NOISE, _OWN = 0.3, 0.8, 0.5, 0.03, 0.1


@dataclass(frozen=True)
class Turns:
    """The turns of one simulated run."""

    rollouts: list[int]
    """[n] rollout of each turn."""
    tokens: Array
    ratio: Array
    """τ or speed-up of the turn."""
    level_s: Array
    """Seconds a token of plain decoding, which differ between rollouts."""


def simulated(draw: np.random.Generator, rollouts: int, correlation: float) -> Turns:
    """One run."""
    counts = draw.integers(3, 16, size=rollouts)
    index = np.repeat(np.arange(rollouts), counts)

    def shared() -> Array:
        between, within = draw.standard_normal(rollouts), draw.standard_normal(len(index))
        return math.sqrt(_ICC) * between[index] + math.sqrt(1 - _ICC) * within

    ratio = shared()
    length = correlation * ratio + math.sqrt(1 - correlation**2) * shared()
    level_s = np.exp(0.3 * draw.standard_normal(rollouts))[index]
    return Turns(index.tolist(), np.exp(4 + _LENGTH_SD * length), 2 * np.exp(_RATIO_SD * ratio), level_s)


def truth(correlation: float) -> float:
    """Expected top over expected bottom: a turn weighs by its length, so a correlation moves it."""
    return 2 * math.exp(-(_RATIO_SD**2) / 2 + correlation * _LENGTH_SD * _RATIO_SD)


def of_tau(turns: Turns, draw: np.random.Generator) -> Interval | None:
    """Tokens over rounds."""
    parts = np.stack([turns.tokens, turns.tokens / turns.ratio], axis=1)
    return clustered_interval(parts, turns.rollouts, ratio_of_sums)


def of_speedup(turns: Turns, draw: np.random.Generator) -> Interval | None:
    """Baseline seconds per token over the drafter's."""
    plain_s, own_s = (turns.tokens * turns.level_s * _noise(draw, turns, _NOISE) for _ in range(2))
    parts = np.stack([plain_s, turns.tokens, own_s / turns.ratio, turns.tokens], axis=1)
    return clustered_interval(parts, turns.rollouts, ratio_of_sums)


def of_alike(turns: Turns, draw: np.random.Generator) -> Interval | None:
    """Seconds per token of one drafter over those of another that is no faster and no slower."""
    sides = [turns.tokens * turns.level_s / turns.ratio * _noise(draw, turns, _OWN) for _ in range(2)]
    parts = np.stack([sides[0], turns.tokens, sides[1], turns.tokens], axis=1)
    return clustered_interval(parts, turns.rollouts, ratio_of_sums)


def _noise(draw: np.random.Generator, turns: Turns, size: float) -> Array:
    return np.exp(size * draw.standard_normal(len(turns.tokens)))


Figure = Callable[[Turns, np.random.Generator], Interval | None]
FIGURES: dict[str, Figure] = {"τ": of_tau, "speed-up": of_speedup}


def misses(figure: Figure, rollouts: int, correlation: float, value: float, times: int, seed: int = 0) -> float:
    """Share of `times` runs whose interval does not hold `value`; p must say the same each time."""
    draw, missed = np.random.default_rng(seed), 0
    for _ in range(times):
        found = figure(simulated(draw, rollouts, correlation), draw)
        if found is None:
            raise RuntimeError("a simulated run has no interval")
        outside = not found.low <= value <= found.high
        if outside != (found.p_of(value) < 1 - found.level):
            raise RuntimeError(f"p {found.p_of(value)} contradicts [{found.low}, {found.high}] of {value}")
        missed += outside
    return missed / times


def main() -> None:
    """Simulate and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--times", type=int, default=2000)
    times = arguments.parse_args().times
    print(f"| of {times} runs each | lengths |", " | ".join(f"n = {n}" for n in ROLLOUTS), "|")
    print("|---|---|" + "---|" * len(ROLLOUTS))
    for name, figure in FIGURES.items():
        for lengths, correlation in CORRELATIONS.items():
            found = [1 - misses(figure, n, correlation, truth(correlation), times) for n in ROLLOUTS]
            print(f"| coverage, {name} | {lengths} |", " | ".join(f"{each:.3f}" for each in found), "|", flush=True)
    for lengths, correlation in CORRELATIONS.items():
        found = [misses(of_alike, n, correlation, 1.0, times) for n in ROLLOUTS]
        print(f"| told apart, alike | {lengths} |", " | ".join(f"{each:.3f}" for each in found), "|", flush=True)


if __name__ == "__main__":
    main()
