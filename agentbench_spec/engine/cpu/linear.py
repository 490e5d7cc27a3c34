"""Faster fp32 linear layers on the CPU, so that neither the baseline nor verification is slowed by poor kernels.

A decode step reads every weight once, so it should run at memory speed; verifying 8 tokens reads them once too and
should cost little more. Stock thin-matrix kernels miss both on some machines. Which kernel wins differs from machine
to machine and from shape to shape, so `accelerate` races the candidates on the model's own layers and keeps the
fastest for one token and for a block. Every candidate computes the same product; only the order of additions differs.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.engine.cpu.race import Evidence, Halves, keep, kept_outcomes, laps, machine_key, winner
from agentbench_spec.engine.machine import OtherWork

Kernel = Callable[[Tensor], Tensor]

ONE_TOKEN = ("linear", "halves", "packed")
"""Candidates for one input row; the first keeps its place unless clearly beaten."""
BLOCK = ("linear", "packed")
"""Candidates for a few input rows."""
BLOCK_ROWS = (8, 32, 128)
"""Block widths raced; the packed kernel is used up to the widest at which, and below which, it still wins."""
_LAPS = {1: 12, 8: 12, 32: 4, 128: 4}
"""Laps of a race, by input rows: few where a lap takes long."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernels in use for one weight shape; part of every manifest."""

    one_token: str = "linear"
    block: str = "linear"
    block_up_to_rows: int = 0
    """Widest input the block kernel is used for; wider ones take F.linear."""
    evidence: Evidence | None = field(default=None, compare=False)
    """How it came about; None: it was not raced."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return asdict(self)


STOCK = Choice()


def packing_available() -> bool:
    """True if this torch build has oneDNN's prepacked linear (a private operator: it may go away)."""
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def kernels_of(linear: nn.Linear, names: Sequence[str] = ONE_TOKEN) -> dict[str, Kernel]:
    """The candidates of `names` that this layer and this torch build can run, each [..., in] -> [..., out]."""
    weight, bias = linear.weight.detach(), linear.bias
    kernels: dict[str, Kernel] = {"linear": lambda x: F.linear(x, weight, bias)}
    if "halves" in names and linear.out_features % 2 == 0:
        halves = weight.view(2, linear.out_features // 2, linear.in_features).transpose(1, 2)  # [2, in, out / 2]
        kernels["halves"] = lambda x: _two_halves(x, halves, bias)
    if "packed" in names and packing_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), BLOCK_ROWS[0])
        kernels["packed"] = lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return kernels


def _two_halves(x: Tensor, halves: Tensor, bias: Tensor | None) -> Tensor:
    """One token times both halves of a weight as a batch of two, which two threads share evenly."""
    out = torch.bmm(x.reshape(1, 1, -1).expand(2, 1, -1), halves).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


class FastLinear(nn.Module):
    """nn.Linear with a kernel chosen by the number of input rows."""

    def __init__(self, linear: nn.Linear, choice: Choice, kernels: dict[str, Kernel]):
        """kernels: what `kernels_of` made for this layer. A kernel it lacks falls back to F.linear."""
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._one_token = kernels.get(choice.one_token, kernels["linear"])
        self._block = kernels.get(choice.block, kernels["linear"])
        self._block_up_to = choice.block_up_to_rows

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        rows = x.numel() // self.in_features
        if rows == 1:
            return self._one_token(x)
        if rows <= self._block_up_to:
            return self._block(x)
        return F.linear(x, self.weight, self.bias)


