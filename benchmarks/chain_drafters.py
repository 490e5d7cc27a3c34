"""Time of an EAGLE-3 round on rows, against a straightforward one-sequence implementation of the same maths.

    python benchmarks/chain_drafters.py [--rounds 40] [--context 1024] [--threads 1] [--out FILE]

A round takes in what the target verified (3 positions counted, of 8 fed) and drafts 7 tokens. Both sides get the same
random head, texts and features, alternate round by round, and must draft the same ids. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from agentbench_spec_drafters.eagle3 import make
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.drafting import Span, TargetInfo

K, COUNTED, TAPS = 7, 3, 5
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 48, "inner": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocabulary": 160},
    "small": {"hidden": 512, "inner": 1536, "heads": 8, "kv_heads": 4, "head_dim": 64, "vocabulary": 8192},
    "1B-like": {"hidden": 1024, "inner": 3072, "heads": 16, "kv_heads": 8, "head_dim": 128, "vocabulary": 32000},
}


@dataclass(frozen=True)
class Result:
    """Median seconds of a round, observe and propose together."""

    size: str
    batch: int
    ours_s: float
    straightforward_s: float
    ratio: float
    """Straightforward / ours: above 1, ours is faster."""


def weights_of(size: dict[str, int]) -> dict[str, Tensor]:
    """A random head in the DeepSpec layout."""
    h, inner, d = size["hidden"], size["inner"], size["head_dim"]
    q, kv = size["heads"] * d, size["kv_heads"] * d
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (size["vocabulary"], h),
        "fc.weight": (h, TAPS * h),
        "layers.0.hidden_norm.weight": (h,),
        "layers.0.input_layernorm.weight": (h,),
        "layers.0.post_attention_layernorm.weight": (h,),
        "layers.0.self_attn.q_proj.weight": (q, 2 * h),
        "layers.0.self_attn.k_proj.weight": (kv, 2 * h),
        "layers.0.self_attn.v_proj.weight": (kv, 2 * h),
        "layers.0.self_attn.o_proj.weight": (h, q),
        "layers.0.self_attn.q_norm.weight": (d,),
        "layers.0.self_attn.k_norm.weight": (d,),
        "layers.0.mlp.gate_proj.weight": (inner, h),
        "layers.0.mlp.up_proj.weight": (inner, h),
        "layers.0.mlp.down_proj.weight": (h, inner),
        "norm.weight": (h,),
        "lm_head.weight": (size["vocabulary"], h),
    }
    torch.manual_seed(0)
    return {name: torch.randn(s) / s[-1] ** 0.5 if len(s) > 1 else torch.ones(s) for name, s in shapes.items()}


def config_of(size: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3Eagle3Model"],
        "hidden_size": size["hidden"],
        "intermediate_size": size["inner"],
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"],
        "head_dim": size["head_dim"],
        "vocab_size": size["vocabulary"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "num_target_layers": 36,
        "target_layer_ids": [1, 9, 17, 25, 33],
        "ttt_length": K,
    }


class OneSequence:
    """EAGLE-3 as its description reads: a growing cache, one causal forward over new pairs, then single steps."""

    def __init__(self, weights: dict[str, Tensor], size: dict[str, int]) -> None:
        self.w = {name.removeprefix("layers.0."): tensor for name, tensor in weights.items()}
        self.size = size
        shape = (1, size["kv_heads"], 0, size["head_dim"])
        self.keys, self.values = torch.empty(shape), torch.empty(shape)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return self.w[f"{name}.weight"] * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))

    def turned(self, x: Tensor, start: int) -> Tensor:
        d = x.shape[-1]
        frequency = 1e6 ** (-torch.arange(0, d, 2) / d)
        angle = torch.arange(start, start + x.shape[2])[:, None] * frequency
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
        return x * cos + torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1) * sin

    def forward(self, hidden: Tensor, tokens: Tensor, start: int) -> Tensor:
        """hidden [1, n, H] and the tokens after them [1, n] at positions start ... -> un-normed states [1, n, H]."""
        w, d = self.w, self.size["head_dim"]
        e = self.norm(F.embedding(tokens, w["embed_tokens.weight"]), "input_layernorm")
        pair = torch.cat((e, self.norm(hidden, "hidden_norm")), -1)
        q, k, v = (
            F.linear(pair, w[f"self_attn.{part}_proj.weight"]).unflatten(-1, (-1, d)).transpose(1, 2) for part in "qkv"
        )
        q, k = (self.turned(self.norm(x, f"self_attn.{name}_norm"), start) for x, name in ((q, "q"), (k, "k")))
        self.keys, self.values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        n, total = tokens.shape[1], self.keys.shape[2]
        mask = None if n == 1 else torch.ones(n, total, dtype=torch.bool).tril(total - n)
        mixed = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=True)
        r = hidden + F.linear(mixed.transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"])
        x = self.norm(r, "post_attention_layernorm")
        gated = F.silu(F.linear(x, w["mlp.gate_proj.weight"])) * F.linear(x, w["mlp.up_proj.weight"])
        return r + F.linear(gated, w["mlp.down_proj.weight"])

    def choose(self, state: Tensor) -> Tensor:
        return F.linear(self.norm(state, "norm"), self.w["lm_head.weight"]).argmax(-1)

    def round(self, features: Tensor, following: Tensor, start: int) -> list[int]:
        """Take in features [m, S * H] with the tokens after them [m], draft K tokens, and cut the cache back."""
        state = self.forward(F.linear(features[None], self.w["fc.weight"]), following[None], start)[:, -1:]
        committed = self.keys.shape[2]
        drafted = [self.choose(state)]
        for step in range(K - 1):
            state = self.forward(state, drafted[-1], committed + step)
            drafted.append(self.choose(state))
        self.keys, self.values = self.keys[:, :, :committed], self.values[:, :, :committed]
        return [int(token) for token in drafted]


def target_of(size: dict[str, int]) -> TargetInfo:
    return TargetInfo(
        name="random",
        vocab_size=size["vocabulary"],
        hidden_size=size["hidden"],
        num_layers=36,
        max_positions=4096,
        dtype=torch.float32,
        device=torch.device("cpu"),
        config={"rope_theta": 1e6},
        embed_tokens=nn.Embedding(1, 1),
        lm_head=nn.Linear(1, 1),
    )


def span(texts: list[Tensor], hidden: list[Tensor], start: int, count: int, fed: int) -> Span:
    """Positions start .. start + fed - 1 of every row, of which `count` count."""
    ids = torch.stack([text[start : start + fed] for text in texts])
    following = torch.stack([text[start + 1 : start + fed + 1] for text in texts])
    rows = torch.arange(len(texts))
    states = torch.stack([states[start : start + fed] for states in hidden])
    return Span(rows, torch.full_like(rows, start), torch.full_like(rows, count), ids, following, states)


class Greedy:
    greedy = True

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.argmax(-1), None


@torch.inference_mode()
def measure(name: str, batch: int, rounds: int, context: int) -> Result:
    """Alternate both sides over the same rounds; raises SystemExit if they draft different ids."""
    size = SIZES[name]
    weights = weights_of(size)
    total = context + COUNTED * rounds + 2 * K
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, size["vocabulary"], (total,), generator=draw) for _ in range(batch)]
    hidden = [torch.randn(total, TAPS, size["hidden"], generator=draw) for _ in range(batch)]
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, f"{folder}/model.safetensors")
        Path(folder, "config.json").write_text(json.dumps(config_of(size)))
        drafter = make(folder)
        drafter.open(target_of(size), rows=batch, capacity=total)
    drafter.sampler = Greedy()
    singles = [OneSequence(weights, size) for _ in range(batch)]
    drafter.observe(span(texts, hidden, 0, context, context))
    for single, text, states in zip(singles, texts, hidden, strict=True):
        single.round(states[:context].flatten(1), text[1 : context + 1], 0)
    ours, theirs = [], []
    for index in range(rounds):
        start = context + COUNTED * index
        seen = span(texts, hidden, start, COUNTED, K + 1)
        anchors = torch.stack([text[start + COUNTED] for text in texts])
        begin = time.perf_counter()
        drafter.observe(seen)
        drafted = drafter.propose(anchors, torch.full((batch,), start + COUNTED), K).ids.tolist()
        middle = time.perf_counter()
        expected = [
            single.round(states[start : start + COUNTED].flatten(1), text[start + 1 : start + COUNTED + 1], start)
            for single, text, states in zip(singles, texts, hidden, strict=True)
        ]
        theirs.append(time.perf_counter() - middle)
        ours.append(middle - begin)
        if drafted != expected:
            raise SystemExit(f"{name}, batch {batch}, round {index}: drafted {drafted}, expected {expected}")
    mine, other = statistics.median(ours), statistics.median(theirs)
    return Result(name, batch, mine, other, other / mine)


def main() -> None:
    """Measure every size at batch 1 and 4."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = [measure(name, batch, options.rounds, options.context) for name in options.sizes for batch in (1, 4)]
    for result in results:
        print(
            f"{result.size:8} batch {result.batch}: ours {result.ours_s * 1e3:7.2f} ms, straightforward "
            f"{result.straightforward_s * 1e3:7.2f} ms a round, ratio {result.ratio:.2f}"
        )
    report = {
        "torch": torch.__version__,
        "threads": options.threads,
        "context_tokens": options.context,
        "rounds": options.rounds,
        "results": [asdict(result) for result in results],
    }
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
