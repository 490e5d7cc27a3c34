"""Tiny random models of the three families, with weights that make greedy text varied, and prompts for them."""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers
from torch import nn

VOCAB = 97
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "Qwen2": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 12, "tie_word_embeddings": True},
}
"""Qwen2 has q/k/v biases, Qwen3 q/k norms and here a head_dim that is not hidden / heads."""
_GAIN = {"q_proj": 3.0, "k_proj": 3.0, "lm_head": 3.0, "embed_tokens": 1.0}


def tiny(family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, **options: Any) -> nn.Module:
    """A seeded model of `family`; the global generator is left alone. config_class: where it is not `family`Config."""
    config = getattr(transformers, options.pop("config_class", f"{family}Config"))(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 2048,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **FAMILIES.get(family, {}),
            **options,
        }
    )
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype)
    seed_weights(model, seed)
    return model.eval().requires_grad_(False)


def seed_weights(model: nn.Module, seed: int) -> None:
    """Norms near one, biases and matrices random: a bias, norm or scale that is left out changes the text."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=draw, dtype=torch.float64)
            if weight.ndim == 1:
                weight.copy_(0.3 * values + (0 if name.endswith("bias") else 1))
            else:
                weight.copy_(
                    values
                    * _GAIN.get(name.split(".")[-2], 1.5)
                    / math.sqrt(weight.shape[1]) ** (0 if "embed" in name else 1)
                )


def prompts(count: int, *, vocab: int = VOCAB, shortest: int = 2, longest: int = 60, seed: int = 0) -> list[list[int]]:
    """Random prompts of ragged lengths."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest, (count,), generator=draw).tolist()
    return [torch.randint(vocab, (n,), generator=draw).tolist() for n in lengths]
