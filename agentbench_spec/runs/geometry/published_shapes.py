"""Published shapes of targets and of their drafters, as config.json would hold them, with the tensors of each draft.

Sizes are those of the public configs; where a draft of a kind was never published for a target, there is none here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from agentbench_spec.errors import unknown_name

Config = Mapping[str, Any]
Shapes = dict[str, list[int]]

_QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


def _qwen3(hidden: int, inner: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    return {**_QWEN3, **sizes, "num_attention_heads": heads, **more}


TARGETS: Mapping[str, Config] = {
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tie_word_embeddings=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, tie_word_embeddings=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40),
    "llama-3.1-8b": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
}
"""Llama's stretched rope turns by other angles at the same cost; its base alone is kept."""

_TAPS = {"qwen3-4b": [1, 9, 17, 25, 33], "qwen3-8b": [1, 9, 17, 25, 33], "qwen3-14b": [1, 10, 19, 28, 37]}
_DLITE = {"qwen3-4b": (12, 320), "qwen3-8b": (14, 512)}
"""Context slots and rank of the serial head; of the 14B student neither is known."""
_EAGLE3_IDS = 32000
_MASK = 151669
_DEPTH = 5
THIN = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_THIN_IDS, _THIN_RANK = 512, 8


_SERIAL = ("markov_head.", "sequential_head.")
_NOT_READ = ("embed", "markov_w1", "fc.weight", "confidence", "d2t")


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft checkpoint without its values."""

    drafter: str
    """Entry-point name."""
    layout: str
    config: Config
    shapes: Shapes
    k: int
    """Tokens it was trained to draft in a round."""
    chain: bool = False
    """One pass a drafted token; else one a round."""
    own_head: bool = True
    """False: the file's copy of the target's head is the target's own tensor once loaded."""

    def read_elements(self, k: int) -> int:
        """Weights that drafting k tokens reads at least; tables that are looked up, and `fc`, are not among them.

        A serial head is read once a token, as all of a chain is.
        """
        each = {name: prod(shape) for name, shape in self.shapes.items() if not any(word in name for word in _NOT_READ)}
        serial = sum(size for name, size in each.items() if self.chain or name.startswith(_SERIAL))
        lent = 0 if self.own_head else self.config["vocab_size"] * self.config["hidden_size"]
        return sum(each.values()) + lent + (k - 1) * serial


def target_config(name: str, *, thin: bool) -> dict[str, Any]:
    """The config of a target; thin: its layers, taps and ids in another width, for a test. Raises ConfigError."""
    if name not in TARGETS:
        raise unknown_name("geometry", name, TARGETS)
    return {**TARGETS[name], **({**THIN, "vocab_size": _THIN_IDS} if thin else {})}


def drafts_for(name: str, *, thin: bool) -> dict[str, Draft]:
    """The drafts published for a target, by drafter. Raises ConfigError for an unknown target."""
    target = target_config(name, thin=thin)
    makers: dict[str, Callable[[str, Config, bool], Draft | None]] = {
        "eagle3": _eagle3,
        "dflash": _dflash,
        "dspark": _dspark,
        "dlite": _dlite,
    }
    made = {drafter: make(name, target, thin) for drafter, make in makers.items()}
    return {drafter: draft for drafter, draft in made.items() if draft is not None}


def _layer(target: Config, width: int, *, qk_norm: bool = True) -> Shapes:
    """A decoder layer whose attention reads `width` channels."""
    h, inner, d = target["hidden_size"], target["intermediate_size"], target["head_dim"]
    queries, keys = target["num_attention_heads"] * d, target["num_key_value_heads"] * d
    shapes = {
        "self_attn.q_proj": [queries, width],
        "self_attn.k_proj": [keys, width],
        "self_attn.v_proj": [keys, width],
        "self_attn.o_proj": [h, queries],
        "mlp.gate_proj": [inner, h],
        "mlp.up_proj": [inner, h],
        "mlp.down_proj": [h, inner],
        "input_layernorm": [h],
        "post_attention_layernorm": [h],
        **({"self_attn.q_norm": [d], "self_attn.k_norm": [d]} if qk_norm else {}),
    }
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _layers(target: Config) -> Shapes:
    layer = _layer(target, target["hidden_size"])
    return {f"layers.{i}.{name}": shape for i in range(_DEPTH) for name, shape in layer.items()}


def _of(target: Config, **more: Any) -> dict[str, Any]:
    """The config of a draft over `target`: what is not the draft's own is the target's."""
    depth = target["num_hidden_layers"]
    return {**target, "num_hidden_layers": _DEPTH, "num_target_layers": depth, "tie_word_embeddings": False, **more}


