"""Kernels of a plain decoding step, counted on a pretended GPU."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from pretended import PretendedDevice
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentbench_spec.engine.steps.fused_norms import FusedNorm, fuse_norms
from agentbench_spec.engine.target import Target

LAYERS = 36
BEFORE = 2046
"""Kernels of a plain step of 36 layers in bf16 before norms were fused, F.rms_norm taken for one."""


def model(layers: int, dtype: torch.dtype = torch.bfloat16) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(**sizes, num_hidden_layers=layers, head_dim=8, vocab_size=64, max_position_embeddings=512)
    return Qwen3ForCausalLM(config).to(dtype).eval().requires_grad_(False)  # type: ignore[no-any-return]


def kernels(made: nn.Module) -> int:
    with PretendedDevice() as device, torch.inference_mode():
        target = Target(device.moved(made), name="t", capacity=64)
        target.evaluate(0, [0], torch.zeros(1, 3, dtype=torch.int64, device="cuda"))
        target.commit(0, 3)
        token = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
        device.log.clear()
        target.evaluate(0, [3], token)
        return len(device.events("kernel"))


def of_36(change: Callable[[nn.Module], Any]) -> int:
    """Kernels of 36 layers, from what one and two take: building 36 takes long."""
    counts = []
    for layers in (1, 2):
        made = model(layers)
        change(made)
        counts.append(kernels(made))
    return counts[0] + (LAYERS - 1) * (counts[1] - counts[0])


def test_a_plain_step_takes_three_fifths_of_the_kernels_it_took() -> None:
    """Fails if norms fall apart into their parts again, or a step does more than it has to."""
    assert of_36(fuse_norms) <= 0.6 * BEFORE


def test_without_fused_norms_it_takes_more() -> None:
    """Fails if the count above would pass for stock norms, too: then it counted nothing."""
    assert of_36(lambda made: None) > 0.8 * BEFORE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_norms_say_what_stock_norms_say(dtype: torch.dtype) -> None:
    """Fails if a norm is replaced by one with another epsilon, gain or precision."""
    made = model(2, dtype)
    for weight in (p for name, p in made.named_parameters() if "norm" in name):
        weight.normal_(1, 0.3)
    stock, ids = deepcopy(made), torch.arange(20)[None]
    assert fuse_norms(made) == 2 * 4 + 1
    found, expected = (each(input_ids=ids, use_cache=False).logits for each in (made, stock))
    assert float((found - expected).abs().max()) <= (1e-5 if dtype == torch.float32 else 0.05) * float(
        expected.abs().max()
    )


class OtherRMSNorm(nn.Module):
    """A gain of 1 + weight, as Gemma has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.full((8,), 0.5)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class SameRMSNorm(OtherRMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def test_a_norm_of_another_kind_is_left_alone() -> None:
    """Fails if a norm is replaced by its name, whatever it computes."""
    made = nn.Sequential(OtherRMSNorm(), SameRMSNorm(), nn.LayerNorm(8))
    assert fuse_norms(made) == 1
    assert [type(each) for each in made] == [OtherRMSNorm, FusedNorm, nn.LayerNorm]
