"""Losses over a shortlist: what it holds, and that each drafter's head agrees with its whole-vocabulary logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import trainkit as kit

from agentbench_spec.train.shortlist import Shortlist, draw_shortlist, frequent_tokens
from agentbench_spec.train.step import example_of

COUNTS = torch.tensor([0, 5, 0, 9, 1, 0, 2, 0, 0, 3])


def drawn(seed: int, *, frequent: tuple[int, ...] = (1, 3), labels: tuple[int, ...] = (-1, 7), size: int = 6) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return draw_shortlist(torch.tensor(frequent), torch.tensor(labels), size, 10, generator)


def test_frequent_tokens_leave_a_quarter_for_the_sample() -> None:
    """Fails if tokens that never occur count as frequent, or if nothing is left to sample."""
    assert frequent_tokens(COUNTS, 4).tolist() == [1, 3, 9]
    assert frequent_tokens(COUNTS, 100).tolist() == [1, 3, 4, 6, 9]


def test_a_shortlist_holds_frequent_tokens_labels_and_a_weighted_sample() -> None:
    """3 of the 7 other tokens are drawn, so each stands for 7/3; fails if a label may be missing."""
    found = drawn(0)
    sure = {1, 3, 7}
    assert sure < set(found.ids.tolist()) and found.ids.tolist() == sorted(set(found.ids.tolist()))
    assert len(found.ids) == 6
    for token, shift in zip(found.ids.tolist(), found.shift.tolist(), strict=True):
        assert shift == pytest.approx(0.0 if token in sure else math.log(7 / 3))
    assert found.ids[found.index_of(torch.tensor([7, 1]))].tolist() == [7, 1]


def test_the_denominator_is_right_in_expectation() -> None:
    """Fails if sampled logits are not raised, or by the wrong amount."""
    logits = torch.linspace(-1, 2, 10)
    draws = [drawn(seed) for seed in range(2000)]
    mean = sum(float((logits[d.ids] + d.shift).exp().sum()) for d in draws) / len(draws)
    assert mean == pytest.approx(float(logits.exp().sum()), rel=0.01)


def test_a_shortlist_as_long_as_the_vocabulary_is_none() -> None:
    """Fails if a run on a small vocabulary pays for a selection of everything."""
    assert drawn(0, size=10) is None


@pytest.mark.parametrize("name", ["dflash", "dspark", "dlite"])
def test_losses_over_a_shortlist_are_those_of_the_selected_logits(name: str) -> None:
    """Fails if a head or the target picks other tokens than the labels' index means, or forgets the shift."""
    target = kit.small_target()
    texts = kit.random_texts()
    trainee = kit.make_trainee(name, target, texts)
    step = kit.step_of(trainee, target)
    phase = trainee.phases[-1]
    trainee.enter(phase, phase.stages[-1], fresh=True)
    data = kit.online(target, trainee, texts)
    example = example_of(texts[0], data.features[0], trainee, torch.device("cpu"), torch.float64)
    anchors = torch.tensor([2, 7])
    short = step.with_shortlist(example, torch.tensor([3, 5]), 30, torch.Generator().manual_seed(0)).shortlist
    assert isinstance(short, Shortlist) and len(short.ids) == 30
    found = step(replace(example, shortlist=short), anchors, {"ce": 1.0, "tv": 1.0}).losses
    with torch.no_grad():
        prediction = trainee.predict(example.sample, anchors)
        draft = prediction.logits(prediction.states)[..., short.ids] + short.shift
    after = anchors[:, None] + torch.arange(trainee.k)
    p = (target.info.lm_head(example.final[after])[..., short.ids] + short.shift).softmax(-1)
    weights = torch.tensor(trainee.position_weights, dtype=torch.float64)
    labels = short.index_of(example.greedy[after])
    ce = -draft.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    assert float(found["ce"]) == pytest.approx(float((ce * weights).sum()), rel=1e-5)
    assert float(found["tv"]) == pytest.approx(float(((draft.softmax(-1) - p).abs().sum(-1) * weights).sum()), rel=1e-5)
