"""Rejection sampling against the building blocks recorded from both publishers' code (golden section 6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentbench_spec.engine.sampling import Sampling, probabilities
from agentbench_spec.engine.verify import accept_sampled, acceptance_probability, residual

DATA = Path(__file__).parent / "data" / "rejection"
RECORDED = json.loads((DATA / "cases.json").read_text())
TENSORS = load_file(DATA / "tensors.safetensors")
BLOCKS = {block["id"]: block for block in RECORDED["blocks"]}
FLOORS = {"deepspec": 1e-8, "dlite": 1e-20}
"""Each publisher keeps q(d) from below at another value; ours is far below both, so it follows the exact ratio."""


def distributions(block: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """p [1, K + 1, V] and q [1, K, V] as the engine computes them from the recorded logits."""
    sampling = Sampling(temperature=block["temperature"])
    target, draft = (TENSORS.get(f"{block['id']}.{side}_logits") for side in ("target", "draft"))
    assert target is not None
    q = probabilities(draft, sampling) if draft is not None else target.new_zeros(0, target.shape[-1])
    return probabilities(target, sampling)[None], q[None]


def floored(block: dict[str, Any], family: str) -> bool:
    """True if a draft of the block has q(d) below the family's floor, where the families differ by design."""
    _, q = distributions(block)
    drafts = torch.tensor(block["draft_tokens"], dtype=torch.int64)
    return bool((q[0].gather(-1, drafts[:, None]) < FLOORS[family]).any()) if len(drafts) else False


@pytest.mark.parametrize("family", FLOORS)
@pytest.mark.parametrize("block_id", BLOCKS)
def test_blocks(block_id: str, family: str) -> None:
    """Distributions, acceptance probabilities and flags, accepted length and what the extra token is drawn from."""
    block = BLOCKS[block_id]
    recorded = block[family]
    p, q = distributions(block)
    drafts = torch.tensor([block["draft_tokens"]], dtype=torch.int64).view(1, -1)
    uniform = torch.tensor([block["uniforms"]], dtype=torch.float32).view(1, -1)
    torch.testing.assert_close(p[0], TENSORS[f"{block_id}.p"], atol=1e-6, rtol=1e-6)
    chance = acceptance_probability(p[:, :-1], drafts, q)
    matched, following = accept_sampled(p, drafts, q, uniform)
    if floored(block, family):
        exact = p[0, :-1].gather(-1, drafts[0][:, None]).double() / q[0].gather(-1, drafts[0][:, None]).double()
        torch.testing.assert_close(chance[0].double(), exact[:, 0].clamp_max(1), atol=1e-6, rtol=1e-5)
        return
    torch.testing.assert_close(chance[0], torch.tensor(recorded.get("accept_prob", [])), atol=1e-6, rtol=1e-5)
    assert (uniform < chance)[0].int().tolist() == recorded.get("accept_flags", [])
    assert matched.item() == recorded["accepted"]
    torch.testing.assert_close(following[0], TENSORS[f"{block_id}.{family}.next_distribution"], atol=1e-6, rtol=1e-5)


def test_most_blocks_are_above_the_floors() -> None:
    """The comparison above must not be skipped by and large."""
    skipped = [(block_id, family) for block_id in BLOCKS for family in FLOORS if floored(BLOCKS[block_id], family)]
    assert len(skipped) <= 5


@pytest.mark.parametrize("case", RECORDED["residual_only"], ids=lambda case: case["tag"])
def test_residuals(case: dict[str, Any]) -> None:
    """Residual of equal, dominated and one-hot distributions; rounding noise falls back to p."""
    p, q = TENSORS[f"{case['id']}.p"], TENSORS[f"{case['id']}.q"]
    expected = TENSORS[f"{case['id']}.deepspec.next_distribution"]
    torch.testing.assert_close(residual(p, q), expected, atol=1e-6, rtol=1e-5)
