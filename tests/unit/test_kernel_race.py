"""Races between kernels: fair, deaf to what else the machine does, and in favour of who holds the place."""

from __future__ import annotations

import random

import pytest

from agentbench_spec.engine.cpu.race import laps, winner


def raced(true_us: dict[str, float], seed: int, *, stalls: float = 0.0, incumbent: str = "stock") -> str:
    """The winner among kernels of these true times, each lap 20 % apart from them at most, some of them stalled."""
    draw = random.Random(seed)

    def walk(name: str) -> list[float]:
        return [
            true_us[name] * (1 + 0.2 * draw.random()) * (3 if draw.random() < stalls else 1) for _place in range(30)
        ]

    return winner({n: tuple(sum(half) for half in own) for n, own in laps(walk, list(true_us), 12).items()}, incumbent)


def test_every_contestant_walks_as_often_and_begins_in_turn() -> None:
    """Fails if one kernel always runs first, on caches and clocks that the others never meet."""
    walked: list[str] = []
    best = laps(lambda name: walked.append(name) or [float(len(walked)), 1.0], ["a", "b", "c"], 6)
    assert [walked[i] for i in range(0, 18, 3)] == ["a", "b", "c"] * 2
    assert {walked.count(name) for name in "abc"} == {6}
    assert best["a"] == [[1.0, 1.0], [10.0, 1.0]], "each half keeps the best of its own laps"


@pytest.mark.parametrize("stalls", [0.0, 0.3])
def test_the_faster_kernel_wins_every_time(stalls: float) -> None:
    """Fails if a race that is disturbed now and then picks differently from run to run, as best of three did."""
    true_us = {"stock": 112.0, "halves": 60.0, "packed": 75.0}
    assert {raced(true_us, seed, stalls=stalls) for seed in range(100)} == {"halves"}


@pytest.mark.parametrize("holder", ["stock", "packed"])
def test_a_tie_stays_with_who_holds_the_place(holder: str) -> None:
    """Fails if two kernels that are as fast change places from run to run."""
    true_us = {"stock": 100.0, "packed": 98.0}
    assert {raced(true_us, seed, stalls=0.1, incumbent=holder) for seed in range(100)} == {holder}


def test_two_that_beat_stock_alike_do_not_change_places() -> None:
    """Fails if one of two near winners is drawn by chance: the head was packed in one race, halved in the next."""
    true_us = {"stock": 9100.0, "halves": 4750.0, "packed": 4650.0}
    assert {raced(true_us, seed, stalls=0.1) for seed in range(100)} == {"halves"}
    assert winner({"stock": (1.0, 1.0), "halves": (0.8, 0.8), "packed": (0.7, 0.7)}, "stock") == "packed"


def test_a_win_in_one_half_of_the_laps_is_none() -> None:
    """Fails if a disturbance that lasts for half of a race decides it."""
    assert winner({"stock": (1.0, 1.0), "packed": (0.5, 0.95)}, "stock") == "stock"
    assert winner({"stock": (1.0, 1.0), "packed": (0.5, 0.85)}, "stock") == "packed"


def test_an_incumbent_that_is_gone_is_no_winner() -> None:
    """Fails if a kernel that this torch build lacks keeps its place."""
    assert winner({"stock": (1.0, 1.0), "halves": (0.8, 0.8)}, "packed") == "halves"
