"""A toy target, texts it wrote, and trainees of every drafter at toy size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.engine.target import Target
from agentbench_spec.testing import greedy_text, toy_target
from agentbench_spec.train.features import Extractor, Online
from agentbench_spec.train.interface import Setting, Trainee
from agentbench_spec.train.options import TrainConfig
from agentbench_spec.train.step import Step
from agentbench_spec.train.texts import Text, token_counts
from agentbench_spec.train.trainees import load_trainee
from agentbench_spec.train.trainer import Data

VOCAB = 64

SMALL: dict[str, dict[str, Any]] = {
    "dflash": {"depth": 2, "block_size": 5, "target_layer_ids": [0, 2]},
    "dspark": {"depth": 2, "block_size": 4, "target_layer_ids": [0, 2], "rank": 8},
    "dlite": {"depth": 2, "block_size": 5, "slots": 3, "rank": 8, "window": 6},
    "eagle3": {"steps": 4, "draft_vocab_size": 40, "target_layer_ids": [0, 1, 2]},
}
"""Options that make each trainee small enough for a toy target of four layers; all draft four tokens."""


def random_texts(count: int = 3, length: int = 40, *, seed: int = 0) -> list[Text]:
    """Texts of random tokens below 60, with two supervised stretches each; ids from 60 up stay unused."""
    draw = torch.Generator().manual_seed(seed)
    texts = []
    for index in range(count):
        ids = torch.randint(60, (length,), generator=draw).tolist()
        texts.append(Text(f"text-{index}", tuple(ids), ((1, length // 2), (length - 12, length))))
    return texts


def written_texts(target: Target, count: int, *, prompt: int = 4, new: int = 36, seed: int = 0) -> list[Text]:
    """Texts the target wrote itself, greedily, after short random prompts; what it wrote is supervised."""
    draw = torch.Generator().manual_seed(seed)
    texts = []
    for index in range(count):
        start = torch.randint(60, (prompt,), generator=draw).tolist()
        ids = greedy_text(target, start, new)
        texts.append(Text(f"text-{index}", tuple(ids), ((prompt, len(ids)),)))
    return texts


def make_trainee(
    name: str,
    target: Target,
    texts: Sequence[Text],
    dtype: torch.dtype = torch.float64,
    *,
    seed: int = 1,
    **options: Any,
) -> Trainee:
    """The small trainee `name` for a target; options change or add to SMALL."""
    counts = token_counts(texts, target.info.vocab_size)
    draw, weights = torch.Generator().manual_seed(seed), target.model.state_dict()
    setting = Setting(target.info, counts, draw, dtype, target_weights=weights)
    return load_trainee(name, setting, **{**SMALL[name], **options})


def online(target: Target, trainee: Trainee, texts: Sequence[Text]) -> Data:
    """Texts with features computed on demand."""
    return Data(texts, Online(texts, Extractor(target, trainee.hidden_layers)))


def step_of(trainee: Trainee, target: Target, **options: Any) -> Step:
    """A Step for the toy target."""
    return Step(trainee, target.info, **options)


def config(**changes: Any) -> TrainConfig:
    """Settings of a short run."""
    return TrainConfig(**{"drafter": "toy", "steps": 6, "batch": 2, "anchors": 4, "learning_rate": 1e-2, **changes})


def stir(module: torch.nn.Module, seed: int = 3) -> None:
    """Give every parameter seeded values of order one, norms included, so that no part of a net is inert."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise: Tensor = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            scale = 0.3 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            parameter.copy_(noise * scale + (1.0 if parameter.ndim == 1 else 0.0))


def small_target(**options: Any) -> Target:
    """The toy target all of these fit."""
    return toy_target(vocab=VOCAB, capacity=128, **options)
