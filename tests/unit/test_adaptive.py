"""K chosen round by round: by scripted costs and acceptance, in the loop, and in a whole run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from agentbench_spec_drafters.ngram import make as ngram
from replaykit import by_drafter, replayed, replayer, three_turns
from runkit import call, replay, rows_of

from agentbench_spec.config import load_config
from agentbench_spec.engine.adaptive import AdaptiveK, RoundCost, choices
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits, Round
from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.folder import read_manifest, read_rounds
from agentbench_spec.results.metrics import one_condition
from agentbench_spec.runs.round_costs import measure_round_costs
from agentbench_spec.testing import ScriptedDrafter, every, greedy_text, row_sampler, toy_target, toy_turns

PROMPT = toy_turns()[0]
KS = choices(15)
Rates = Callable[[int], Sequence[float]]
"""Text position -> how often a draft is accepted if those before it were, by draft position, the last one repeated."""


def costs(fixed: float, per_draft: float, per_verified: float) -> dict[int, RoundCost]:
    """In units of a plain round: proposing anything, each draft, each draft verified."""
    return {k: RoundCost(fixed * (k > 0) + per_draft * k, 1 + per_verified * k) for k in KS}


LOOK_UP, BLOCK, CHAIN = costs(0.02, 0.005, 0.02), costs(0.2, 0.0, 0.05), costs(0.05, 0.12, 0.05)


class Scripted:
    """A text whose luck is fixed at every position: whatever K reads it, it reads the same."""

    def __init__(self, rates: Rates, cost: dict[int, RoundCost], tokens: int, seed: int = 0) -> None:
        self._rates, self._cost, self._tokens = rates, cost, tokens
        self._luck = [random.Random(f"{seed} {i}").random() for i in range(tokens + 64)]
        self._noise = random.Random(seed)

    def read(
        self, choose: Callable[[], int], learn: Callable[[int, list[Round], float], None]
    ) -> tuple[float, list[int]]:
        """Seconds per token, and the K of each round."""
        seconds, position = 0.0, 0
        asked: list[int] = []
        while position < self._tokens:
            rates, k, matched = self._rates(position), choose(), 0
            while matched < k and self._luck[position + matched] < rates[min(matched, len(rates) - 1)]:
                matched += 1
            spent = (self._cost[k].draft_s + self._cost[k].rest_s) * self._noise.lognormvariate(0, 0.05)
            learn(k, [Round(k, matched, matched + 1)], spent)
            seconds, position = seconds + spent, position + matched + 1
            asked.append(k)
        return seconds / position, asked

    def best_fixed(self) -> tuple[float, int]:
        """Seconds per token of the best K that stays, and which it is."""
        return min((self.read(lambda k=k: k, lambda *_: None)[0], k) for k in KS)


def adaptive(text: Scripted, warm: dict[int, RoundCost], seed: int = 0) -> tuple[float, list[int]]:
    chooser = AdaptiveK(warm, seed)
    return text.read(chooser.choose, chooser.learn)


def test_choices_are_few_and_reach_from_nothing_to_the_most() -> None:
    """Fails if 0 or the most is left out, one is asked for that is beyond it, or there are so many that shapes vary."""
    assert choices(0) == (0,) and choices(1) == (0, 1) and choices(4) == (0, 1, 2, 3, 4)
    assert choices(7) == (0, 1, 2, 3, 5, 7) and choices(15) == (0, 1, 2, 3, 5, 7, 11, 15)
    assert all(choices(most)[0] == 0 and choices(most)[-1] == most for most in range(200))
    assert len(choices(1024)) < 24


@pytest.mark.parametrize("cost", [LOOK_UP, BLOCK, CHAIN])
@pytest.mark.parametrize("rates", [[0.02], [0.5], [0.7], [0.95], [0.9, 0.6, 0.4, 0.3]])
def test_it_finds_the_best_fixed_k(cost: dict[int, RoundCost], rates: list[float]) -> None:
    """Fails if a steady text takes more than 3 % longer than with the K that is best for it."""
    excess = []
    for seed in range(3):
        text = Scripted(lambda position: rates, cost, 4000, seed)
        excess.append(adaptive(text, cost, seed)[0] / text.best_fixed()[0])
    assert sum(excess) / len(excess) < 1.03, excess


@pytest.mark.parametrize("cost", [LOOK_UP, BLOCK, CHAIN])
def test_on_a_mixed_text_it_is_above_every_fixed_k(cost: dict[int, RoundCost]) -> None:
    """Fails if a change from easy to hopeless text and back is noticed so late that one K for both is as good."""
    text = Scripted(lambda position: [0.95] if position // 1000 % 2 else [0.03], cost, 6000)
    assert adaptive(text, cost)[0] < 0.95 * text.best_fixed()[0]


def test_a_hopeless_drafter_is_left_alone_and_taken_up_again() -> None:
    """Fails if drafting goes on where nothing is accepted, or is never tried again."""
    text = Scripted(lambda position: [0.01] if position < 3000 else [0.9], CHAIN, 9000)
    asked = adaptive(text, CHAIN)[1]
    hopeless, after = asked[200:2900], asked[-200:]
    assert Counter(hopeless)[0] > 0.97 * len(hopeless)
    assert any(hopeless) and after.count(0) < 10


def test_what_rounds_take_now_counts_and_not_what_they_took_when_warm() -> None:
    """Fails if costs measured once are kept: verifying is three times as dear here as it was."""
    dear = {k: RoundCost(c.draft_s, 1 + 0.4 * k) for k, c in BLOCK.items()}
    text = Scripted(lambda position: [0.7], dear, 4000)
    best_s, best = text.best_fixed()
    assert best != Scripted(lambda position: [0.7], BLOCK, 4000).best_fixed()[1]
    assert adaptive(text, BLOCK)[0] < 1.03 * best_s


def test_a_stall_of_the_machine_teaches_nothing() -> None:
    """Fails if one round that took a hundred times as long changes what is asked for."""
    chooser = AdaptiveK(BLOCK)
    for _ in range(200):
        chooser.learn(15, [Round(15, 15, 16)], 1.95)
    assert chooser.best() == 15
    chooser.learn(15, [Round(15, 15, 16)], 195.0)
    assert chooser.best() == 15


def test_equal_clocks_and_seeds_give_equal_choices() -> None:
    """Fails if a choice depends on anything but the seed and what was learned."""
    one, same, other = (adaptive(Scripted(lambda position: [0.7], BLOCK, 2000), BLOCK, seed)[1] for seed in (1, 1, 2))
    assert one == same != other


def test_proposals_that_are_shorter_than_asked_cost_what_they_are() -> None:
    """Fails if a look-up that mostly finds nothing is taken to verify k drafts all the same: then K = 0 would win."""
    dear = {k: RoundCost(0.001, 1 + 0.2 * k) for k in KS}
    chooser, luck = AdaptiveK(dear), random.Random(0)
    for _ in range(400):
        found = luck.random() < 0.1
        asked = chooser.choose()
        n = asked if found else 0
        chooser.learn(asked, [Round(n, n, n + 1)], dear[asked].draft_s + dear[n].rest_s)
    assert chooser.best() == 15


class Ticking(Clock):
    """Every round takes what its K is scripted to take."""

    def __init__(self, seconds: dict[int, float], asked: list[int]) -> None:
        super().__init__(torch.device("cpu"))
        self._seconds, self._asked = seconds, asked

    def since_round_s(self) -> float:
        return self._seconds[self._asked[-1]]


class Noting(AdaptiveK):
    """Remembers what it chose."""

    def __init__(self, warm: dict[int, RoundCost]) -> None:
        super().__init__(warm)
        self.asked: list[int] = []

    def choose(self) -> int:
        self.asked.append(super().choose())
        return self.asked[-1]


def test_the_loop_asks_for_what_was_chosen_and_stays_exact() -> None:
    """Fails if the loop drafts another number than the chooser's, the rounds do not say which, or a token changes."""
    target = toy_target()
    text = greedy_text(toy_target(), PROMPT, 200)
    drafter = ScriptedDrafter([text], errs=every(4))
    drafter.open(target.info, rows=1, capacity=target.capacity)
    logits = target.evaluate(0, [0], torch.tensor([PROMPT]), keep=1).logits
    target.commit(0, len(PROMPT))
    warm = {k: RoundCost(0.1, 1 + 0.05 * k) for k in choices(7)}
    chooser = Noting(warm)
    clock = Ticking({k: cost.draft_s + cost.rest_s for k, cost in warm.items()}, chooser.asked)
    turn = Turn(len(PROMPT), [int(logits[0, -1].argmax())])
    decode(target, drafter, [turn], Limits(7, 150, chooser=chooser), row_sampler(target, GREEDY), clock)
    assert turn.output == text[len(PROMPT) : len(PROMPT) + 150]
    assert [done.asked for done in turn.rounds] == chooser.asked
    assert all(done.proposed == min(done.asked or 0, 200 - 150 + 7) for done in turn.rounds)
    assert len(set(chooser.asked)) > 1 and chooser.best() in (3, 5)


