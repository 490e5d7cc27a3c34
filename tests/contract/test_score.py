"""The score of draws: right draws pass however rare some tokens are, wrong ones fail."""

from __future__ import annotations

import pytest
import torch

from agentbench_spec.conformance.score import Score


def p_of(claimed: torch.Tensor, drawn: torch.Tensor) -> float:
    score = Score(claimed.shape[1])
    score.add(claimed, drawn)
    return score.p_value


def test_a_single_draw_of_a_token_that_is_hardly_ever_drawn_is_no_fault() -> None:
    """Once in 20,000 draws a token of probability 1e-6. Fails if it alone weighs as much as a wrong distribution."""
    claimed = torch.tensor([0.7, 0.3 - 1e-6, 1e-6], dtype=torch.float64).expand(20000, 3)
    drawn = torch.zeros(20000, dtype=torch.int64)
    drawn[:6000], drawn[-1] = 1, 2
    assert p_of(claimed, drawn) > 0.5


@pytest.mark.parametrize("rare", [0.0, 1e-5, 1e-3])
def test_right_draws_pass_and_bent_ones_fail(rare: float) -> None:
    """Fails if a bend of a tenth between common tokens goes unseen, or right draws are refused, beside rare ones."""
    claimed = torch.tensor([0.5 - rare, 0.3, 0.2, rare], dtype=torch.float64).expand(20000, 4)
    bent = torch.tensor([0.55 - rare, 0.25, 0.2, rare], dtype=torch.float64).expand(20000, 4)
    generator = torch.Generator().manual_seed(5)
    right, wrong = (torch.multinomial(p, 1, generator=generator)[:, 0] for p in (claimed, bent))
    assert p_of(claimed, right) > 1e-3
    assert p_of(claimed, wrong) < 1e-9
