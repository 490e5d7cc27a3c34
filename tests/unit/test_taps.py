"""What hidden states cost the shared prefill: planted costs are found, and noise is said to be noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from itertools import product
from pathlib import Path

import pytest
from reportkit import two_rollouts, write_run
from rowkit import make_row
from tinymodels import tiny as tiny_model
from torch import Tensor

from agentbench_spec.engine.target import Evaluated, Target
from agentbench_spec.errors import ConfigError
from agentbench_spec.report.page import heading
from agentbench_spec.results.clock_checks import TapsCost
from agentbench_spec.results.manifest import load_manifest
from agentbench_spec.runs.card import Card
from agentbench_spec.runs.taps import cost_of_pairs, signed_rank, taps_cost

STARTS = [0, 100, 200]
Prefill = Callable[[bool, int], float]


def machine(seed: int, cost: float, noise: float = 0.03, stalls: float = 0.0, drift: float = 0.0) -> Prefill:
    """A prefill of a pretended machine: lognormal noise, stalls of 10 to 50 times, and a drift from call to call."""
    draw, calls = random.Random(seed), iter(range(10**6))

    def prefill_s(tapped: bool, start: int) -> float:
        seconds = (0.01 + 1e-5 * start) * (1 + cost * tapped) * math.exp(draw.gauss(0, noise) + drift * next(calls))
        return seconds * (draw.uniform(10, 50) if draw.random() < stalls else 1)

    return prefill_s


@pytest.mark.parametrize("stalls", [0.0, 0.02])
def test_a_planted_cost_is_found(stalls: float) -> None:
    """10 % beside 3 % noise. Fails if it drowns in noise or stalls, or the interval misses the truth too often."""
    found = [cost_of_pairs(machine(seed, 0.10, stalls=stalls), STARTS) for seed in range(200)]
    assert all(0 < one.low < one.cost < one.high for one in found)
    assert sum(one.low <= 0.10 <= one.high for one in found) >= 184
    assert all("noise" not in one.text and one.pairs == 24 for one in found)


@pytest.mark.parametrize("noise, stalls", [(0.03, 0.0), (0.2, 0.0), (0.03, 0.1)])
def test_noise_is_not_told_from_noise(noise: float, stalls: float) -> None:
    """Fails if no cost at all reads as one in more than the 5 % of runs that a 95 % interval may err in."""
    found = [cost_of_pairs(machine(seed, 0.0, noise, stalls), STARTS) for seed in range(200)]
    assert sum(one.text.startswith("not told from noise, ") for one in found) >= 184


def test_a_machine_that_slows_down_is_no_cost() -> None:
    """Every call is 2 % slower than the one before. Fails if one order comes first more often than the other."""
    found = cost_of_pairs(machine(0, 0.0, noise=1e-4, drift=0.02), STARTS)
    assert found.cost == pytest.approx(0, abs=1e-3) and found.low < 0 < found.high


def test_pairs_are_balanced() -> None:
    """Fails if with and without are not side by side, or not equally often first at each context."""
    calls: list[tuple[bool, int]] = []

    def prefill_s(tapped: bool, start: int) -> float:
        calls.append((tapped, start))
        return 0.01

    assert cost_of_pairs(prefill_s, STARTS).pairs == 24
    pairs = list(zip(calls[6::2], calls[7::2], strict=True))  # behind the rehearsal
    assert all(a[1] == b[1] and a[0] != b[0] for a, b in pairs)
    assert all(pairs.count(((first, s), (not first, s))) == 4 for first in (True, False) for s in STARTS)


def test_a_slow_target_is_prefilled_less_often() -> None:
    """Fails if the card of a large model takes minutes, or a pair is lost from a block and with it the balance."""
    assert cost_of_pairs(lambda tapped, start: 20.0, STARTS).pairs == 6
    assert cost_of_pairs(lambda tapped, start: 0.3, STARTS).pairs == 12


def test_signed_rank_by_counting() -> None:
    """Fails if the ends are not those at which Wilcoxon's test, counted over all signs, turns at 5 %."""
    values = [0.3, -0.1, 0.4, 0.15, 0.9, -0.26, 0.535]
    centre, low, high = signed_rank(values)
    assert low < centre < high
    for end, inside in ((low, 1e-9), (high, -1e-9)):
        assert _wilcoxon_p(values, end - inside) < 0.05 <= _wilcoxon_p(values, end + inside)
    assert signed_rank([0.1] * 6) == (0.1, 0.1, 0.1)


