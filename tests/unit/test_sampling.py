"""Sampling arithmetic: distributions as transformers' warpers make them, and draws that stay inside them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from agentbench_spec.engine.sampling import GREEDY, RowSampler, Sampling, generator, nucleus, pick, probabilities

CPU = torch.device("cpu")


def warped(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution transformers' `generate` would draw from."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(min(sampling.top_k, logits.shape[-1])))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    return warpers(torch.zeros(len(logits), 1, dtype=torch.int64), logits).softmax(-1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.8), (7, 0.5), (0, 0.01), (900, 0.95), (1, 1.0)])
def test_probabilities_are_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    """Fails if the warpers run in another order, or a cut keeps one token more or less."""
    logits = 3 * torch.randn(40, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sampling = Sampling(temperature, top_k, top_p)
    ours = probabilities(logits, sampling)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, warped(logits, sampling), atol=1e-12, rtol=1e-9)
    assert torch.equal(ours > 0, warped(logits, sampling) > 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits_are_scored_in_float32(dtype: torch.dtype) -> None:
    """Fails if a distribution is kept in the model's dtype: draws and acceptance would then use different numbers."""
    assert probabilities(torch.randn(2, 9).to(dtype), Sampling(0.7)).dtype == torch.float32


def test_nucleus_by_hand() -> None:
    """Fails if the token that carries the mass over top_p is dropped, or the rest is not renormalised."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    assert probabilities(logits, Sampling(1.0, 0, 0.6)).tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert probabilities(logits, Sampling(1.0, 0, 0.45)).tolist() == pytest.approx([1, 0, 0, 0])
    exact = torch.tensor([0.25, 0.5, 0.125, 0.125])
    assert nucleus(exact, 0.5).tolist() == [0, 1, 0, 0]  # the mass is reached, not passed
    assert nucleus(exact, 0.75).tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0])


def test_pick_inverts_the_cumulative_sum() -> None:
    """Fails if an interval is closed at the wrong end: each token's own interval is [before, before + p)."""
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25])
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999], dtype=torch.float64)
    assert pick(probs.expand(6, -1), uniform).tolist() == [0, 0, 2, 2, 3, 3]
    assert int(pick(probs, torch.tensor(0.3))) == 2


@pytest.mark.parametrize("shift", [0.0, 1e-30, 1e3])
def test_pick_never_draws_what_has_no_probability(shift: float) -> None:
    """Fails if rounding at either end of [0, 1), or an unnormalised sum, lets an impossible token through."""
    draw = torch.Generator().manual_seed(3)
    probs = torch.rand(2000, 11, generator=draw) * (torch.rand(2000, 11, generator=draw) < 0.3)
    probs[:, 0] = probs[:, -1] = 0
    probs[torch.arange(2000), torch.randint(1, 10, (2000,), generator=draw)] += 0.1
    probs = probs * (shift or 1.0)
    top = torch.nextafter(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    ends = [torch.zeros(2000, dtype=torch.float64), top.expand(2000), torch.rand(2000, generator=draw).double()]
    for uniform in ends:
        drawn = probs.gather(1, pick(probs, uniform)[:, None])
        assert (drawn > 0).all()


def test_draws_follow_the_distribution() -> None:
    """Fails if draws are biased: each count lies within five standard deviations of its expectation."""
    probs, n = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05], dtype=torch.float64), 40_000
    sampler = RowSampler(Sampling(1.0), [generator(CPU, "draws", row) for row in range(n)])
    ids, reported = sampler.draw(probs.log().expand(n, -1))
    counts = ids.bincount(minlength=5).double()
    assert reported is not None
    torch.testing.assert_close(reported[0], probs)
    assert ((counts - n * probs).abs() <= 5 * (n * probs * (1 - probs)).sqrt()).all()


def test_generators_depend_on_every_part_and_on_nothing_else() -> None:
    """Fails if two drafters, turns or rows share their luck, or if ("ab", "c") and ("a", "bc") do."""
    keys = [(0, "r", 1, "none"), (1, "r", 1, "none"), (0, "s", 1, "none"), (0, "r", 2, "none"), (0, "r", 1, "x")]
    keys += [("ab", "c"), ("a", "bc")]
    first = [torch.rand(4, generator=generator(CPU, *key)).tolist() for key in keys]
    torch.manual_seed(99)
    assert first == [torch.rand(4, generator=generator(CPU, *key)).tolist() for key in keys]
    assert len({tuple(drawn) for drawn in first}) == len(keys)


def test_a_row_draws_the_same_whoever_is_beside_it() -> None:
    """Fails if rows share one generator: a batch would then sample other text than single rows."""
    sampler = RowSampler(Sampling(1.0), [generator(CPU, row) for row in range(3)])
    alone = RowSampler(Sampling(1.0), [generator(CPU, 1)])
    for n in (1, 4, 2):
        assert torch.equal(sampler.uniform(n)[1], alone.uniform(n)[0])


def test_greedy_draws_the_top_token_and_reports_no_distribution() -> None:
    """Fails if temperature 0 divides by zero or draws at random."""
    ids, probs = RowSampler(GREEDY, []).draw(torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, -2.0]]))
    assert (ids.tolist(), probs) == ([1, 0], None)
