"""Which drafts stand: by hand, and in distribution (field case 9)."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from agentbench_spec.engine.sampling import pick
from agentbench_spec.engine.verify import accept_equal, accept_sampled, acceptance_probability, leading, residual

P = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.0, 1.0, 0.0]]], dtype=torch.float64)
"""[1, 3, 3]: the target after the anchor, after draft 1, after draft 2."""
Q = torch.tensor([[[0.2, 0.6, 0.2], [0.5, 0.2, 0.3]]], dtype=torch.float64)
DRAFTS = torch.tensor([[1, 0]])
"""p / q: 0.3 / 0.6, then 0.1 / 0.5."""


def uniform(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_leading_run() -> None:
    """Fails if a True after a False counts, or a flag beyond the row's count does."""
    flags = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4])
    assert leading(flags, None).tolist() == [2, 4, 0]
    assert leading(flags, torch.tensor([1, 3, 4])).tolist() == [1, 3, 0]


def test_equal_choice_by_hand() -> None:
    """Fails if the next token is not the target's own after the last draft that stands."""
    choices = torch.tensor([[5, 6, 7, 8]] * 5)
    drafts = torch.tensor([[5, 6, 7], [5, 9, 7], [9, 6, 7], [5, 6, 7], [5, 6, 7]])
    verdict = accept_equal(choices, drafts, torch.tensor([3, 3, 3, 2, 0]))
    assert verdict.matched.tolist() == [3, 1, 0, 2, 0]
    assert verdict.next_ids.tolist() == [8, 6, 5, 7, 5]


def test_no_drafts_is_plain_decoding() -> None:
    """Fails if k = 0 needs special handling anywhere: the target's one choice is the round's token."""
    none = torch.empty(2, 0, dtype=torch.int64)
    verdict = accept_equal(torch.tensor([[4], [2]]), none)
    assert (verdict.matched.tolist(), verdict.next_ids.tolist()) == ([0, 0], [4, 2])
    matched, following = accept_sampled(P[:, :1], none[:1], None, uniform()[:, :0])
    assert matched.tolist() == [0] and torch.equal(following, P[:, 0])


def test_acceptance_by_hand() -> None:
    """Fails if the ratio is upside down or not capped at one."""
    assert acceptance_probability(P[:, :2], DRAFTS, Q)[0].tolist() == pytest.approx([0.5, 0.2])
    assert acceptance_probability(P[:, :2], torch.tensor([[0, 2]]), Q)[0].tolist() == [1, 1]
    assert acceptance_probability(P[:, :2], DRAFTS, None)[0].tolist() == [0.3, 0.1]


@pytest.mark.parametrize(
    ("u", "matched", "following"),
    [
        ((0.49, 0.19), 2, [0, 1, 0]),  # both stand: the bonus row
        ((0.49, 0.2), 1, [0, 0, 1]),  # residual of (0.1, 0.2, 0.7) - (0.5, 0.2, 0.3)
        ((0.5, 0.0), 0, [1, 0, 0]),  # residual of (0.5, 0.3, 0.2) - (0.2, 0.6, 0.2)
    ],
)
def test_rejection_by_hand(u: tuple[float, float], matched: int, following: list[float]) -> None:
    """Fails if a uniform equal to the acceptance probability accepts, or a residual is taken from the wrong row."""
    found, after = accept_sampled(P, DRAFTS, Q, uniform(*u))
    assert found.tolist() == [matched]
    assert after[0].tolist() == pytest.approx(following)


def test_a_count_ends_the_block_without_a_rejection() -> None:
    """Fails if a draft beyond the count is verified, or if its absence is taken for a rejection (residual, not p)."""
    found, after = accept_sampled(P, DRAFTS, Q, uniform(0, 0), torch.tensor([1]))
    assert found.tolist() == [1] and torch.equal(after, P[:, 1])
    found, after = accept_sampled(P, DRAFTS, Q, uniform(0, 0), torch.tensor([0]))
    assert found.tolist() == [0] and torch.equal(after, P[:, 0])