def _eagle3(name: str, target: Config, thin: bool) -> Draft | None:
    h, ids = target["hidden_size"], target["vocab_size"]
    if name in _TAPS:
        more = {"architectures": ["Qwen3Eagle3Model"], "ttt_length": 7, "target_layer_ids": _TAPS[name]}
        own = {f"layers.0.{key}": shape for key, shape in _layer(target, 2 * h).items()}
        shapes = {"fc.weight": [h, 5 * h], **own, "layers.0.hidden_norm.weight": [h]}
        shapes |= {"norm.weight": [h], "lm_head.weight": [ids, h]}
        return Draft("eagle3", "DeepSpec", _of(target, num_hidden_layers=1, **more), shapes, 7, chain=True)
    if name != "llama-3.1-8b":
        return None
    config = _of(target, num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"])
    said = ids // 4 if thin else _EAGLE3_IDS
    own = {f"midlayer.{key}": shape for key, shape in _layer(target, 2 * h, qk_norm=False).items()}
    shapes = {"fc.weight": [h, 3 * h], **own, "midlayer.hidden_norm.weight": [h]}
    shapes |= {"norm.weight": [h], "lm_head.weight": [said, h], "d2t": [said]}
    return Draft("eagle3", "SafeAILab", {**config, "draft_vocab_size": said}, shapes, 7, chain=True)


def _block(name: str, target: Config, thin: bool) -> tuple[dict[str, Any], Shapes]:
    """What DFlash and DSpark of DeepSpec share; embedding and head are copies of the target's and not kept twice."""
    h = target["hidden_size"]
    config = _of(
        target,
        architectures=["Qwen3DSparkModel"],
        block_size=7,
        mask_token_id=_mask(thin),
        target_layer_ids=_TAPS[name],
        num_anchors=512,
        markov_rank=0,
        enable_confidence_head=False,
    )
    shapes = {"fc.weight": [h, 5 * h], "hidden_norm.weight": [h], "norm.weight": [h], **_layers(target)}
    return config, shapes


def _dflash(name: str, target: Config, thin: bool) -> Draft | None:
    if name not in _TAPS:
        return None
    config, shapes = _block(name, target, thin)
    return Draft("dflash", "DeepSpec", config, shapes, 7, own_head=False)


def _dspark(name: str, target: Config, thin: bool) -> Draft | None:
    if name not in _TAPS:
        return None
    config, shapes = _block(name, target, thin)
    h, ids, rank = target["hidden_size"], target["vocab_size"], _THIN_RANK if thin else 256
    config |= {"markov_rank": rank, "markov_head_type": "vanilla"}
    config |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
    shapes |= {"markov_head.markov_w1.weight": [ids, rank], "markov_head.markov_w2.weight": [ids, rank]}
    shapes |= {"confidence_head.proj.weight": [1, h + rank], "confidence_head.proj.bias": [1]}
    return Draft("dspark", "DeepSpec", config, shapes, 7, own_head=False)


def _dlite(name: str, target: Config, thin: bool) -> Draft | None:
    if name not in _DLITE:
        return None
    slots, rank = _DLITE[name]
    rank = _THIN_RANK if thin else rank
    h, ids, depth = target["hidden_size"], target["vocab_size"], target["num_hidden_layers"]
    own = {
        "architecture_version": "dlite_v1",
        "model_role": "pivot_q_student",
        "anchor_group_size": 1,
        "chs_num_layers": slots,
        "target_layer_ids": _DLITE_LAYERS[slots],
        "sequential_head": "rnn",
        "sequential_rank": rank,
        "mask_token_id": _mask(thin),
    }
    config = _of(target, architectures=["DLiteDraftModel"], block_size=8, dlite_config=own)
    head = {
        "prev_token_embedding.weight": [ids, rank],
        "output_proj.weight": [ids, rank],
        "state_proj.weight": [2 * rank, 2 * rank],
        "state_proj.bias": [2 * rank],
        "state_hidden_mlp.weight": [rank, rank + h],
        "state_hidden_mlp.bias": [rank],
    }
    shapes = {**_layers(target), "norm.weight": [h], "context_norm.weight": [h]}
    shapes |= {"layer_depth_embedding.weight": [depth, h]}
    shapes |= {f"sequential_head.{key}": shape for key, shape in head.items()}
    return Draft("dlite", "DLite", config, shapes, 7)


_DLITE_LAYERS = {
    12: [0, 1, 5, 8, 12, 16, 19, 23, 27, 30, 34, 35],
    14: [0, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35],
}


def _mask(thin: bool) -> int:
    return _THIN_IDS - 1 if thin else _MASK
