"""Published geometries of EAGLE-3, Domino and MTP on the meta device: names, shapes and counts, without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agentbench_spec_drafters.nets.checkpoint import Checkpoint
from agentbench_spec_drafters.nets.domino import DominoConfig, DominoNet
from agentbench_spec_drafters.nets.eagle3 import Eagle3Net
from agentbench_spec_drafters.nets.eagle3_layouts import infer_shape, read_config, rename
from agentbench_spec_drafters.nets.mtp import MtpNet
from agentbench_spec_drafters.nets.mtp_layouts import MtpLayout
from agentbench_spec_drafters.nets.mtp_layouts import read_config as read_mtp_config

Shapes = dict[str, tuple[int, ...]]

MODELS = {
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "layers": 36},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "layers": 36},
    "14B": {"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40, "layers": 40},
}
VOCABULARY, DRAFT_VOCABULARY, HEAD_DIM, KV_HEADS = 151936, 32000, 128, 8


def config_of(size: str, **more: Any) -> dict[str, Any]:
    model = MODELS[size]
    return {
        **{key: value for key, value in model.items() if key != "layers"},
        "model_type": "qwen3",
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "num_hidden_layers": 1,
        "max_position_embeddings": 40960,
        **more,
    }


def layer(size: str, prefix: str, width: int, *, qk_norm: bool) -> Shapes:
    """A decoder layer whose attention reads `width` channels (spec tables 2.1, 8.1)."""
    model = MODELS[size]
    h, inner = model["hidden_size"], model["intermediate_size"]
    heads, kv = model["num_attention_heads"] * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: Shapes = {
        "self_attn.q_proj.weight": (heads, width),
        "self_attn.k_proj.weight": (kv, width),
        "self_attn.v_proj.weight": (kv, width),
        "self_attn.o_proj.weight": (h, heads),
        "mlp.gate_proj.weight": (inner, h),
        "mlp.up_proj.weight": (inner, h),
        "mlp.down_proj.weight": (h, inner),
        "input_layernorm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
    }
    if qk_norm:
        shapes |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def eagle3_file(size: str, layout: str) -> Shapes:
    """Tensors of a published file, as tables 2.1 to 2.3 list them."""
    h = MODELS[size]["hidden_size"]
    deepspec = layout == "deepspec"
    prefix = "midlayer." if layout == "midlayer" else "layers.0."
    head: Shapes = {"d2t": (DRAFT_VOCABULARY,), "t2d": (VOCABULARY,), "lm_head.weight": (DRAFT_VOCABULARY, h)}
    if deepspec:
        head = {"embed_tokens.weight": (VOCABULARY, h), "lm_head.weight": (VOCABULARY, h)}
    return {
        "fc.weight": (h, (5 if deepspec else 3) * h),
        **layer(size, prefix, 2 * h, qk_norm=deepspec),
        f"{prefix}hidden_norm.weight": (h,),
        "norm.weight": (h,),
        **head,
    }


def eagle3_config(size: str, layout: str) -> dict[str, Any]:
    if layout == "deepspec":
        ids = {"4B": [1, 9, 17, 25, 33], "8B": [1, 9, 17, 25, 33], "14B": [1, 10, 19, 28, 37]}[size]
        more = {"architectures": ["Qwen3Eagle3Model"], "ttt_length": 7, "target_layer_ids": ids}
        return config_of(size, num_target_layers=MODELS[size]["layers"], **more)
    if layout == "midlayer":
        return config_of(size, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=DRAFT_VOCABULARY)
    nested = config_of(size, model_type="llama")
    return {"speculators_model_type": "eagle3", "transformer_layer_config": nested, "norm_before_residual": True}


def checkpoint(config: dict[str, Any]) -> Checkpoint:
    return Checkpoint("published", None, config, Path())


def shapes_of(net: torch.nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize("size", MODELS)
@pytest.mark.parametrize("layout", ["deepspec", "midlayer", "speculators"])
def test_eagle3_sizes(size: str, layout: str) -> None:
    """Names and shapes of the net are those of the file, no more and no fewer."""
    file = {str(rename(name)): shape for name, shape in eagle3_file(size, layout).items()}
    config = read_config(checkpoint(eagle3_config(size, layout)))
    with torch.device("meta"):
        net = Eagle3Net(infer_shape(config, file), config)
    assert shapes_of(net) == file
    assert net.geometry.head_dim == HEAD_DIM and net.geometry.num_kv_heads == KV_HEADS
    assert len(config.target_layers) == (5 if layout == "deepspec" else 3)


@pytest.mark.parametrize(
    ("size", "layout", "millions"),
    [("4B", "midlayer", 218.2), ("8B", "midlayer", 399.5), ("4B", "deepspec", 927)],
)
def test_eagle3_parameter_counts(size: str, layout: str, millions: float) -> None:
    """Totals of spec sections 2.1 and 2.3, vocabulary maps not counted."""
    file = {str(rename(name)): shape for name, shape in eagle3_file(size, layout).items()}
    config = read_config(checkpoint(eagle3_config(size, layout)))
    with torch.device("meta"):
        net = Eagle3Net(infer_shape(config, file), config)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.5)


def test_absent_layer_ids_follow_the_targets_depth() -> None:
    """4B and 8B have 36 layers, 14B has 40: second, middle and third before last, as layer outputs."""
    tapped = {size: read_config(checkpoint(eagle3_config(size, "midlayer"))).target_layers for size in MODELS}
    assert tapped == {"4B": (1, 17, 32), "8B": (1, 17, 32), "14B": (1, 19, 36)}


@pytest.mark.parametrize("size", ["4B", "8B"])
def test_domino_sizes(size: str) -> None:
    """Spec table 8.1."""
    h = MODELS[size]["hidden_size"]
    nested = {
        "mask_token_id": 151669,
        "target_layer_ids": [1, 9, 17, 25, 33],
        "projector_type": "domino",
        "pure_draft_prefix_len": 1,
        "emb_dim": 256,
        "gru_hidden_dim": 1024,
        "shift_label": True,
    }
    raw = config_of(size, num_hidden_layers=5, num_target_layers=36, block_size=16, dflash_config=nested)
    config = DominoConfig.from_config({**raw, "architectures": ["DominoDraftModel"]}, "published")
    with torch.device("meta"):
        net = DominoNet(config)
    layers = [layer(size, f"layers.{i}.", h, qk_norm=True) for i in range(5)]
    assert shapes_of(net) == {
        "fc.weight": (h, 5 * h),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
        **{name: shape for part in layers for name, shape in part.items()},
        "prefix_gru.weight_ih_l0": (3072, h),
        "prefix_gru.weight_hh_l0": (3072, 1024),
        "embed_proj.0.weight": (256, h + 1024),
        "embed_proj.2.weight": (VOCABULARY, 256),
    }
    assert config.block.max_tokens == 15


def test_mtp_size() -> None:
    """The 8B module of spec section 9 in its training form."""
    h = MODELS["8B"]["hidden_size"]
    config = read_mtp_config(
        checkpoint(config_of("8B", model_type="mtp", ttt_length=4)), target_layers=None, rope_theta=None
    )
    with torch.device("meta"):
        net = MtpNet(config, MtpLayout("training", ""))
    assert config.num_target_layers == 36 and config.max_tokens == 4
    assert shapes_of(net) == {
        "enorm.weight": (h,),
        "hnorm.weight": (h,),
        "eh_proj.weight": (h, 2 * h),
        "final_layernorm.weight": (h,),
        **layer("8B", "layer.", h, qk_norm=True),
    }