def test_a_point_mass_that_is_rejected_is_not_drawn_again() -> None:
    """Fails if the residual of a point mass keeps the rejected token."""
    found, after = accept_sampled(P, DRAFTS, None, uniform(0.3, 0.0))
    assert found.tolist() == [0]
    assert after[0].tolist() == pytest.approx([0.5 / 0.7, 0, 0.2 / 0.7])


def test_impossible_drafts_are_never_accepted() -> None:
    """Fails if a uniform of exactly 0 lets a token through that the target gives no probability."""
    p = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    for q in (None, torch.tensor([[[0.5, 0.5]]])):
        found, after = accept_sampled(p, torch.tensor([[0]]), q, torch.zeros(1, 1, dtype=torch.float64))
        assert found.tolist() == [0] and after[0].tolist() == [0, 1]


def test_equal_distributions_leave_no_nan() -> None:
    """Fails if p = q makes the residual 0 / 0: rounding can still reject there."""
    p = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(p, p.clone()), p)
    assert torch.equal(residual(p, p + torch.tensor([0.0, 1e-9])), p)


DRAWS = 40_000


def emitted(q: Tensor | None, *, always: bool = False) -> Counter[tuple[int, int]]:
    """First two tokens of DRAWS rounds of a drafter q (None: a fixed guess) against a target whose second
    distribution depends on the first token; always: the negative control, which accepts every draft."""
    draw = torch.Generator().manual_seed(7)

    def chance(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    guess = torch.tensor([4, 1]).expand(DRAWS, -1) if q is None else pick(q.expand(DRAWS, 2, -1), chance(DRAWS, 2))
    p = torch.stack([FIRST.expand(DRAWS, -1), SECOND[guess[:, 0]], SECOND[guess[:, 1]]], dim=1)
    accept = torch.zeros(DRAWS, 2, dtype=torch.float64) if always else chance(DRAWS, 2)
    if always:
        matched, after = torch.full((DRAWS,), 2), p[:, 2]
    else:
        matched, after = accept_sampled(p, guess, None if q is None else q.expand(DRAWS, 2, -1), accept)
    following = pick(after, chance(DRAWS))
    first = torch.where(matched > 0, guess[:, 0], following)
    late = pick(SECOND[first], chance(DRAWS))  # a round that ended on its first token: the next one goes on from it
    second = torch.where(matched > 1, guess[:, 1], torch.where(matched == 1, following, late))
    return Counter(zip(first.tolist(), second.tolist(), strict=True))


def _distributions(rows: int, seed: int) -> Tensor:
    logits = 1.2 * torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.softmax(-1)


FIRST, SECOND = _distributions(1, 1)[0], _distributions(8, 2)
DRAFTER = _distributions(1, 3)[0]


def p_value(counts: Counter[tuple[int, int]]) -> float:
    exact = FIRST[:, None] * SECOND
    observed = [counts[a, b] for a in range(8) for b in range(8)]
    return float(chisquare(observed, (exact / exact.sum() * DRAWS).flatten().tolist()).pvalue)


@pytest.mark.parametrize("q", [DRAFTER, None], ids=["full", "point mass"])
def test_emitted_pairs_follow_the_target(q: Tensor | None) -> None:
    """Fails if the rejection rule is inexact by little: chi-square over all 64 pairs of an 8-token vocabulary."""
    assert float((FIRST[:, None] * SECOND).min()) * DRAWS > 5
    assert p_value(emitted(q)) > 1e-3


def test_accepting_everything_is_caught() -> None:
    """Negative control: fails if the chi-square test above cannot see a drafter that is never rejected."""
    assert p_value(emitted(DRAFTER, always=True)) < 1e-9
    nearly = (FIRST.log() / 1.15).softmax(-1)  # the target itself, a little too warm
    assert p_value(emitted(nearly, always=True)) < 1e-9