def accelerate(model: nn.Module, cache: Path | None = None) -> dict[str, Choice]:
    """Replace the linears of an fp32 CPU model by the fastest kernels of this machine.

    cache: folder that remembers the choice per CPU, threads, torch build and model, so that later runs use the same
    kernels; delete kernels.json there to race anew. A choice made while other work kept the machine busy is raced again
    by the next run, and changed only if it is clearly beaten.
    Returns the choice for each weight shape, "out x in"; empty for any other model, which is left alone.
    """
    linears = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    if any(m.weight.dtype != torch.float32 or m.weight.device.type != "cpu" for m in linears.values()):
        return {}
    kernels = {name: kernels_of(linear) for name, linear in linears.items()}
    key = _key(linears.values())
    choices, wanted = _remembered(cache, key), {_shape(linear) for linear in linears.values()}
    if not choices.keys() >= wanted or any(c.evidence and not c.evidence.final for c in choices.values()):
        choices = _choose(list(linears.values()), list(kernels.values()), choices)
    keep(cache, key, {shape: choice.as_dict() for shape, choice in choices.items()})
    for name, linear in linears.items():
        choice = choices[_shape(linear)]
        if choice != STOCK:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, FastLinear(linear, choice, kernels[name]))
    return choices


def _key(linears: Iterable[nn.Linear]) -> str:
    shapes = sorted(Counter(map(_shape, linears)).items())
    return machine_key(f"linears {hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]}")


def _remembered(cache: Path | None, key: str) -> dict[str, Choice]:
    try:
        return {shape: _as_choice(kept) for shape, kept in kept_outcomes(cache).get(key, {}).items()}
    except (TypeError, AttributeError):
        return {}  # a damaged entry is raced anew and overwritten


def _as_choice(kept: dict[str, Any]) -> Choice:
    choice = Choice(**{**kept, "evidence": Evidence.read(kept.get("evidence"))})
    if not isinstance(choice.block_up_to_rows, int):
        raise TypeError("block_up_to_rows is a count")
    return choice


def _shape(linear: nn.Linear) -> str:
    return f"{linear.out_features} x {linear.in_features}"


def _choose(
    linears: Sequence[nn.Linear], kernels: Sequence[dict[str, Kernel]], before: Mapping[str, Choice]
) -> dict[str, Choice]:
    """The fastest kernels for each weight shape; before: the incumbents, stock where there are none."""
    with OtherWork() as other:
        contests = {1: _race(linears, kernels, ONE_TOKEN, rows=1)}
        contests |= {rows: _race(linears, kernels, BLOCK, rows=rows) for rows in BLOCK_ROWS}
    choices, many = {}, Counter(map(_shape, linears))
    for shape, count in many.items():
        held = before.get(shape, STOCK)
        up_to = 0
        for rows in BLOCK_ROWS:
            if winner(contests[rows][shape], held.block if rows <= held.block_up_to_rows else BLOCK[0]) != "packed":
                break
            up_to = rows
        us = {
            str(rows): {name: round(1e6 * min(halves) / count, 1) for name, halves in contest[shape].items()}
            for rows, contest in contests.items()
        }
        evidence = Evidence(us, other.cores, 1 + (held.evidence.races if held.evidence else 0))
        one_token = winner(contests[1][shape], held.one_token)
        choices[shape] = Choice(one_token, "packed" if up_to else "linear", up_to, evidence)
    return choices


def _race(
    linears: Sequence[nn.Linear], kernels: Sequence[dict[str, Kernel]], names: Sequence[str], *, rows: int
) -> dict[str, dict[str, Halves]]:
    """For each weight shape and kernel of `names`, seconds at `rows` input rows, summed over the shape's layers."""
    inputs = {linear.in_features: torch.randn(1, rows, linear.in_features) for linear in linears}

    def walk(name: str) -> list[float]:
        spent = []
        for linear, own in zip(linears, kernels, strict=True):
            kernel, x = own.get(name, own["linear"]), inputs[linear.in_features]
            began_s = time.perf_counter()
            kernel(x)
            spent.append(time.perf_counter() - began_s)
        return spent

    with torch.inference_mode():
        best = laps(walk, names, _LAPS[rows])
    shapes = [_shape(linear) for linear in linears]
    return {
        shape: {name: tuple(_total(h, shapes, shape) for h in own) for name, own in best.items()} for shape in shapes
    }


def _total(seconds: Sequence[float], shapes: Sequence[str], shape: str) -> float:
    return sum(s for s, own in zip(seconds, shapes, strict=True) if own == shape)