def test_warm_costs_are_of_k_verified_drafts_whatever_is_found() -> None:
    """Fails if a K is left out, a round of the measurement proposes less than K, or the row is left behind full."""
    target, drafter = toy_target(), ngram()
    drafter.open(target.info, rows=1, capacity=target.capacity)
    found = measure_round_costs(target, drafter, Limits(7, 20), PROMPT, lambda: row_sampler(target, GREEDY))
    assert list(found) == list(choices(7)) and target.lengths == [0] and drafter.state_bytes(0) == 0
    assert all(cost.draft_s > 0 and cost.rest_s > 0 for cost in found.values())
    assert measure_round_costs(target, drafter, Limits(7, 1), PROMPT, lambda: row_sampler(target, GREEDY)) == {}


@pytest.mark.parametrize("clock", ["host", "both"])
def test_a_turn_decoded_again_asks_as_it_did(clock: str) -> None:
    """Fails if the second pass over a turn chooses anew: its clocks would be another text's, and the run would stop."""
    replays = replayer({"ngram": ngram()}, clock=clock, k=7, max_new_tokens=24)
    costs_found = replays.adapt(three_turns(), "ngram", PROMPT)
    assert list(replays.choosers) == ["ngram"] and set(costs_found) == set(choices(7))
    turns = replayed(replays, three_turns())
    rows = by_drafter(turns, "ngram")
    assert {(row.status, row.k_policy, row.k, row.identical) for row in rows} == {("ok", "auto", 7, True)}
    assert all(len(row.asked_lengths or ()) == row.rounds for row in rows)
    assert {k for row in rows for k in row.asked_lengths or ()} <= set(choices(7))
    assert {(row.k_policy, row.asked_lengths) for row in by_drafter(turns, "none")} == {("fixed", None)}
    asked = [k for row in rows for k in row.asked_lengths or ()]
    assert [each.asked for turn in turns for each in turn.rounds if each.drafter == "ngram"] == asked


