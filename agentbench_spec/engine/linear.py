"""Faster fp32 linear layers on the CPU, so that neither the baseline nor verification is slowed by poor kernels.

A decode step reads every weight once, so it should run at memory speed; verifying 8 tokens reads them once too and
should cost little more. Stock thin-matrix kernels miss both on some machines. Which kernel wins differs from machine
to machine and from shape to shape, so `accelerate` times the candidates on the model's own layers and keeps the
fastest for one token and for a block. Every candidate computes the same product; only the order of additions differs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.engine.machine import host_facts
from agentbench_spec.results.provenance import write_json_atomic

log = logging.getLogger(__name__)

Kernel = Callable[[Tensor], Tensor]

ONE_TOKEN = ("linear", "halves", "packed")
"""Candidates for one input row; the first keeps its place unless clearly beaten."""
BLOCK = ("linear", "packed")
"""Candidates for a few input rows."""
BLOCK_ROWS = (8, 32, 128)
"""Block widths raced; the packed kernel is used up to the widest at which, and below which, it still wins."""
_MARGIN = 0.95
CACHE_FILE = "kernels.json"


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernels in use for one weight shape; part of every manifest."""

    one_token: str = "linear"
    block: str = "linear"
    block_up_to_rows: int = 0
    """Widest input the block kernel is used for; wider ones take F.linear."""

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

    cache: folder that remembers the choice per machine, torch build and model, so that later runs use the same
    kernels; delete kernels.json there to race anew.
    Returns the choice for each weight shape, "out x in"; empty for any other model, which is left alone.
    """
    linears = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    if any(m.weight.dtype != torch.float32 or m.weight.device.type != "cpu" for m in linears.values()):
        return {}
    kernels = {name: kernels_of(linear) for name, linear in linears.items()}
    key = _machine_key(linears.values())
    choices = _remembered(cache, key)
    if not choices.keys() >= {_shape(linear) for linear in linears.values()}:
        choices = _choose(list(linears.values()), list(kernels.values()))
    _remember(cache, key, choices)
    for name, linear in linears.items():
        choice = choices[_shape(linear)]
        if choice != STOCK:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, FastLinear(linear, choice, kernels[name]))
    return choices


def _machine_key(linears: Iterable[nn.Linear]) -> str:
    """What a choice depends on: CPU, threads, torch build, and the layers in order."""
    shapes = sorted(Counter(map(_shape, linears)).items())
    facts = (host_facts()["cpu"], torch.get_num_threads(), torch.__version__, shapes)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _remembered(cache: Path | None, key: str) -> dict[str, Choice]:
    try:
        return {shape: _as_choice(kept) for shape, kept in _kept_choices(cache).get(key, {}).items()}
    except (TypeError, AttributeError):
        return {}  # a damaged entry is raced anew and overwritten


def _kept_choices(cache: Path | None) -> dict[str, Any]:
    """Everything the cache file holds, by machine and model; empty if there is none or it is damaged."""
    if cache is None:
        return {}
    try:
        kept = json.loads((cache / CACHE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _as_choice(kept: dict[str, Any]) -> Choice:
    choice = Choice(**kept)
    if not isinstance(choice.block_up_to_rows, int):
        raise TypeError("block_up_to_rows is a count")
    return choice


def _remember(cache: Path | None, key: str, choices: dict[str, Choice]) -> None:
    """Add the choices to the cache file; a folder that cannot be written only means racing again next time."""
    if cache is None or _remembered(cache, key) == choices:
        return
    kept = _kept_choices(cache) | {key: {shape: choice.as_dict() for shape, choice in choices.items()}}
    try:
        cache.mkdir(parents=True, exist_ok=True)
        write_json_atomic(cache / CACHE_FILE, kept)
    except OSError as error:
        log.warning("cannot remember kernels in %s: %s", cache, error)


def _shape(linear: nn.Linear) -> str:
    return f"{linear.out_features} x {linear.in_features}"


def _choose(linears: Sequence[nn.Linear], kernels: Sequence[dict[str, Kernel]]) -> dict[str, Choice]:
    """The fastest kernels for each weight shape."""
    one = _race(linears, kernels, ONE_TOKEN, rows=1)
    blocks = {rows: _race(linears, kernels, BLOCK, rows=rows) for rows in BLOCK_ROWS}
    choices = {}
    for shape, one_token in one.items():
        up_to = 0
        for rows in BLOCK_ROWS:
            if blocks[rows][shape] != "packed":
                break
            up_to = rows
        choices[shape] = Choice(one_token, "packed" if up_to else "linear", up_to)
    return choices


def _race(
    linears: Sequence[nn.Linear], kernels: Sequence[dict[str, Kernel]], names: Sequence[str], *, rows: int
) -> dict[str, str]:
    """For each weight shape the fastest of `names` at `rows` input rows.

    Every run walks the whole model, as decoding does, so that weights come from where they come from then; each
    layer's best of three counts: what the machine can do, not what else it was doing.
    """
    inputs = {linear.in_features: torch.randn(1, rows, linear.in_features) for linear in linears}
    spent_s: dict[str, dict[str, float]] = {_shape(linear): {} for linear in linears}
    with torch.inference_mode():
        for name in names:
            best_s = [float("inf")] * len(linears)
            for _ in range(3):
                for i, linear in enumerate(linears):
                    kernel, x = kernels[i].get(name, kernels[i]["linear"]), inputs[linear.in_features]
                    began_s = time.perf_counter()
                    kernel(x)
                    best_s[i] = min(best_s[i], time.perf_counter() - began_s)
            for linear, seconds in zip(linears, best_s, strict=True):
                shape = spent_s[_shape(linear)]
                shape[name] = shape.get(name, 0.0) + seconds
    return {shape: _winner(times, names[0]) for shape, times in spent_s.items()}


def _winner(times_s: dict[str, float], incumbent: str) -> str:
    best = min(times_s, key=lambda name: times_s[name])
    return best if times_s[best] < _MARGIN * times_s[incumbent] else incumbent
