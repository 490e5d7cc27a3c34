"""Faster fp32 linear layers on the CPU, so that neither the baseline nor verification is slowed by poor kernels.

A decode step reads every weight once, so it should run at memory speed; verifying 8 tokens reads them once too and
should cost little more. Stock thin-matrix kernels miss both on some machines. Which kernel wins differs from machine
to machine, so `accelerate` measures the candidates once on the model's own weights and keeps the fastest for one
token and for a block. Every candidate computes the same product; only the order of additions differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ONE_TOKEN = ("linear", "halves", "packed")
BLOCK = ("linear", "packed")
_BLOCK_ROWS = 8
_WIDE_ROWS = (32, 128)
"""Block widths at which the packed kernel must still win to be used up to them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernels in use; part of every manifest."""

    one_token: str
    block: str
    block_up_to_rows: int
    """Widest input the block kernel is used for; wider ones take F.linear."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return asdict(self)


STOCK = Choice(one_token="linear", block="linear", block_up_to_rows=0)


def packing_available() -> bool:
    """True if this torch build has oneDNN's prepacked linear (a private operator: it may go away)."""
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class FastLinear(nn.Module):
    """nn.Linear with a kernel chosen by the number of input rows."""

    def __init__(self, linear: nn.Linear, choice: Choice):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._one_token: Callable[[Tensor], Tensor] = self._kernel(choice.one_token)
        self._block: Callable[[Tensor], Tensor] = self._kernel(choice.block)
        self._block_up_to = choice.block_up_to_rows

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        rows = x.numel() // self.in_features
        if rows == 1:
            return self._one_token(x)
        if rows <= self._block_up_to:
            return self._block(x)
        return F.linear(x, self.weight, self.bias)

    def _kernel(self, name: str) -> Callable[[Tensor], Tensor]:
        weight, bias = self.weight.detach(), self.bias
        if name == "packed":
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BLOCK_ROWS)
            return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        if name == "halves" and self.out_features % 2 == 0:
            halves = weight.view(2, self.out_features // 2, self.in_features).transpose(1, 2)  # [2, in, out / 2]
            return lambda x: _two_halves(x, halves, bias)
        return lambda x: F.linear(x, weight, bias)


def _two_halves(x: Tensor, halves: Tensor, bias: Tensor | None) -> Tensor:
    """One token times both halves of a weight as a batch of two, which two threads share evenly."""
    out = torch.bmm(x.reshape(1, 1, -1).expand(2, 1, -1), halves).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def accelerate(model: nn.Module) -> dict[str, Choice]:
    """Replace the linears of an fp32 CPU model by the fastest kernels of this machine.

    Returns the choice for each weight shape, "out x in"; empty for any other model, which is left alone.
    """
    linears = [(name, m) for name, m in model.named_modules() if type(m) is nn.Linear]
    if not linears or any(m.weight.dtype != torch.float32 or m.weight.device.type != "cpu" for _, m in linears):
        return {}
    shapes: dict[tuple[int, int], list[nn.Linear]] = {}
    for _, linear in linears:
        shapes.setdefault((linear.out_features, linear.in_features), []).append(linear)
    choices = {shape: _fastest(same) for shape, same in shapes.items()}
    for name, linear in linears:
        choice = choices[linear.out_features, linear.in_features]
        if choice != STOCK:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, FastLinear(linear, choice))
    return {f"{out} x {into}": choice for (out, into), choice in choices.items()}


def _fastest(linears: Sequence[nn.Linear], sample_bytes: int = 300_000_000) -> Choice:
    """Race the candidates over layers of one shape, as many as `sample_bytes` hold, so that weights are not cached."""
    sample = linears[: max(1, sample_bytes // (linears[0].weight.numel() * 4))]
    usable = packing_available()
    one = _race(sample, [k for k in ONE_TOKEN if usable or k != "packed"], rows=1)
    block = _race(sample, [k for k in BLOCK if usable or k != "packed"], rows=_BLOCK_ROWS)
    up_to = 0
    if block == "packed":
        up_to = _BLOCK_ROWS
        for rows in _WIDE_ROWS:
            if _race(sample, BLOCK, rows=rows) != "packed":
                break
            up_to = rows
    return Choice(one_token=one, block=block, block_up_to_rows=up_to)


def _race(sample: Sequence[nn.Linear], kernels: Sequence[str], *, rows: int, repeats: int = 5) -> str:
    """The fastest of `kernels` at `rows` input rows; the first one keeps its place unless beaten by 5 %.

    The best of several interleaved runs counts: what the machine can do, not what else it was doing.
    """
    x = torch.randn(1, rows, sample[0].in_features)
    built = {kernel: [FastLinear(linear, Choice(kernel, kernel, rows)) for linear in sample] for kernel in kernels}
    best_s = dict.fromkeys(kernels, float("inf"))
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for kernel in kernels:
                began = time.perf_counter()
                for layer in built[kernel]:
                    layer(x)
                best_s[kernel] = min(best_s[kernel], time.perf_counter() - began)
    winner = min(best_s, key=lambda kernel: best_s[kernel])
    return winner if best_s[winner] < 0.95 * best_s[kernels[0]] else kernels[0]
