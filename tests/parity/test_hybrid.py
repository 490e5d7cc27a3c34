"""Look-up first, a learned drafter otherwise: who guesses, that nothing is lost, and that the output stays exact."""

from __future__ import annotations

import pytest
import torch
from agentbench_spec_drafters import dlite, dspark, hybrid, ngram, suffix
from golden_block import DATA, engine
from torch import Tensor

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import ConfigError, Drafter, DrafterSpec, Proposal
from agentbench_spec.plugins import load_drafter
from agentbench_spec.testing import Played, play_turns, toy_target, toy_turns


class Counted(Drafter):
    """Guesses token 1 and counts how often it was asked for tokens, and told that a round begins."""

    def __init__(self) -> None:
        self.spec = DrafterSpec(name="counted", history_free=True, max_tokens=3)
        self.asked, self.told = 0, 0

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self.told += 1
        self.asked += k > 0
        return Proposal(ids=torch.ones(len(anchor), k, dtype=torch.int64))


def played(drafter: Drafter, *, k: int = 4) -> list[Played]:
    target = toy_target()
    drafter.open(target.info, rows=1, capacity=512)
    return play_turns(target, {"own": drafter}, toy_turns(), k=k)


@pytest.mark.parametrize("lookup", [ngram.make, suffix.make])
def test_each_round_says_who_guessed_and_the_other_part_rests_meanwhile(lookup: object) -> None:
    """Fails if the other part runs in a round it does not guess in, misses one, or a round names the wrong part."""
    other = Counted()
    turns = played(hybrid.make([lookup(), other], min_match=2))  # type: ignore[operator]
    rounds = [done for turn in turns for done in turn.turns["own"].rounds]
    by_other = [done for done in rounds if done.source == "counted"]
    assert {done.source for done in rounds} == {"counted", lookup().spec.name}  # type: ignore[operator]
    assert (other.asked, other.told) == (len(by_other), len(rounds))
    assert {done.proposed for done in by_other} == {3}


def test_a_match_that_is_never_long_enough_leaves_the_other_part_alone() -> None:
    """Fails if the pair drafts otherwise than its other part where the look-up never guesses."""
    alone, pair = played(ngram.make(min_n=2)), played(hybrid.make([suffix.make(), ngram.make(min_n=2)], min_match=999))
    for one, both in zip(alone, pair, strict=True):
        assert [tuple(r)[:3] for r in one.turns["own"].rounds] == [tuple(r)[:3] for r in both.turns["own"].rounds]


class Asking(Counted):
    """Wants to observe again from position 3 after any cut."""

    def truncate(self, row: int, length: int) -> int:
        return 3


def test_what_a_part_must_be_shown_again_is_asked_for() -> None:
    """Fails if the engine is not told that a part can no longer go back so far."""
    pair = hybrid.make([suffix.make(), Asking()])
    pair.open(toy_target().info, rows=1, capacity=16)
    assert pair.truncate(0, 5) == 3


def test_state_of_both_parts_is_counted() -> None:
    """Fails if a part's bytes are left out, or a history-free part is taken to make the pair so."""
    pair = hybrid.make([suffix.make(), suffix.make()])
    both, one = (played(own)[-1].state_bytes["own"] for own in (pair, suffix.make()))
    assert both == 2 * one > 0
    mixed = hybrid.make([suffix.make(), dlite.make(DATA / "dlite-g1" / "draft")])
    assert not mixed.spec.history_free
    assert mixed.spec.hidden_scope == "last"


@pytest.mark.parametrize("name", ["dlite-g2", pytest.param("dspark-rnn", marks=pytest.mark.slow)])
def test_every_law_holds_with_a_learned_part(name: str) -> None:
    """Fails if a round of the look-up leaves the learned state behind, or a thrown-away turn does not come back."""
    learned = (dlite if name.startswith("dlite") else dspark).make
    target = engine(1, 400)
    report = check(lambda: hybrid.make([suffix.make(), learned(DATA / name / "draft")], min_match=2), target=target)
    assert {f.law: f.message for f in report.findings if f.outcome == "failed"} == {}
    passed = {f.law for f in report.findings if f.outcome == "passed"}
    assert passed >= {"lossless", "incremental", "no-trace", "truncate"}


def test_mixed_sources_follow_the_target_exactly() -> None:
    """Fails if a copied token is accepted by another rule than a point mass, or a drawn one loses its distribution."""

    def make() -> Drafter:
        return hybrid.make([suffix.make(), dspark.make(DATA / "dspark-rnn" / "draft")], min_match=1)

    prompts = [[token + 1 for token in toy_turns(vocab=64)[0]]]
    one, many = engine(1, 400), engine(256, 64)
    report = check(make, benches={"golden": Bench(make, one, prompts, sampling_target=many)}, only={"distribution"})
    assert [(f.outcome, f.message) for f in report.findings if f.outcome != "passed"] == []


def test_parts_are_named_with_the_drafter_and_take_options_of_their_own() -> None:
    """Fails if the parts, or the options for one of them, are not found by name, or a wrong one passes unseen."""
    found = load_drafter("hybrid=suffix+ngram", min_match=3, part_options={"suffix": {"min_match": 2}})
    assert (found.spec.name, found.spec.version) == ("hybrid", "suffix 0 + ngram 0")
    with pytest.raises(ConfigError, match=r"part_options.*'suffx'"):
        load_drafter("hybrid=suffix+ngram", part_options={"suffx": {}})
    with pytest.raises(ConfigError, match=r"1 parts; write hybrid=LOOKUP"):
        load_drafter("hybrid=suffix")
    with pytest.raises(ConfigError, match="'none' looks nothing up"):
        load_drafter("hybrid=none+suffix")
    with pytest.raises(ConfigError, match="min_match is 0"):
        load_drafter("hybrid=suffix+ngram", min_match=0)
