"""Anchors, weights, losses, normalisation and schedule against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agentbench_spec.errors import ConfigError
from agentbench_spec.train.anchors import block_weights, sample_anchors, valid_anchors
from agentbench_spec.train.interface import Phase, Stage, position_weights
from agentbench_spec.train.losses import RowInputs, row_losses, weighted_total
from agentbench_spec.train.schedule import fade, learning_rate, objective, place_of, stage_steps


def mask(*positions: int, length: int) -> torch.Tensor:
    supervised = torch.zeros(length, dtype=torch.bool)
    supervised[list(positions)] = True
    return supervised


def test_an_anchor_and_its_successor_are_supervised() -> None:
    """Fails if a reply's last token starts a block, or a token just before a reply does."""
    assert valid_anchors(mask(3, 4, 5, 8, length=20), k=3).tolist() == [3, 4]


def test_anchors_leave_room_for_a_block_and_a_state_before_them() -> None:
    """Fails at position 0, which no target state precedes, and where a label would lie beyond the text (T - 1 - K)."""
    everything = torch.ones(10, dtype=torch.bool)
    assert valid_anchors(everything, k=3).tolist() == [1, 2, 3, 4, 5, 6]
    assert valid_anchors(everything[:4], k=3).tolist() == []


def test_anchors_are_drawn_without_replacement_and_fresh() -> None:
    """Fails if a position is drawn twice, if all draws are alike, or if a seed does not settle the draw."""
    valid = torch.arange(10, 60)
    draws = [sample_anchors(valid, 20, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert all(len(set(draw.tolist())) == 20 and draw.tolist() == sorted(draw.tolist()) for draw in draws)
    assert draws[0].tolist() == draws[1].tolist() != draws[2].tolist()
    assert sample_anchors(valid, None, torch.Generator()).tolist() == valid.tolist()


def test_every_anchor_is_as_likely_as_any_other() -> None:
    """Fails for a biased draw, such as the first n: 400 draws of 5 out of 20 give each about 100."""
    source = torch.Generator().manual_seed(0)
    drawn = torch.cat([sample_anchors(torch.arange(20), 5, source) for _ in range(400)])
    counts = torch.bincount(drawn, minlength=20).double()
    assert float(((counts - 100) ** 2 / 75).sum()) < 44  # chi-square-like, 19 degrees of freedom


def test_position_weights_divide_by_gamma() -> None:
    """Fails for exp(-(i-1) * gamma), the misprint that trains the first token only."""
    assert position_weights(7, 4.0) == pytest.approx(
        (1, 0.778801, 0.606531, 0.472367, 0.367879, 0.286505, 0.223130), rel=1e-5
    )
    assert position_weights(3, None) == position_weights(3, 0) == (1, 1, 1)


def test_block_weights_stop_at_the_first_unsupervised_position() -> None:
    """Fails if a block reaches over a gap into the next reply."""
    supervised = mask(1, 2, 3, 5, 6, length=9)
    weights = block_weights(supervised, torch.tensor([1, 5]), torch.tensor([1.0, 0.5, 0.25]))
    assert weights.tolist() == [[1.0, 0.5, 0.0], [1.0, 0.0, 0.0]]


STUDENT = torch.tensor([[1.0, 0.0], [0.5, -0.5]])
TEACHER = torch.tensor([[0.0, 1.0], [-0.5, 0.5]])
WEIGHTS = torch.tensor([1.0, 3.0])


def test_forward_kl_example_of_the_specification() -> None:
    """Both rows have logits one apart, so KL = 2 sigma(1) - 1; total 2.5 times the weighted mean, denominator 4."""
    found = row_losses(["kl"], RowInputs(STUDENT, torch.zeros(2, dtype=torch.int64), teacher=TEACHER))["kl"]
    each = 2 / (1 + math.exp(-1)) - 1
    assert found.tolist() == pytest.approx([each, each])
    numerator = weighted_total({"kl": (WEIGHTS * found).sum()}, {"kl": 2.5})
    assert float(numerator) == pytest.approx(2.5 * 4 * each)
    assert float(numerator / WEIGHTS.sum()) == pytest.approx(2.5 * each)


def test_kl_goes_from_the_teacher_to_the_student() -> None:
    """Fails for the reverse divergence: with p = (3/4, 1/4) and q = (1/2, 1/2) they differ."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[math.log(3.0), 0.0]])
    found = row_losses(["kl"], RowInputs(student, torch.tensor([0]), teacher=teacher))["kl"]
    assert float(found) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_the_other_losses_by_hand() -> None:
    """q = (1/2, 1/4, 1/4), p = (1/4, 1/2, 1/4): L1 is 1/2 and not 1/4; the confidence's soft label is 3/4."""
    logits, target = torch.log(torch.tensor([[0.5, 0.25, 0.25]])), torch.tensor([[0.25, 0.5, 0.25]])
    rows = RowInputs(logits, torch.tensor([1]), target=target, confidence=torch.tensor([0.0]))
    found = {name: float(value) for name, value in row_losses(["ce", "soft", "tv", "confidence"], rows).items()}
    soft = 0.25 * math.log(2) + 0.75 * math.log(4)
    assert found == pytest.approx({"ce": math.log(4), "soft": soft, "tv": 0.5, "confidence": math.log(2)})


def test_confidence_learns_from_the_overlap_and_does_not_move_it() -> None:
    """The gradient at logit 0 is sigmoid(0) - 3/4; fails if the soft label is not detached from the draft."""
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])).requires_grad_()
    target, confidence = torch.tensor([[0.25, 0.5, 0.25]]), torch.zeros(1, requires_grad=True)
    rows = RowInputs(logits, torch.tensor([1]), target=target, confidence=confidence)
    row_losses(["confidence"], rows)["confidence"].sum().backward()
    assert confidence.grad is not None and confidence.grad.tolist() == pytest.approx([-0.25])
    assert logits.grad is None or not logits.grad.any()


