"""Writes the golden EAGLE-3 head in the other published layouts (spec 2.1, 2.2), to load it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import eagle3_kit as kit
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

HEAD = load_file(kit.DRAFT / "model.safetensors")
CONFIG: dict[str, Any] = json.loads((kit.DRAFT / "config.json").read_text())
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")


def drafted_ids() -> list[int]:
    """Every id the official code drafted in any recorded case, ascending: a draft vocabulary that changes nothing."""
    rounds = (tokens for case in kit.CASES.values() for tokens in case["rounds"]["draft_tokens"])
    return sorted({token for tokens in rounds for token in tokens})


def reduced(ids: list[int]) -> dict[str, Tensor]:
    """The head cut down to a draft vocabulary, with d2t and t2d."""
    kept = torch.tensor(ids)
    member = torch.zeros(CONFIG["vocab_size"], dtype=torch.bool)
    member[kept] = True
    maps = {"d2t": kept - torch.arange(len(ids)), "t2d": member}
    return {**HEAD, "lm_head.weight": HEAD["lm_head.weight"][kept].clone(), **maps}


def write_midlayer(folder: Path, tensors: dict[str, Tensor], *, binary: bool = False, **changes: Any) -> Path:
    """SafeAILab / AngelSlim / SpecForge: `midlayer.*` names, the target's embedding, config sizes often wrong."""
    config = {
        **{name: CONFIG[name] for name in SIZES},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "rms_norm_eps": CONFIG["rms_norm_eps"],
        "draft_vocab_size": 32000,
        "num_hidden_layers": 36,
        "tie_word_embeddings": True,
        "head_dim": 80,
        "rope_scaling": None,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": CONFIG["target_layer_ids"]},
        **changes,
    }
    named = {
        name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items() if "embed_tokens" not in name
    }
    return _write(folder, config, named, binary)


def write_speculators(folder: Path, tensors: dict[str, Tensor], **changes: Any) -> Path:
    """Red Hat / vLLM: a nested layer config, hidden-state-tuple numbering of the layers, verifier helper tensors."""
    layer = {name: CONFIG[name] for name in (*SIZES, "rms_norm_eps", "rope_parameters")}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {**layer, "model_type": "qwen3"},
        "draft_vocab_size": 32000,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [i + 1 for i in CONFIG["target_layer_ids"]],
        **changes,
    }
    return _write(folder, config, {**tensors, "verifier_norm.weight": torch.ones(3)}, binary=False)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], binary: bool) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if binary:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder
