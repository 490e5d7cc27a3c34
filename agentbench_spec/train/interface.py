"""Public interface for drafters that can be trained; the only module of `agentbench_spec.train` they may import.

An entry point of the group "agentbench_spec.trainers" (or "module:factory") names a callable
`make(setting, **options) -> Trainee`. The trainee brings its nets, one packed forward and its checkpoint writer; data,
target features, anchors, losses, schedule and the optimiser are the trainer's.

A training **text** has T tokens, of which some are *supervised*: the assistant emitted them. A block is drafted at an
**anchor**, a supervised token with a supervised successor. One forward serves all anchors of a text, and no block sees
another.

Axes: T positions of a text, S tapped layers, A anchors, K positions predicted after an anchor, D width of what a head
reads, V vocabulary, V_d draft vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import TargetInfo

__all__ = [
    "Head",
    "Loss",
    "Phase",
    "Prediction",
    "Recipe",
    "Sample",
    "Setting",
    "Stage",
    "Trainee",
    "TraineeFactory",
    "logits_of",
    "position_weights",
]

Loss = Literal["ce", "kl", "kl_target", "soft", "tv", "confidence"]
"""ce: -log q(label). kl: forward KL from the trainee's own teacher. kl_target: forward KL from the target's
distribution. soft: cross-entropy to it, which is kl_target plus the target's entropy: the same gradient. tv: L1
distance to the target's distribution, 0..2, not halved. confidence: binary cross-entropy of the confidence with the
soft label 1 - tv / 2."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a trainee is made for."""

    target: TargetInfo
    token_counts: Tensor
    """[V] int64: how often each token is supervised in the training data."""
    generator: torch.Generator
    """CPU generator for the initial weights."""
    dtype: torch.dtype = torch.float32
    """Type of the trained weights (masters)."""
    target_weights: Mapping[str, Tensor] = field(default_factory=dict)
    """The target's state dict, for trainees that start as a part of the target; empty: it is not at hand."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One text as the target sees it, on the training device."""

    input_ids: Tensor
    """[T + K] int64: the tokens, then padding so that blocks near the end are whole."""
    states: Tensor
    """[T, S, H]: target states of `Trainee.hidden_layers`, in that order, in the type of the trained weights."""


class Head(Protocol):
    """From states to logits."""

    def __call__(self, states: Tensor, ids: Tensor | None = None) -> Tensor:
        """[n, D] -> logits [n, V_d], or [n, C] of the draft tokens ids [C] alone."""
        ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a packed forward gives, short of the vocabulary: heads run on the rows that count only, in chunks."""

    states: Tensor
    """[A, K, D]: what the heads read for position anchor + 1 + i, under teacher forcing."""
    logits: Head
    confidence: Callable[[Tensor], Tensor] | None = None
    """[n, D] -> logits [n] of being accepted; None: no such head."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of training with one objective, or one that fades into another."""

    name: str
    share: float
    """Part of the phase's steps, relative to the other stages' shares."""
    losses: Mapping[Loss, float]
    """Loss -> its factor."""
    fade_to: Mapping[Loss, float] | None = None
    """Objective at the end of the stage, reached by a cosine cross-fade; None: `losses` throughout."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Stages under one optimiser and one learning-rate schedule."""

    name: str
    stages: tuple[Stage, ...]
    share: float = 1.0
    """Steps of this phase over the steps asked for."""
    folder: str = ""
    """Where its checkpoint goes, below the output folder; "" for the drafter itself."""


def logits_of(head: nn.Module, states: Tensor, ids: Tensor | None = None) -> Tensor:
    """Logits of a linear head without bias: states [n, D] -> [n, V], or [n, C] of the tokens ids [C] alone."""
    if ids is None:
        return head(states)  # type: ignore[no-any-return]
    return nn.functional.linear(states, head.get_parameter("weight")[ids])


def position_weights(k: int, gamma: float | None) -> tuple[float, ...]:
    """exp(-(i - 1) / gamma) for i = 1..k; gamma None or <= 0: all 1."""
    if gamma is None or gamma <= 0:
        return (1.0,) * k
    return tuple(math.exp(-i / gamma) for i in range(k))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Optimiser settings a trainee suggests; the command line overrides each."""

    learning_rate: float = 4e-4
    warmup: float = 0.04
    clip_norm: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)


class Trainee(nn.Module):
    """A drafter in training: all its parameters are the draft's own; what the target lends is not registered."""

    name: str
    hidden_layers: tuple[int, ...]
    """Target states wanted, numbered as in `DrafterSpec.hidden_layers`."""
    k: int
    """K: positions predicted after an anchor."""
    position_weights: tuple[float, ...]
    """Loss weight of each of the K positions."""
    phases: tuple[Phase, ...]
    recipe: Recipe = Recipe()
    labels: Literal["target", "data"] = "target"
    """What `ce` wants to see: the target's greedy choice, or the token of the text."""
    draft_ids: Tensor | None = None
    """[V_d] int64: target id of each draft id; None: V_d is V. Labels outside it do not count."""

    def parameters_of(self, phase: Phase) -> list[nn.Parameter]:
        """Parameters the optimiser of `phase` holds, in a fixed order."""
        return list(self.parameters())

    def enter(self, phase: Phase, stage: Stage, *, fresh: bool) -> None:
        """A stage begins: set which parameters take gradients. fresh: False after a resume, where weights are kept."""

    def predict(self, sample: Sample, anchors: Tensor) -> Prediction:
        """The packed forward for anchors [A] int64, ascending."""
        raise NotImplementedError

    def teach(self, sample: Sample, anchors: Tensor) -> Prediction:
        """The teacher's prediction for the loss `kl`; run without gradients."""
        raise NotImplementedError

    def write(self, folder: Path, phase: Phase, state: Mapping[str, Tensor]) -> None:
        """Write the checkpoint of `phase` in its published layout.

        state: this module's state dict, whole, on the CPU, in the dtype of the checkpoint.
        """
        raise NotImplementedError


TraineeFactory = Callable[..., Trainee]
"""`make(setting, **options)`."""
