"""One text through a trainee: weights, losses and what they say about acceptance. Wrapped by DDP or FSDP as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentbench_spec.drafting import TargetInfo
from agentbench_spec.train.anchors import block_weights
from agentbench_spec.train.features import Features
from agentbench_spec.train.interface import Loss, Prediction, Sample, Trainee, logits_of
from agentbench_spec.train.losses import RowInputs, row_losses, weighted_total
from agentbench_spec.train.shortlist import Shortlist, draw_shortlist
from agentbench_spec.train.texts import Text

__all__ = ["Example", "Step", "Sums", "example_of"]


@dataclass(frozen=True, slots=True)
class Example:
    """A text ready for training, on the training device."""

    sample: Sample
    supervised: Tensor
    """[T + K] bool."""
    final: Tensor
    """[T, H]: input of the target's head; a cache may hold it in a shorter type than the target's."""
    greedy: Tensor
    """[T] int64: the target's choice for the next position, -1 where not needed."""
    shortlist: Shortlist | None = None
    """Tokens the losses are taken over; None: the whole draft vocabulary."""


def example_of(text: Text, features: Features, trainee: Trainee, device: torch.device, dtype: torch.dtype) -> Example:
    """Pad the text by K so that blocks near its end are whole, and bring all of it to `device`."""
    ids = torch.tensor([*text.input_ids, *[0] * trainee.k], dtype=torch.int64)
    states = features.states.to(device=device, dtype=dtype)
    return Example(
        Sample(ids.to(device), states),
        text.mask(trainee.k).to(device),
        features.final.to(device),
        features.greedy.to(device),
    )


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the positions of one text; the trainer adds them up before it divides."""

    total: Tensor
    """Scalar: the numerator to differentiate."""
    weight: Tensor
    """Scalar: the denominator, sum of position weights."""
    losses: dict[Loss, Tensor]
    """Numerator of each loss, detached."""
    correct: Tensor
    """[A, K] bool: the draft's most likely token is the label, at positions that count."""
    counted: Tensor
    """[A, K] bool: positions that count."""


