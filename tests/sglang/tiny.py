"""The tiny Qwen3 target and the EAGLE-3 draft configuration that the real server is started with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import localmodel

WINDOW = 2048


def save_target(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Four random layers, a byte-level tokenizer, a chat template with tools."""
    tokenizer = localmodel._tokenizer()
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(4.0 if "lm_head" in name or "embed" in name else 2.0)  # text that is not one token for ever
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_draft(folder: Path, dtype: str = "float32") -> Path:
    """config.json of a one-layer EAGLE-3 draft; its weights are drawn by the server (load format dummy)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": 512,
        "draft_vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": WINDOW,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    save_target(Path(sys.argv[1]) / "target")
    save_draft(Path(sys.argv[1]) / "draft")