def test_a_loss_without_its_counterpart_is_an_error() -> None:
    """Fails if a missing teacher silently counts as no loss."""
    with pytest.raises(ValueError, match="kl"):
        row_losses(["kl"], RowInputs(STUDENT, torch.zeros(2, dtype=torch.int64)))


def test_learning_rate_rises_linearly_then_falls_as_a_cosine() -> None:
    """10 of 100 steps of warm-up: (t + 1) / 10 of the peak, then the half cosine to 0 over the other 90."""
    rates = [learning_rate(step, 100, peak=2.0, warmup=0.1) for step in range(101)]
    assert rates[0] == pytest.approx(0.2) and rates[9] == pytest.approx(2.0) and rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(1.0) and rates[100] == pytest.approx(0.0)
    assert learning_rate(0, 10, peak=1.0, warmup=0.04) == 1.0  # a warm-up of less than one step is none


def test_cross_fade_is_a_half_cosine() -> None:
    """0 at the first step, 1 at the last, 1/2 in the middle and where there is only one step."""
    assert [fade(step, 5) for step in range(5)] == pytest.approx([0, 0.1464466, 0.5, 0.8535534, 1])
    assert fade(0, 1) == 0.5


PHASES = (
    Phase("teacher", (Stage("teacher", 1.0, {"ce": 1.0}),)),
    Phase(
        "student",
        (
            Stage("stage 1", 1, {"kl": 1.0}),
            Stage("transition", 1, {"kl": 1.0}, fade_to={"ce": 0.1, "tv": 1.0}),
            Stage("stage 2", 6, {"ce": 0.1, "tv": 1.0}),
        ),
    ),
)


def test_stages_follow_each_other_and_share_one_schedule() -> None:
    """1 : 1 : 6 of 16 steps are 2, 2, 12; the step within the phase runs on through the stages."""
    places = [place_of(step, PHASES, [4, 16]) for step in range(20)]
    names = [place.stage.name for place in places]
    assert names == ["teacher"] * 4 + ["stage 1"] * 2 + ["transition"] * 2 + ["stage 2"] * 12
    assert [place.step for place in places] == [*range(4), *range(16)]
    assert objective(places[6]) == {"kl": 1.0, "ce": 0.0, "tv": 0.0}
    assert objective(places[7]) == pytest.approx({"kl": 0.0, "ce": 0.1, "tv": 1.0})


def test_too_few_steps_for_the_stages_are_refused() -> None:
    """Fails if a stage silently disappears."""
    with pytest.raises(ConfigError, match="stage 1"):
        stage_steps(3, PHASES[1].stages)


def test_kl_from_the_target_is_forward_kl_and_nothing_where_both_agree() -> None:
    """From (0.5, 0.5) to softmax(log 3, 0) = (0.75, 0.25): log 2 - log(3) / 2. A token the target never says adds 0.

    Fails if the direction is turned round, or p log p of a zero makes the loss NaN.
    """
    logits = torch.tensor([[math.log(3.0), 0.0], [math.log(3.0), 0.0], [20.0, -200.0]])
    target = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])
    found = row_losses(["kl_target"], RowInputs(logits, torch.zeros(3, dtype=torch.int64), target))["kl_target"]
    assert found.tolist() == pytest.approx([math.log(2) - math.log(3) / 2, 0, 0], abs=1e-6)


def test_kl_from_the_target_is_soft_cross_entropy_less_entropy() -> None:
    """Values differ by p's entropy, gradients by 0. Fails if one is over another vocabulary or temperature."""
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 11, generator=draw, requires_grad=True)
    target = torch.randn(5, 11, generator=draw).softmax(-1)
    found = row_losses(["kl_target", "soft"], RowInputs(logits, torch.zeros(5, dtype=torch.int64), target))
    entropy = -(target * target.log()).sum(-1)
    assert found["kl_target"].tolist() == pytest.approx((found["soft"] - entropy).tolist(), abs=1e-5)
    (one,) = torch.autograd.grad(found["kl_target"].sum(), logits, retain_graph=True)
    (other,) = torch.autograd.grad(found["soft"].sum(), logits)
    assert torch.allclose(one, other, atol=1e-6)
