"""Losses per predicted position, in float32 over the whole draft vocabulary at temperature 1, and their sums.

Sums are kept as numerators and one denominator, so that accumulation over texts and ranks gives the mean over all
positions and not a mean of means (spec dlite, section 5.3). Axes: n rows (predicted positions), V_d draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from agentbench_spec.train.interface import Loss

__all__ = [
    "RowInputs",
    "confidence_bce",
    "cross_entropy",
    "forward_kl",
    "row_losses",
    "soft_cross_entropy",
    "target_kl",
    "tv",
]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log q(label): logits [n, V_d], labels [n] int64 -> [n]."""
    return F.cross_entropy(logits.float(), labels, reduction="none")


def forward_kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """sum p (log p - log q) from the teacher's p to q: logits, teacher [n, V_d] -> [n]."""
    log_p = teacher.float().log_softmax(-1)
    return F.kl_div(logits.float().log_softmax(-1), log_p, reduction="none", log_target=True).sum(-1)


def target_kl(logits: Tensor, target: Tensor) -> Tensor:
    """sum p (log p - log q), 0 where both agree: logits [n, V_d], the target's probabilities p [n, V_d] -> [n]."""
    return F.kl_div(logits.float().log_softmax(-1), target, reduction="none").sum(-1)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum p log q: logits [n, V_d], the target's probabilities p [n, V_d] -> [n]."""
    return -(target * logits.float().log_softmax(-1)).sum(-1)


def tv(logits: Tensor, target: Tensor) -> Tensor:
    """sum |q - p|, 0..2, not halved: logits [n, V_d], the target's probabilities p [n, V_d] -> [n]."""
    return (logits.float().softmax(-1) - target).abs().sum(-1)


def confidence_bce(confidence: Tensor, distance: Tensor) -> Tensor:
    """Binary cross-entropy with the soft label 1 - distance / 2: confidence logits [n], tv distance [n] -> [n]."""
    label = 1 - distance.detach() / 2
    return F.binary_cross_entropy_with_logits(confidence.float(), label, reduction="none")


@dataclass(frozen=True, slots=True)
class RowInputs:
    """What the losses of n rows compare."""

    logits: Tensor
    """[n, V_d]"""
    labels: Tensor
    """[n] int64 in the draft vocabulary."""
    target: Tensor | None = None
    """[n, V_d] float32: the target's probabilities at the same positions, over the draft vocabulary alone."""
    teacher: Tensor | None = None
    """[n, V_d]: logits."""
    confidence: Tensor | None = None
    """[n]"""


def row_losses(wanted: Collection[Loss], rows: RowInputs) -> dict[Loss, Tensor]:
    """Each wanted loss of each row [n]. Raises ValueError if what a loss compares with is not there."""
    found: dict[Loss, Tensor] = {}
    if "ce" in wanted:
        found["ce"] = cross_entropy(rows.logits, rows.labels)
    if "kl" in wanted:
        found["kl"] = forward_kl(rows.logits, _there(rows.teacher, "kl"))
    if "kl_target" in wanted:
        found["kl_target"] = target_kl(rows.logits, _there(rows.target, "kl_target"))
    if "soft" in wanted:
        found["soft"] = soft_cross_entropy(rows.logits, _there(rows.target, "soft"))
    if "tv" in wanted or "confidence" in wanted:
        found["tv"] = tv(rows.logits, _there(rows.target, "tv"))
    if "confidence" in wanted:
        found["confidence"] = confidence_bce(_there(rows.confidence, "confidence"), found["tv"])
    return {name: found[name] for name in wanted}


def _there(value: Tensor | None, loss: str) -> Tensor:
    if value is None:
        raise ValueError(f"loss {loss!r} asked for, but what it compares with was not computed")
    return value


def weighted_total(numerators: Mapping[Loss, Tensor], factors: Mapping[Loss, float]) -> Tensor:
    """The numerator to differentiate: sum of factor * numerator. The factor is never part of the denominator."""
    return torch.stack([factors[name] * value for name, value in numerators.items()]).sum()
