"""How far attention reads on a GPU, and in which layout it answers, on a pretended one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from pretended import PretendedDevice
from pretendkit import Bench, K, made, outputs
from torch import Tensor
from torch.nn import functional as F

from agentbench_spec.drafting import Drafter, Proposal, Span, TargetInfo

BLOCK = 256
PROMPT, ROUNDS = 200, 3
DRAFTS = ("dflash", "dflash2-zlab", "dspark-vanilla", "eagle3", "pard")


class Passing(Drafter):
    """Hands everything on to a drafter."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.spec = inner, inner.spec

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self.inner.open(target, rows=rows, capacity=capacity)

    def observe(self, span: Span) -> None:
        self.inner.observe(span)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self.inner.sampler = self.sampler
        return self.inner.propose(anchor, position, k)


class Untold(Passing):
    """Keeps the span's numbers on the device, as all spans were once."""

    def observe(self, span: Span) -> None:
        self.inner.observe(replace(span, on_host=None))


def over_read(drafter: Drafter) -> int:
    """Most slots that attention read in a round beyond the text, with the room a block takes, rounded up."""
    worst, room = 0, max(drafter.spec.max_tokens or 0, K) + 1
    with PretendedDevice() as device:
        bench = Bench.on(device, drafter, prompt=PROMPT)
        for _ in range(ROUNDS):
            longest = max(turn.position for turn in bench.turns)
            device.log.clear()
            bench.round()
            read = max(e.shapes[1][2] for e in device.log if e.op == "scaled_dot_product_attention")
            worst = max(worst, read - -(-(longest + room) // BLOCK) * BLOCK)
    return worst


@pytest.mark.parametrize("name", DRAFTS)
def test_attention_reads_no_further_than_the_text(name: str) -> None:
    """Fails if the bound of a row grows by what was fed instead of by what was kept, or by what other rows were fed."""
    assert over_read(made(name)) <= 0


@pytest.mark.parametrize("name", ["dflash", "eagle3"])
def test_a_bound_that_grows_by_the_width_fed_is_seen(name: str) -> None:
    """Fails if the test above would pass with rows whose bounds all grow by each span's width."""
    assert over_read(Untold(made(name))) >= BLOCK


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "heads first": lambda out: out.contiguous(),
    "positions first": lambda out: out.transpose(1, 2).contiguous().transpose(1, 2),
    "width first": lambda out: out.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
}
"""How CUDA's kernels lay out their result [B, H, n, D]: flash and memory-efficient ones put positions first."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["none", "dflash"])
def test_the_layout_of_attentions_result_does_not_matter(name: str, layout: str) -> None:
    """Fails if heads and positions are told apart by a view, which breaks where a kernel lays them out otherwise."""
    with PretendedDevice(LAYOUTS[layout]) as device:
        found = outputs(device, made(name), rounds=2)
    assert found == outputs(None, made(name), rounds=2)


def test_a_view_of_attentions_result_is_seen() -> None:
    """Fails if the layouts above hold no result that a view cannot split: then the test above would show nothing."""

    def split(out: Tensor) -> Tensor:
        return out.view(2, 4, 3, 8)  # two KV heads x two query heads

    query, key = torch.randn(2, 2, 6, 8), torch.randn(2, 2, 5, 8)
    out = F.scaled_dot_product_attention(query, key, key)
    assert split(LAYOUTS["heads first"](out)).shape == (2, 4, 3, 8)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        split(LAYOUTS["positions first"](out))
