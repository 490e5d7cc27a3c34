"""A test of draws whose distributions differ from draw to draw: are they what was claimed?"""

from __future__ import annotations

import torch
from scipy.stats import chi2
from torch import Tensor

_LEAST_EXPECTED = 5.0


class Score:
    """How far draws are from their own distributions, summed up by token and by rank of likelihood.

    A draw x from p adds onehot(x) - p, whose mean is 0 and whose covariance is diag(p) - p p'; so the sum is tested by
    a quadratic form, which for equal p is Pearson's chi-square. By rank, distributions that are too sharp or too flat
    show, whichever token is the likeliest each time.
    """

    def __init__(self, vocab: int) -> None:
        self.draws = 0
        self._impossible = 0
        self._came = torch.zeros(2, vocab, dtype=torch.float64)
        self._expected = torch.zeros(2, vocab, dtype=torch.float64)
        self._products = torch.zeros(2, vocab, vocab, dtype=torch.float64)

    def add(self, claimed: Tensor, drawn: Tensor) -> None:
        """claimed [m, V]: probabilities; drawn [m] int64: the token drawn from each."""
        p = claimed.double().cpu()
        p = p / p.sum(-1, keepdim=True)
        hit = torch.zeros_like(p).scatter_(1, drawn.cpu()[:, None], 1.0)
        self.draws += len(p)
        self._impossible += int(((p * hit).sum(-1) <= 0).sum())
        order = p.argsort(dim=-1, descending=True, stable=True)
        for kind, (each, came) in enumerate(((p, hit), (p.gather(1, order), hit.gather(1, order)))):
            self._came[kind] += came.sum(0)
            self._expected[kind] += each.sum(0)
            self._products[kind] += each.T @ each

    @property
    def p_value(self) -> float:
        """Probability of draws this far off if the claims hold; 0 where something impossible was drawn, 1 if few."""
        if self._impossible:
            return 0.0
        return min(1.0, 2 * min(self._p(kind) for kind in range(2)))

    def _p(self, kind: int) -> float:
        often = self._expected[kind] >= _LEAST_EXPECTED
        if int(often.sum()) < 2:
            return 1.0
        apart = (self._came[kind] - self._expected[kind])[often]
        spread = (self._expected[kind].diag() - self._products[kind])[often][:, often]
        # a direction that a handful of draws moves, such as all that is not rare, is described by no chi-square
        variances, directions = torch.linalg.eigh(spread)
        told = variances >= _LEAST_EXPECTED
        freedom = int(told.sum())
        statistic = float(((apart @ directions[:, told]) ** 2 / variances[told]).sum())
        return float(chi2.sf(statistic, freedom)) if freedom else 1.0

    def worst(self) -> str:
        """The token that came most unlike what was expected, in words."""
        apart = (self._came[0] - self._expected[0]).abs() / self._expected[0].clamp_min(1).sqrt()
        token = int(apart.argmax())
        came, expected = int(self._came[0, token]), float(self._expected[0, token])
        return f"token {token} came {came} times, {expected:.1f} expected"
