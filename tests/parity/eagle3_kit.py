"""What the EAGLE-3 parity tests share: recorded data, a target reduced to its tables, recorded rounds as spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from agentbench_spec.drafting import Drafter, Span, TargetInfo

DATA = Path(__file__).parent / "data"
DRAFT = DATA / "eagle3" / "draft"
TENSORS = load_file(DATA / "eagle3" / "tensors.safetensors")
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((DATA / "eagle3" / "cases.json").read_text())["cases"]
}
TRACED = sorted({key.split(".")[0] for key in TENSORS})
"""Cases whose inner tensors were recorded."""


class Greedy:
    """Temperature 0."""

    greedy = True

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.argmax(-1), None


class Sampled:
    """Temperature 1 with a generator of its own."""

    greedy = False

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        probs = logits.float().softmax(-1)
        return torch.multinomial(probs, 1, generator=self.generator)[:, 0], probs


def target_info(**changes: Any) -> TargetInfo:
    """The golden target without its layers: only what a drafter may touch."""
    config = json.loads((DATA / "target" / "config.json").read_text())
    weights = load_file(DATA / "target" / "model.safetensors")
    embed = nn.Embedding.from_pretrained(weights["model.embed_tokens.weight"])
    head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
    head.weight = nn.Parameter(weights["lm_head.weight"], requires_grad=False)
    known: dict[str, Any] = {
        "name": "golden",
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "max_positions": config["max_position_embeddings"],
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "config": config,
        "embed_tokens": embed,
        "lm_head": head,
    }
    return TargetInfo(**{**known, **changes})


@dataclass(frozen=True)
class Round:
    """One recorded round: what the drafter is shown before it, and what the official code then did."""

    span: Span
    anchor: Tensor
    position: Tensor
    recorded: dict[str, Tensor]
    drafted: list[int]


def recorded_rounds(case_id: str) -> Iterator[Round]:
    """The rounds of `case_id` whose tensors were recorded, as spans."""
    case, width = CASES[case_id], target_info().hidden_size
    for index in sorted({int(key.split(".")[1].removeprefix("round")) for key in TENSORS if key.startswith(case_id)}):
        prefix = f"{case_id}.round{index}."
        recorded = {key.removeprefix(prefix): value for key, value in TENSORS.items() if key.startswith(prefix)}
        features, partners = recorded["context_features"], recorded["extend_input_ids"]
        start = case["rounds"]["start"][index] - len(partners)
        span = Span(
            rows=torch.tensor([0]),
            start=torch.tensor([start]),
            count=torch.tensor([len(partners)]),
            input_ids=torch.tensor(case["output_ids"][start : start + len(partners)])[None],
            next_ids=partners[None],
            hidden=features.view(1, len(partners), -1, width),
        )
        drafted = case["rounds"]["draft_tokens"][index]
        position = torch.tensor([start + len(partners)])
        yield Round(span, partners[-1:], position, recorded, drafted)


def opened(drafter: Drafter, *, rows: int = 1, capacity: int = 320, target: TargetInfo | None = None) -> Drafter:
    """`drafter`, opened on the golden target at temperature 0."""
    drafter.open(target or target_info(), rows=rows, capacity=capacity)
    drafter.sampler = Greedy()
    return drafter
