"""Attention of a few positions over a long context, keys and values split so that every core has work.

Stock kernels hand whole heads to threads: of two threads over three key/value heads one waits for a third of the time.
Here each head's positions are cut into pieces, the pieces are a batch, and what they say is merged by the sums of their
softmaxes. The same attention; only the order of additions differs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agentbench_spec.engine.cpu.race import Evidence, Halves, keep, kept_outcomes, laps, machine_key, winner
from agentbench_spec.engine.machine import OtherWork

CONTEXTS = (256, 512, 1024, 2048, 4096)
"""Contexts raced, in tokens; a width is split from the shortest on at which, and above which, that wins."""
WIDTHS = (1, 8)
"""Positions fed that are raced; the second stands for those between, too."""
_LAPS = 12
_KV_BYTES = 96 << 20
"""Keys and values that a lap walks through, more than a cache holds."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a context is split; part of every manifest."""

    parts: int
    """Pieces of a context; extents are multiples of it."""
    one_from: int | None
    """Context in tokens from which one position's attention is split; None: never."""
    block_from: int | None
    """The same for 2 to 8 positions."""
    evidence: Evidence | None = field(default=None, compare=False)
    """How it came about; None: it was not raced."""

    def applies(self, n: int, extent: int) -> bool:
        """True if the attention of n positions over so many is split."""
        least = self.one_from if n == 1 else self.block_from
        whole, left = divmod(extent, self.parts)
        sees_all_pieces = whole >= n + self.parts  # the last one holds what is fed, and padding up to a multiple
        return least is not None and n <= WIDTHS[-1] and extent >= least and not left and sees_all_pieces

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the file and the manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a target's attention."""

    kv_heads: int
    groups: int
    """Query heads that share one key/value head."""
    head_dim: int

    @classmethod
    def of(cls, config: Any) -> Heads:
        """Those of a transformers configuration."""
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls(kv_heads, heads // kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads)

    def __str__(self) -> str:
        return f"attention {self.kv_heads} x {self.groups} x {self.head_dim}"


def split_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, parts: int, scale: float | None = None
) -> Tensor:
    """Softmax attention over a context cut into `parts` equal pieces.

    query [1, Hkv, m, D]; key, value [1, Hkv, T, D], T a multiple of parts; mask [1, 1, m, T] additive, which leaves
    each row something to see in every piece; None: all is seen. Returns [1, Hkv, m, D].
    """
    pieces = [each.view(each.shape[1], parts, -1, each.shape[3]).transpose(0, 1) for each in (key, value)]
    seen = None if mask is None else mask.view(1, mask.shape[2], parts, -1).permute(2, 0, 1, 3)
    said, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query.expand(parts, -1, -1, -1), *pieces, 0.0, False, attn_mask=seen, scale=scale
    )
    return (said * sums.softmax(0)[..., None]).sum(0, keepdim=True)  # type: ignore[no-any-return]


def splitting_available() -> bool:
    """True if this torch build has the kernel that tells the sums of its softmaxes (it may go away)."""
    return hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")


def choose_split(heads: Heads, cache: Path | None = None) -> Split | None:
    """How attention of this shape in float32 is split on this machine; None: not at all.

    cache: folder that remembers the outcome, as `linear.accelerate` does.
    """
    threads = torch.get_num_threads()
    parts = threads // math.gcd(threads, heads.kv_heads)
    if parts == 1 or not splitting_available():
        return None
    key = machine_key(str(heads))
    split = _remembered(cache, key)
    if split is None or split.parts != parts or (split.evidence and not split.evidence.final):
        split = _raced(heads, parts, split)
        keep(cache, key, split.as_dict())
    return split if split.one_from or split.block_from else None


def _remembered(cache: Path | None, key: str) -> Split | None:
    kept = kept_outcomes(cache).get(key)
    try:
        split = Split(**{**kept, "evidence": Evidence.read(kept.get("evidence"))}) if kept else None
    except (TypeError, AttributeError):
        return None
    numbers = split and (split.parts, split.one_from or 0, split.block_from or 0)
    return split if numbers and all(isinstance(number, int) for number in numbers) else None


def _raced(heads: Heads, parts: int, before: Split | None) -> Split:
    """The outcome of a race; before: the incumbents, never to split where there are none."""
    with OtherWork() as other:
        contests = {(n, context): _race(heads, parts, n, context) for n in WIDTHS for context in CONTEXTS}
    us = {
        f"{n} over {context}": {name: round(1e6 * min(halves), 1) for name, halves in seconds.items()}
        for (n, context), seconds in contests.items()
    }
    evidence = Evidence(us, other.cores, 1 + (before.evidence.races if before and before.evidence else 0))
    one, block = (_least(contests, n, before) for n in WIDTHS)
    return Split(parts, one, block, evidence)


def _least(contests: Mapping[tuple[int, int], Mapping[str, Halves]], n: int, before: Split | None) -> int | None:
    least = None
    for context in reversed(CONTEXTS):
        held = before is not None and before.applies(n, context)
        if winner(contests[n, context], "split" if held else "stock") != "split":
            break
        least = context
    return least


def _race(heads: Heads, parts: int, n: int, context: int) -> dict[str, Halves]:
    """Mean seconds of one layer's attention of n positions over `context`, whole and split."""
    shape = (1, heads.kv_heads, context, heads.head_dim)
    layers = max(2, min(24, _KV_BYTES // (8 * math.prod(shape))))
    held = [(torch.randn(shape), torch.randn(shape)) for _ in range(layers)]
    query = torch.randn(1, heads.kv_heads, heads.groups * n, heads.head_dim)
    mask = None if n == 1 else torch.zeros(1, 1, heads.groups * n, context)

    def walk(name: str) -> list[float]:
        spent = []
        for key, value in held:
            began_s = time.perf_counter()
            if name == "split":
                split_attention(query, key, value, mask, parts)
            else:
                F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            spent.append(time.perf_counter() - began_s)
        return spent

    with torch.inference_mode():
        best = laps(walk, ("stock", "split"), _LAPS)
    return {name: tuple(sum(half) / layers for half in halves) for name, halves in best.items()}