def test_a_run_with_k_auto(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if `--k auto:5` is not obeyed, its choices or costs are not written down, or an output changes."""
    folder = tmp_path / "run"
    done = replay(
        tiny, rollouts, folder, "--limit", 1, "--drafter", "suffix", "--k", "auto:5", "--set", "measure.rounds=true"
    )
    assert done.code == 0 and done.last["lossless"] is True
    settings, found = read_manifest(folder)["settings"]["decode"], read_manifest(folder)["round_costs"]
    assert settings["k"] == 5 and settings["k_policy"] == "auto"
    assert set(found) == {"none", "suffix"} and set(found["suffix"]) == {str(k) for k in choices(5)}
    assert {row.k_policy for row in rows_of(folder) if row.drafter == "suffix"} == {"auto"}
    assert {each.asked for each in read_rounds(folder) if each.drafter == "suffix"} <= set(choices(5))
    assert call("report", folder).code == 0 and json.dumps(done.last)


def test_rows_of_a_fixed_and_a_chosen_k_do_not_mix() -> None:
    """Fails if one figure may be taken over rounds of K = 7 and of a K that varied up to 7."""
    rows = by_drafter(replayed(replayer({"ngram": ngram()}), three_turns()), "ngram")
    rows[0].k_policy = "auto"
    with pytest.raises(MeasurementError, match="auto, up to 4"):
        one_condition(rows)


@pytest.mark.parametrize(
    ("k", "most", "policy"), [("auto", 7, "auto"), ("auto:15", 15, "auto"), ("3", 3, "fixed"), ("auto:0", 0, "auto")]
)
def test_auto_in_the_settings(k: str, most: int, policy: str) -> None:
    """Fails if "auto" is not understood wherever a k can be written, or loses the most it may be."""
    for found in (
        load_config(assignments=[f"decode.k={k}"]),
        load_config(flags={"decode.k": int(k) if k == "3" else k}),
    ):
        assert (found.decode.k, found.decode.k_policy) == (most, policy)
    again = load_config(base=found.model_dump(mode="json"))
    assert again == found


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["decode.k=automatic"], "decode.k"),
        (["decode.k=auto:4096"], "at most 1024"),
        (["decode.k=auto", "backend=sglang", "sglang.launch=true"], "decode.k=auto and backend=sglang"),
    ],
)
def test_what_auto_cannot_be(assignments: list[str], message: str) -> None:
    """Fails if a misspelt or impossible "auto" is passed over, or the error does not name the setting."""
    with pytest.raises(ConfigError, match=message):
        load_config(assignments=assignments)
