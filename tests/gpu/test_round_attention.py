"""Attention of static rounds: both kinds agree, and the fused one lists only the blocks that some query sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from agentbench_spec.engine.steps.round_attention import BLOCK, RoundAttention

FLEX, MASKED = RoundAttention("flex"), RoundAttention("masked")
SLOTS = 4 * BLOCK

CASES: dict[str, tuple[list[list[int]] | None, list[list[int]]]] = {
    "up to themselves": (None, [[0, 1, 2], [200, 201, 202]]),
    "across a boundary": (None, [[126, 127, 128], [255, 256, 257]]),
    "a window": ([[0, 0, 1], [150, 151, 152]], [[3, 4, 5], [300, 301, 302]]),
    "a block that sees itself": (None, [[10, 10, 10], [511, 511, 511]]),
}


def intervals(case: str) -> tuple[Tensor | None, Tensor]:
    first, last = CASES[case]
    return None if first is None else torch.tensor(first), torch.tensor(last)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("heads", [(4, 2), (3, 3)])
def test_both_kinds_agree(case: str, heads: tuple[int, int]) -> None:
    """Fails if a block is left out that is seen, a bound is off by one, or grouped heads are mixed up."""
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(2, n, m, 16) for n, m in ((heads[0], 3), (heads[1], SLOTS), (heads[1], SLOTS)))
    first, last = intervals(case)
    found, expected = (
        kind.attend(queries, keys, values, kind.seen(first, last, SLOTS), scale=0.3) for kind in (FLEX, MASKED)
    )
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_only_blocks_that_are_seen_are_listed(case: str) -> None:
    """Fails if more is read than the text rounded up to a block, or the window rounded down to one."""
    first, last = intervals(case)
    mask = FLEX.seen(first, last, SLOTS)
    assert isinstance(mask, BlockMask)
    for row in range(2):
        begin = 0 if first is None else int(first[row].min()) // BLOCK
        wanted = list(range(begin, int(last[row].max()) // BLOCK + 1))
        listed = mask.kv_indices[row, 0, 0, : int(mask.kv_num_blocks[row, 0, 0])].tolist()
        assert listed == wanted


def test_what_is_not_seen_does_not_matter() -> None:
    """Fails if the masked kind gives weight to slots that a query does not see."""
    queries, keys = torch.ones(1, 1, 1, 4), torch.zeros(1, 1, BLOCK, 4)
    values = torch.arange(BLOCK, dtype=torch.float32)[None, None, :, None].expand(1, 1, BLOCK, 4)
    seen = MASKED.seen(torch.tensor([[2]]), torch.tensor([[4]]), BLOCK)
    assert MASKED.attend(queries, keys, values, seen).flatten().tolist() == [3.0] * 4


def test_buffers_are_whole_blocks() -> None:
    """Fails if a buffer ends inside a block, which the fused kind would read beyond."""
    assert [FLEX.slots(n) for n in (1, BLOCK, BLOCK + 1)] == [BLOCK, BLOCK, 2 * BLOCK]