class Step(nn.Module):
    """Forward and losses for one text."""

    _target: TargetInfo

    def __init__(self, trainee: Trainee, target: TargetInfo, *, rows_at_once: int = 2048) -> None:
        """rows_at_once: logits held at a time, in positions."""
        super().__init__()
        self.trainee = trainee
        self.vocab_size = target.vocab_size
        self.__dict__["_target"] = target  # hidden from nn.Module: the target's head is not part of what is trained
        self._rows_at_once = rows_at_once
        self._inverse = _inverse(trainee.draft_ids, target.vocab_size)

    def with_shortlist(self, example: Example, frequent: Tensor, size: int, generator: torch.Generator) -> Example:
        """The example with a fresh shortlist of `size` tokens, which holds frequent [F] and all its labels."""
        if self.trainee.draft_ids is not None:
            return example
        labels = example.greedy if self.trainee.labels == "target" else example.sample.input_ids
        drawn = draw_shortlist(frequent, labels, size, self._target.vocab_size, generator)
        return replace(example, shortlist=drawn)

    def forward(self, example: Example, anchors: Tensor, factors: Mapping[Loss, float]) -> Sums:
        """Losses of the blocks at anchors [A] int64, by the objective `factors`."""
        trainee = self.trainee
        decay = torch.tensor(trainee.position_weights, device=anchors.device)
        weights = block_weights(example.supervised, anchors, decay)
        prediction = trainee.predict(example.sample, anchors)
        taught = None
        if "kl" in factors:
            with torch.no_grad():
                taught = trainee.teach(example.sample, anchors)
        rows = self._rows(example, anchors, weights)
        numerators, correct = self._over_chunks(rows, example, prediction, taught, factors)
        grid = torch.zeros_like(weights, dtype=torch.bool)
        counted, right = grid.clone(), grid
        counted.view(-1)[rows.at], right.view(-1)[rows.at] = True, correct
        losses = {name: value.detach() for name, value in numerators.items()}
        return Sums(weighted_total(numerators, factors), rows.weight.sum(), losses, right, counted)

    def _rows(self, example: Example, anchors: Tensor, weights: Tensor) -> _Rows:
        """The positions that count: those with a weight and a label the draft can say."""
        ahead = anchors[:, None] + torch.arange(1, weights.shape[1] + 1, device=anchors.device)
        before = (ahead - 1).clamp(max=len(example.greedy) - 1)
        labels = example.greedy[before] if self.trainee.labels == "target" else example.sample.input_ids[ahead]
        if self._inverse is not None:
            labels = self._inverse.to(labels.device)[labels.clamp(min=0)]
        at = ((weights > 0) & (labels >= 0)).flatten().nonzero().flatten()
        kept = labels.flatten()[at]
        if example.shortlist is not None:
            kept = example.shortlist.index_of(kept)
        return _Rows(at, weights.flatten()[at], kept, before.flatten()[at])

    def _over_chunks(
        self,
        rows: _Rows,
        example: Example,
        prediction: Prediction,
        taught: Prediction | None,
        factors: Mapping[Loss, float],
    ) -> tuple[dict[Loss, Tensor], Tensor]:
        """Numerators and correctness; beyond one chunk, logits are computed again for the backward pass."""
        names = tuple(factors)

        def chunk(states: Tensor, part: _Rows) -> tuple[Tensor, Tensor]:
            inputs = self._compare(states, part, example, prediction, taught, names)
            found = row_losses(names, inputs)
            sums = torch.stack([(found[name] * part.weight).sum() for name in names])
            return sums, inputs.logits.detach().argmax(-1) == part.labels

        parts = rows.split(self._rows_at_once)
        flat = prediction.states.flatten(0, 1)
        if len(parts) == 1:
            done = [chunk(flat[rows.at], rows)]
        else:
            done = [checkpoint(chunk, flat[part.at], part, use_reentrant=False) for part in parts]
        sums = torch.stack([each[0] for each in done]).sum(0)
        return dict(zip(names, sums.unbind(), strict=True)), torch.cat([each[1] for each in done])

    def _compare(
        self,
        states: Tensor,
        part: _Rows,
        example: Example,
        prediction: Prediction,
        taught: Prediction | None,
        names: tuple[Loss, ...],
    ) -> RowInputs:
        short, target, teacher = example.shortlist, None, None
        with torch.no_grad():
            if {"kl_target", "soft", "tv", "confidence"} & set(names):
                target = self._target_probabilities(example, part.before)
            if taught is not None:
                teacher = _logits(taught, taught.states.flatten(0, 1)[part.at], short)
        confidence = prediction.confidence(states) if prediction.confidence and "confidence" in names else None
        return RowInputs(_logits(prediction, states, short), part.labels, target, teacher, confidence)

    def _target_probabilities(self, example: Example, before: Tensor) -> Tensor:
        """The target's distribution after the text positions before [n], over what the draft can say [n, V_d or C].

        Blocks overlap, so a position is asked for up to K times; it is computed once.
        """
        positions, place = torch.unique(before, return_inverse=True)
        ids = example.shortlist.ids if example.shortlist is not None else self.trainee.draft_ids
        states = example.final[positions].to(self._target.dtype)
        logits = logits_of(self._target.lm_head, states, None if ids is None else ids.to(states.device))
        if example.shortlist is not None:
            logits = logits + example.shortlist.shift
        return logits.float().softmax(-1)[place]


def _logits(prediction: Prediction, states: Tensor, shortlist: Shortlist | None) -> Tensor:
    if shortlist is None:
        return prediction.logits(states)
    return prediction.logits(states, shortlist.ids) + shortlist.shift


@dataclass(frozen=True, slots=True)
class _Rows:
    """n positions that count."""

    at: Tensor
    """[n] int64: index into the flattened [A, K]."""
    weight: Tensor
    """[n]"""
    labels: Tensor
    """[n] int64 in the draft vocabulary."""
    before: Tensor
    """[n] int64: the text position whose target state predicts this one."""

    def split(self, size: int) -> list[_Rows]:
        columns = [torch.split(column, size) for column in (self.at, self.weight, self.labels, self.before)]
        return [_Rows(*each) for each in zip(*columns, strict=True)]


def _inverse(draft_ids: Tensor | None, vocab_size: int) -> Tensor | None:
    """[V] int64: draft id of each target id, -1 where there is none."""
    if draft_ids is None:
        return None
    inverse = torch.full((vocab_size,), -1, dtype=torch.int64)
    inverse[draft_ids] = torch.arange(len(draft_ids), device=draft_ids.device).cpu()
    return inverse
