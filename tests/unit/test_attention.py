"""The attention function against plain softmax attention, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from agentbench_spec.engine.attention import NAME, causal_mask, register, slot_attention
from agentbench_spec.errors import ConfigError

HEADS, KV_HEADS, WIDTH = 6, 2, 5


def textbook(query: Tensor, key: Tensor, value: Tensor, start: Tensor, scaling: float) -> Tensor:
    """Softmax attention written out, query by query. query [B, Hq, n, D] -> [B, n, Hq, D]."""
    out = torch.zeros(query.shape[0], query.shape[2], *query.shape[1:2], query.shape[3], dtype=query.dtype)
    for b in range(query.shape[0]):
        for head in range(HEADS):
            of = head // (HEADS // KV_HEADS)
            for i in range(query.shape[2]):
                seen = int(start[b]) + i + 1
                weights = (key[b, of, :seen] @ query[b, head, i] * scaling).softmax(0)
                out[b, i, head] = weights @ value[b, of, :seen]
    return out


@pytest.mark.parametrize(("start", "n"), [([0], 4), ([3], 1), ([0, 5, 2], 3)])
@pytest.mark.parametrize("scaling", [None, 0.7])
def test_equals_textbook_attention(start: list[int], n: int, scaling: float | None) -> None:
    """Fails if heads are folded in another order than the mask's rows, or a query sees its future."""
    draw = torch.Generator().manual_seed(1)
    extent = max(start) + n + 2  # two positions of rubbish beyond the last query

    def random(heads: int, length: int) -> Tensor:
        return torch.randn(len(start), heads, length, WIDTH, generator=draw, dtype=torch.float64)

    query, key, value = random(HEADS, n), random(KV_HEADS, extent), random(KV_HEADS, extent)
    starts = torch.tensor(start)
    mask = causal_mask(starts, n, extent, HEADS // KV_HEADS, torch.float64)
    out, weights = slot_attention(nn.Identity(), query, key, value, mask, scaling)
    torch.testing.assert_close(out, textbook(query, key, value, starts, scaling or 1 / math.sqrt(WIDTH)))
    assert weights is None


def test_mask_by_hand() -> None:
    """Fails if a row of the mask is off by one or the group axis is interleaved the other way."""
    no = float("-inf")
    mask = causal_mask(torch.tensor([1, 0]), 2, 3, 2, torch.float32)
    assert mask[:, 0].tolist() == [
        [[0, 0, no], [0, 0, 0], [0, 0, no], [0, 0, 0]],
        [[0, no, no], [0, 0, no], [0, no, no], [0, 0, no]],
    ]


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_what_is_not_computed_is_refused(name: str) -> None:
    """Fails if a variant of attention is silently left out: plausible numbers that mean nothing."""
    x = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ConfigError, match=name):
        slot_attention(nn.Identity(), x, x, x, None, **{name: torch.tensor(1.0)})
    assert slot_attention(nn.Identity(), x, x, x, None, **{name: None})[0].shape == (1, 1, 2, 4)


def test_a_window_without_a_mask_is_refused_once_the_text_outgrows_it() -> None:
    """Fails if a window that the engine was not told of is ignored, or one that no text reaches refuses the model."""
    query, held = torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 8, 4)
    assert slot_attention(nn.Identity(), query, held, held, None, sliding_window=8)[0].shape == (1, 1, 2, 4)
    with pytest.raises(ConfigError, match="window of 7 tokens"):
        slot_attention(nn.Identity(), query, held, held, None, sliding_window=7)


def test_registered_under_its_name_and_twice_is_harmless() -> None:
    """Fails if transformers cannot find the function by the name the target puts into the configuration."""
    assert register() == register() == NAME
    assert AttentionInterface()[NAME] is slot_attention
