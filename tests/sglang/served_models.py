"""The tiny Qwen3 target, and the drafts that the real server is started with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import localmodel

from agentbench_spec.train.fit import train
from agentbench_spec.train.options import TrainConfig

VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 512, 128, 256, 4, 2, 32, 2048
LAYERS = 4
KV_BYTES = LAYERS * 2 * KV_HEADS * HEAD_DIM * 4
"""Of a token in the target's cache, in float32."""
BLOCK, STEPS = 4, 150
OPTIONS: dict[str, dict[str, Any]] = {
    "dlite": {
        "single_stage": True,
        "depth": 2,
        "slots": 3,
        "target_layer_ids": [0, 2, 3],
        "rank": 16,
        "block_size": BLOCK,
        "group": 2,
    },
    "eagle3": {"steps": BLOCK - 1, "draft_vocab_size": VOCABULARY, "target_layer_ids": [0, 1, 2]},
}
"""Of the trainers; the last of the target's four layers is among those that the DLite student reads."""


def save_target(folder: Path) -> Path:
    """Four random layers, a byte-level tokenizer, a chat template with tools."""
    tokenizer = localmodel._tokenizer()
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
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
                weight.mul_(20.0 if "lm_head" in name or "embed" in name else 3.0)  # text that does not run in a circle
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
"""What the draft's config.json has in common with the target's."""


def save_draft(folder: Path) -> Path:
    """An EAGLE-3 draft without weights: the server draws them (load format dummy)."""
    config = {
        **OF_THE_TARGET,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": VOCABULARY,
        "num_hidden_layers": 1,
        "max_position_embeddings": WINDOW,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def train_draft(folder: Path, drafter: str, target: Path, rollouts: Path, max_new_tokens: int, **options: Any) -> Path:
    """A checkpoint as our trainer writes it, trained on what the target answers in these rollouts: right about half
    of the time there, in rounds of every length."""
    config = TrainConfig(
        drafter=drafter,
        options=OPTIONS[drafter] | options,
        target=str(target),
        target_dtype="float32",
        device="cpu",
        data=str(rollouts),
        regenerate=str(folder.with_suffix(".jsonl")),
        max_new_tokens=max_new_tokens,
        min_supervised_tokens=BLOCK,
        steps=STEPS,
        batch=3,
        learning_rate=3e-3,
        checkpoint_dtype="float32",
        threads=1,
    )
    train(config, folder)
    return folder
