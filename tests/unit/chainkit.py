"""A tiny random target and random draft checkpoints for drafters that have no recorded vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentbench_spec.drafting import Drafter, Span
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler, generator
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock

CPU = torch.device("cpu")
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, DEPTH = 24, 40, 4, 2, 8, 50, 6
SIZES: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}


class Greedy:
    """Temperature 0."""

    greedy = True

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.argmax(-1), None


@cache
def target() -> Target:
    """A random Qwen3 of 6 layers that repeats itself enough for drafts to be accepted now and then."""
    torch.manual_seed(0)
    config = Qwen3Config(
        **{key: value for key, value in SIZES.items() if key not in ("model_type", "rope_theta")},
        rope_parameters={"rope_type": "default", "rope_theta": SIZES["rope_theta"]},
        num_hidden_layers=DEPTH,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return Target(Qwen3ForCausalLM(config).eval(), name="tiny", capacity=128)


def layer_shapes(prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one Qwen3 decoder layer."""
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return {
        f"{prefix}self_attn.q_proj.weight": (wide, HIDDEN),
        f"{prefix}self_attn.k_proj.weight": (narrow, HIDDEN),
        f"{prefix}self_attn.v_proj.weight": (narrow, HIDDEN),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, wide),
        f"{prefix}self_attn.q_norm.weight": (HEAD_DIM,),
        f"{prefix}self_attn.k_norm.weight": (HEAD_DIM,),
        f"{prefix}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, INNER),
        f"{prefix}input_layernorm.weight": (HIDDEN,),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
    }


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 1) -> dict[str, Tensor]:
    """Weights that keep activations near 1; norm gains around 1."""
    draw = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=draw)
        made[name] = noise / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * noise
    return made


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """A draft checkpoint folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**SIZES, **config}))
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def opened(drafter: Any, *, rows: int = 1) -> Any:
    """`drafter`, opened on the tiny target at temperature 0."""
    drafter.open(target().info, rows=rows, capacity=128)
    drafter.sampler = Greedy()
    return drafter


def random_text(length: int, taps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens [length] and states [length, S, H]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY - 1, (length,), generator=draw), torch.randn(
        length, taps, HIDDEN, generator=draw
    )


def feed(drafter: Drafter, tokens: Tensor, hidden: Tensor, start: int, end: int, chunk: int = 64) -> None:
    """Observe positions start .. end - 1 of row 0 in chunks, with poisoned padding behind each."""
    for first in range(start, end, chunk):
        last = min(first + chunk, end)
        void = torch.full((2, *hidden.shape[1:]), torch.nan)
        drafter.observe(
            Span(
                rows=torch.tensor([0]),
                start=torch.tensor([first]),
                count=torch.tensor([last - first]),
                input_ids=torch.cat((tokens[first:last], torch.tensor([7, 7])))[None],
                next_ids=torch.cat((tokens[first + 1 : last + 1], torch.tensor([7, 7])))[None],
                hidden=torch.cat((hidden[first:last], void))[None],
            )
        )


def decoded(drafter: Drafter, prompts: Sequence[Sequence[int]], k: int, new_tokens: int = 24) -> list[list[int]]:
    """Output of each turn of a session that the engine decodes greedily with `drafter`."""
    session = Session(target(), {"it": drafter}, chunk_tokens=5)
    outputs = []
    for prompt in prompts:
        session.prefill(prompt, lambda logits: int(logits.argmax()))
        sampler = RowSampler(GREEDY, [generator(CPU, 0)])
        turn, _, _ = session.decode("it", Limits(k, new_tokens), sampler, Clock(CPU))
        outputs.append(turn.output)
    assert session.failed == {}
    return outputs
