"""Losses over a part of the vocabulary: the tokens that matter, and a fresh sample that stands for the rest.

With a vocabulary of 49k and small nets, most of a step on a CPU is logits of tokens that never occur. A shortlist holds
the most frequent supervised tokens, the labels of the text, and a uniform sample of all others, whose logits are raised
by log(others / sampled): the softmax's denominator is then that of the whole vocabulary in expectation (sampled
softmax). Draft, target and teacher are compared over the same shortlist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Shortlist", "draw_shortlist", "frequent_tokens"]

_SAMPLED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Shortlist:
    """C tokens that stand for the vocabulary."""

    ids: Tensor
    """[C] int64, ascending."""
    shift: Tensor
    """[C] float32: added to their logits, 0 but for the sampled ones."""

    def index_of(self, labels: Tensor) -> Tensor:
        """Place of each label [n] in `ids`; labels must be in it."""
        return torch.searchsorted(self.ids, labels)


def frequent_tokens(counts: Tensor, size: int) -> Tensor:
    """The tokens with counts [V] above 0, at most the 3/4 of `size` with the highest; int64, ascending."""
    most = min(int((counts > 0).sum()), size - int(size * _SAMPLED_SHARE))
    return counts.argsort(descending=True, stable=True)[:most].sort().values


def draw_shortlist(
    frequent: Tensor, labels: Tensor, size: int, vocab_size: int, generator: torch.Generator
) -> Shortlist | None:
    """`size` tokens: frequent [F], labels (-1: none), and a sample of the rest; None: that is the whole vocabulary."""
    if size >= vocab_size:
        return None
    sure = torch.zeros(vocab_size, dtype=torch.bool)
    sure[frequent] = True
    sure[labels[labels >= 0].cpu()] = True
    others = (~sure).nonzero().flatten()
    sampled = others[torch.randperm(len(others), generator=generator)[: max(size - int(sure.sum()), 1)]]
    shift = torch.zeros(vocab_size)
    shift[sampled] = math.log(len(others) / max(len(sampled), 1))
    sure[sampled] = True
    ids = sure.nonzero().flatten()
    return Shortlist(ids.to(labels.device), shift[ids].to(labels.device))
