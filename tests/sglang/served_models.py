"""The tiny Qwen3 target, and the drafts that the real server is started with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from agentbench_spec_drafters.nets.dlite import DLiteConfig, DLiteNet
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import localmodel

STUDENT_LAYERS, BLOCK = (0, 2, 3), 4
VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 512, 128, 256, 4, 2, 32, 2048


def save_target(folder: Path) -> Path:
    """Four random layers, a byte-level tokenizer, a chat template with tools."""
    tokenizer = localmodel._tokenizer()
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(4.0 if "lm_head" in name or "embed" in name else 2.0)  # text that is not one token for ever
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


OF_THE_TARGET: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What a draft's config.json has in common with the target's."""


def draft_config(words: int) -> dict[str, Any]:
    """config.json of a one-layer EAGLE-3 draft that can say `words` different tokens."""
    return {
        **OF_THE_TARGET,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": words,
        "num_hidden_layers": 1,
        "max_position_embeddings": WINDOW,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
    }


def save_draft(folder: Path) -> Path:
    """A draft without weights: the server draws them (load format dummy)."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(draft_config(VOCABULARY)))
    return folder


def save_checkpoint(folder: Path, words: list[int], seed: int = 1) -> Path:
    """An EAGLE-3 checkpoint of random weights that can say only `words`, so that it is right now and then."""
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": (wide, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (narrow, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (narrow, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, wide),
        "midlayer.mlp.gate_proj.weight": (INNER, HIDDEN),
        "midlayer.mlp.up_proj.weight": (INNER, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, INNER),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (len(words), HIDDEN),
    }
    draw = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    tensors = {name: t / t.shape[-1] ** 0.5 if t.ndim > 1 else 1 + 0.2 * t for name, t in noise.items()}
    known = torch.tensor(sorted(words))
    tensors["d2t"] = known - torch.arange(len(words))
    tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, known, True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(draft_config(len(words))))
    save_file(tensors, folder / "model.safetensors")
    return folder


def student_config(group: int) -> dict[str, Any]:
    """config.json of a DLite student of two layers; the last of the target's four layers is among its three."""
    return {
        **OF_THE_TARGET,
        "architectures": ["DLiteDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
        "block_size": BLOCK,
        "num_target_layers": 4,
        "dlite_config": {
            "architecture_version": "dlite_v2",
            "model_role": "pivot_q_student",
            "anchor_group_size": group,
            "chs_num_layers": len(STUDENT_LAYERS),
            "target_layer_ids": list(STUDENT_LAYERS),
            "sequential_head": "rnn",
            "sequential_rank": 16,
            "mask_token_id": VOCABULARY - 1,
        },
    }


def save_student(folder: Path, words: list[int], group: int = 2, seed: int = 1) -> Path:
    """A DLite checkpoint of random weights that says only `words`, so that it is right now and then."""
    config = student_config(group)
    with torch.device("meta"):
        empty = DLiteNet(DLiteConfig.from_config(config, "student")).state_dict()
    draw = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(tensor.shape, generator=draw) for name, tensor in empty.items()}
    tensors = {
        name: 1 + 0.2 * t if "norm" in name else t / t.shape[-1] ** 0.5 if t.ndim > 1 else 0.1 * t
        for name, t in noise.items()
    }
    said = torch.zeros(VOCABULARY, 1).index_fill(0, torch.tensor(words), 1.0)
    tensors["sequential_head.output_proj.weight"] *= said
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder
