"""Which draft tokens stand, and which token follows them: pure functions over one round.

Letters as in the papers: p is the target's distribution, q the drafter's. Axes: B rows, k drafted, V vocabulary.
Source: Leviathan et al. 2023 and Chen et al. 2023 for the rejection rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RESIDUAL_FLOOR = 1e-8
"""A residual mass up to this is rounding noise: p itself is used."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one round."""

    matched: Tensor
    """[B] int64: accepted drafts, before any stop rule."""
    next_ids: Tensor
    """[B] int64: the target's token after them (a correction, or the bonus token if all were accepted)."""


def leading(flags: Tensor, count: Tensor | None) -> Tensor:
    """Length of each row's leading run of True among its first `count` flags. flags [B, k] bool -> [B] int64."""
    if count is not None:
        flags = flags & (torch.arange(flags.shape[1], device=flags.device) < count[:, None])
    return flags.to(torch.int64).cumprod(1).sum(1)


def sound(logits: Tensor) -> Tensor:
    """Leading positions of each row whose logits name a choice. logits [B, n, V] -> [B] int64.

    NaN, +inf, or nothing finite at all does not; -inf among finite ones is a vocabulary that is masked or padded.
    """
    return leading(logits.amax(-1).isfinite(), None)  # the maximum is NaN, +inf and -inf in just these cases


def to_read(next_ids: Tensor, *counts: Tensor) -> Tensor:
    """All the host needs of a round, for its one crossing: next_ids [B, n], then each count [B] -> [B, n + counts]."""
    return torch.cat([next_ids, torch.stack(counts, dim=1)], dim=1)


def accept_equal(choices: Tensor, drafts: Tensor, count: Tensor | None = None) -> Verdict:
    """Accept drafts while they equal what the target chooses: greedy decoding, and forced decoding of a record.

    choices [B, k + 1] int64: the target's token after each position fed; drafts [B, k] int64; count [B].
    """
    matched = leading(drafts == choices[:, :-1], count)
    return Verdict(matched, choices.gather(1, matched[:, None])[:, 0])


def acceptance_probability(p: Tensor, drafts: Tensor, q: Tensor | None) -> Tensor:
    """min(1, p(d) / q(d)) of each draft. p [B, k, V]; drafts [B, k]; q [B, k, V], None: point mass. -> [B, k]."""
    chosen = p.gather(-1, drafts[..., None])[..., 0]
    if q is None:
        return chosen
    offered = q.gather(-1, drafts[..., None])[..., 0]
    return (chosen / offered.clamp_min(torch.finfo(q.dtype).tiny)).clamp_max(1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0), normalised; p where nothing is left. p, q [..., V] -> [..., V]."""
    left = (p - q).clamp_min(0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > RESIDUAL_FLOOR, left / mass.clamp_min(RESIDUAL_FLOOR), p)


def next_distribution(p: Tensor, drafts: Tensor, q: Tensor | None, matched: Tensor, count: Tensor | None) -> Tensor:
    """Distribution of the token after the accepted drafts: the residual at a rejection, else p of the bonus row.

    p [B, k + 1, V]; drafts [B, k]; q [B, k, V] or None; matched, count [B]. -> [B, V].
    """
    row = torch.arange(len(matched), device=p.device)
    target = p[row, matched]  # [B, V]
    k = drafts.shape[1]
    if k == 0:
        return target
    at = matched.clamp_max(k - 1)
    offered = torch.zeros_like(target).scatter_(1, drafts[row, at][:, None], 1.0) if q is None else q[row, at]
    rejected = matched < (k if count is None else count)
    return torch.where(rejected[:, None], residual(target, offered), target)


def accept_sampled(
    p: Tensor, drafts: Tensor, q: Tensor | None, uniform: Tensor, count: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rejection sampling: emitted tokens follow p exactly, whatever the drafter proposes.

    p [B, k + 1, V]; drafts [B, k], drawn from q [B, k, V] (None: point mass); uniform [B, k] in [0, 1).
    Returns (matched [B], distribution of the next token [B, V]); a draft stands iff its uniform is strictly below its
    acceptance probability.
    """
    accepted = uniform < acceptance_probability(p[:, :-1], drafts, q)
    matched = leading(accepted, count)
    return matched, next_distribution(p, drafts, q, matched, count)
