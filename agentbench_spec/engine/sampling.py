"""Pure sampling arithmetic and the seeded draws behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target chooses a token; temperature 0, or one token to choose from, is greedy and ignores the rest."""

    temperature: float = 0.0
    top_k: int = 0
    """Keep the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens with at least this mass; 1: all."""

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.temperature == 0 or self.top_k == 1


GREEDY = Sampling()


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Distribution the target samples from: temperature, then top-k, then softmax, then top-p, renormalised.

    logits [..., V] -> [..., V] float32 (float64 logits stay float64). The order is that of transformers' warpers.
    """
    scores = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32) / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        floor = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < floor, float("-inf"))
    probs = scores.softmax(-1)
    return nucleus(probs, sampling.top_p) if sampling.top_p < 1 else probs


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """probs [..., V] cut to the smallest set of most likely tokens whose mass reaches `top_p`, renormalised."""
    ordered, order = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p, ordered, torch.zeros_like(ordered))
    return torch.zeros_like(probs).scatter_(-1, order, kept / kept.sum(-1, keepdim=True))


def pick(probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per distribution by inverting its cumulative sum.

    probs [..., V] (need not be normalised), uniform [...] in [0, 1) -> ids [...] int64. Tokens of probability 0 are
    never drawn.
    """
    cumulative = probs.to(torch.float64).cumsum(-1)
    threshold = uniform.to(torch.float64)[..., None] * cumulative[..., -1:]
    ids = torch.searchsorted(cumulative, threshold, right=True)
    last = (probs > 0).to(torch.int64).cumsum(-1).argmax(-1, keepdim=True)  # guards rounding at the very top
    return torch.minimum(ids, last)[..., 0]


def generator(device: torch.device, *parts: object) -> torch.Generator:
    """A random generator that depends on `parts` only, such as (seed, rollout, turn, drafter)."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def choose(logits: Tensor, sampling: Sampling, *parts: object) -> Tensor:
    """One token [] of the target's own, logits [V]: the likeliest when greedy, else a draw by `parts` only."""
    if sampling.greedy:
        return logits.argmax()
    source = generator(logits.device, *parts)
    draw = torch.rand((), generator=source, dtype=torch.float64, device=logits.device)
    return pick(probabilities(logits, sampling), draw)


class RowSampler:
    """Draws for B rows, each from its own generator, so that no row's luck depends on its neighbours."""

    def __init__(self, sampling: Sampling, generators: Sequence[torch.Generator]):
        self.sampling = sampling
        self._generators = generators

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.sampling.greedy

    def uniform(self, n: int) -> Tensor:
        """[B, n] float64 in [0, 1)."""
        return torch.stack([torch.rand(n, generator=g, dtype=torch.float64, device=g.device) for g in self._generators])

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """logits [B, V] -> token ids [B] int64 and the distribution they came from [B, V] (None when greedy)."""
        if self.greedy:
            return logits.argmax(-1), None
        probs = probabilities(logits, self.sampling)
        return pick(probs, self.uniform(1)[:, 0]), probs