def _wilcoxon_p(values: Sequence[float], centre: float) -> float:
    """Two-sided p of "they are symmetric about `centre`", over all ways to give the ranks a sign."""
    apart = sorted((value - centre for value in values), key=abs)
    ranks = range(1, len(apart) + 1)
    sums = [sum(r * sign for r, sign in zip(ranks, signs, strict=True)) for signs in product((0, 1), repeat=len(apart))]
    own = sum(rank for rank, value in zip(ranks, apart, strict=True) if value > 0)
    tail = min(sum(s <= own for s in sums), sum(s >= own for s in sums))
    return min(1.0, 2 * tail / len(sums))


class _Costly(Target):
    """Hidden states cost it four more forwards."""

    def evaluate(
        self, first_row: int, start: Sequence[int], input_ids: Tensor, *, keep: int = 0, taps: Collection[int] = ()
    ) -> Evaluated:
        for _ in range(4 if taps else 0):
            super().evaluate(first_row, start, input_ids, keep=keep)
        return super().evaluate(first_row, start, input_ids, keep=keep, taps=taps)


def test_the_clock_of_a_real_target_shows_a_cost() -> None:
    """Fails if what is timed is not the prefill with and without taps, or the row's text is not what it was."""
    target = _Costly(tiny_model("Llama", num_hidden_layers=1), name="m", capacity=160)
    target.commit(0, 7)
    found = taps_cost(target, {0})
    assert found.low > 0.5 and found.pairs >= 6 and target.lengths == [7]


def test_the_card_says_it_in_words() -> None:
    """Fails if noise is printed as a cost, as "-14.1 % longer" once was, or the manifest loses a part of it."""
    rows = [make_row(drafter="none", matched=[0] * 4, decode_s=0.4)]
    card = Card("m", "float32", "cpu", 500_000_000, 46_080, 10e9, 1e-6, TapsCost(-0.141, -0.3, 0.05, 24))
    assert card.lines(rows)[3] == (
        "hidden states for the drafters add to the shared prefill: not told from noise, -14.1% [-30.0%, +5.0%] over 24 "
        "pairs; end to end, the baseline is charged for them, too"
    )
    assert card.as_dict()["taps_cost"] == {"cost": -0.141, "low": -0.3, "high": 0.05, "pairs": 24}
    assert TapsCost(0.031, 0.022, 0.04, 24).text == "+3.1% [+2.2%, +4.0%] over 24 pairs"


@pytest.mark.parametrize(
    "cost, said",
    [
        ({"cost": 0.031, "low": 0.022, "high": 0.04, "pairs": 24}, "+3.1% [+2.2%, +4.0%] over 24 pairs"),
        (-0.141, "-14.1%, without an interval: may be noise"),
        (None, "–"),
    ],
)
def test_manifests_old_and_new_are_read(tmp_path: Path, cost: object, said: str) -> None:
    """Fails if a page of a run of before the interval cannot be made, or passes its number for a measured cost."""
    run = write_run(tmp_path / "run", two_rollouts(), card={"taps_cost": cost})
    facts = dict(heading("run", load_manifest(run / "manifest.json"), None).card)
    assert facts["Prefill, cost of hidden states for drafters"] == said


def test_a_spoilt_cost_is_refused(tmp_path: Path) -> None:
    """Fails if half a cost breaks the report, or the error does not name the field."""
    run = write_run(tmp_path / "run", two_rollouts(), finish=False, card={"taps_cost": {"cost": 0.1}})
    with pytest.raises(ConfigError, match=r"card\.taps_cost"):
        load_manifest(run / "manifest.json")
