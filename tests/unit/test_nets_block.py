"""Loading and refusing block-drafter checkpoints, their published sizes, and the state they keep."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentbench_spec_drafters import dflash, dlite, dspark, eagle3
from agentbench_spec_drafters.nets.block import BlockConfig, BlockNet
from agentbench_spec_drafters.nets.block_drafter import BlockDrafter
from agentbench_spec_drafters.nets.checkpoint import open_checkpoint
from agentbench_spec_drafters.nets.dlite import DLiteConfig, DLiteNet, layout
from agentbench_spec_drafters.nets.qwen3 import grouped_attention
from agentbench_spec_drafters.nets.registry import known_pairs
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.drafting import ConfigError, ContractError, Drafter, Span, TargetInfo

GOLDEN = Path(__file__).parent.parent / "parity" / "data"
CPU, META = torch.device("cpu"), torch.device("meta")
MAKERS: dict[str, Callable[..., Drafter]] = {
    "dflash": dflash.make,
    "dflash-zlab": dflash.make,
    "dspark-rnn": dspark.make,
    "dlite-g3": dlite.make,
}


def golden_target(device: torch.device = CPU, **changes: Any) -> TargetInfo:
    weights = load_file(GOLDEN / "target" / "model.safetensors")
    config = json.loads((GOLDEN / "target" / "config.json").read_text())
    embed, head = nn.Embedding(160, 48), nn.Linear(48, 160, bias=False)
    embed.weight = nn.Parameter(weights["model.embed_tokens.weight"].to(device))
    head.weight = nn.Parameter(weights["lm_head.weight"].to(device))
    known = TargetInfo("golden", 160, 48, 6, 2048, torch.float32, device, config, embed, head)
    return replace(known, **changes)


def config_of(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name / "draft" / "config.json").read_text())  # type: ignore[no-any-return]


def config_folder(folder: Path, config: dict[str, Any]) -> Path:
    """A checkpoint without weights: whatever is refused was refused before any weight was read."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def full_folder(folder: Path, name: str, weights: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    config_folder(folder, config or config_of(name))
    save_file(weights, folder / "model.safetensors")
    return folder


def weights_of(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / name / "draft" / "model.safetensors")


def span(start: int, count: int, hidden: Tensor, *, row: int = 0) -> Span:
    """hidden [n, S, H]; tokens are their own positions."""
    ids = torch.arange(start, start + hidden.shape[0]).clamp(max=150)[None]
    states = hidden[None].to(CPU)
    return Span(torch.tensor([row]), torch.tensor([start]), torch.tensor([count]), ids, ids + 1, states)


def states_for(drafter: Drafter, n: int, seed: int = 0) -> Tensor:
    shape = (n, len(drafter.spec.hidden_layers), 48)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def feed(drafter: Drafter, hidden: Tensor, start: int = 0, *, row: int = 0) -> None:
    """hidden [n, S, H] of positions start ..."""
    seen = hidden[-1:] if drafter.spec.hidden_scope == "last" else hidden
    whole = span(start, len(hidden), hidden, row=row)
    drafter.observe(replace(whole, hidden=seen[None]))


def ask(drafter: Drafter, position: int, k: int = 7, *, token: int = 9) -> list[int]:
    return drafter.propose(torch.tensor([token]), torch.tensor([position]), k).ids[0].tolist()  # type: ignore[no-any-return]


# -- weights ----------------------------------------------------------------------------------------------------------


def drop(weights: dict[str, Tensor]) -> None:
    del weights["layers.1.self_attn.k_norm.weight"]


def add(weights: dict[str, Tensor]) -> None:
    weights["layers.1.self_attn.rope_gain"] = torch.ones(1)


def reshape(weights: dict[str, Tensor]) -> None:
    weights["norm.weight"] = torch.ones(47)


def poison(weights: dict[str, Tensor]) -> None:
    weights["layers.0.mlp.up_proj.weight"][3, 5] = float("nan")


def overflow(weights: dict[str, Tensor]) -> None:
    weights["layers.0.mlp.up_proj.weight"][3, 5] = float("inf")


def quantise(dtype: torch.dtype) -> Callable[[dict[str, Tensor]], None]:
    """Values without the scale they need; loaded as they are, they would only draft badly."""

    def apply(weights: dict[str, Tensor]) -> None:
        weights["layers.0.mlp.up_proj.weight"] = weights["layers.0.mlp.up_proj.weight"].mul(9).to(dtype)

    return apply


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize(
    ("damage", "tensor"),
    [
        (drop, "missing tensor layers.1.self_attn.k_norm.weight"),
        (add, "unknown tensor 'layers.1.self_attn.rope_gain'"),
        (reshape, "tensor 'norm.weight' is"),
        (poison, "'layers.0.mlp.up_proj.weight' holds NaN"),
        (overflow, "'layers.0.mlp.up_proj.weight' holds NaN or infinity"),
        (quantise(torch.int8), r"up_proj.weight' is torch.int8; quantised"),
        (quantise(torch.float8_e4m3fn), r"up_proj.weight' is torch.float8_e4m3fn; quantised"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_tensor_name(
    name: str, damage: Callable[[dict[str, Tensor]], None], tensor: str, tmp_path: Path
) -> None:
    """Fails if a tensor can be lost, ignored, or left unset, which would only show as poor acceptance."""
    weights = weights_of(name)
    damage(weights)
    drafter = MAKERS[name](full_folder(tmp_path, name, weights))
    with pytest.raises(ConfigError, match=tensor):
        drafter.open(golden_target(), rows=1, capacity=64)


def test_values_that_the_targets_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    """Fails if a bfloat16 draft becomes infinite in a float16 run without a word: acceptance would just be poor."""
    weights = {name: tensor.bfloat16() for name, tensor in weights_of("dflash").items()}
    weights["layers.0.mlp.up_proj.weight"][3, 5] = 1e6
    folder = full_folder(tmp_path, "dflash", weights)
    dflash.make(folder).open(golden_target(dtype=torch.bfloat16), rows=1, capacity=64)
    with pytest.raises(ConfigError, match=r"infinity in torch.float16.*wider dtype"):
        dflash.make(folder).open(golden_target(dtype=torch.float16), rows=1, capacity=64)


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def index_without_files(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"metadata": {}}')


def cut_bin(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path)
    (folder / "model.safetensors").unlink()
    path.write_bytes(path.read_bytes()[:-100])


def training_state(folder: Path) -> None:
    torch.save({**load_file(folder / "model.safetensors"), "epoch": 3}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, r"model\.safetensors: not a whole safetensors file.*fetch the file again"),
        (lfs_pointer, r"model\.safetensors: not a whole safetensors file.*Git LFS pointer"),
        (index_without_files, r"model\.safetensors\.index\.json: no 'weight_map'"),
        (cut_bin, r"pytorch_model\.bin: not a plain file of tensors"),
        (training_state, r"pytorch_model\.bin: 'epoch' is no tensor"),
    ],
)
@pytest.mark.parametrize("name", ["dspark-rnn", "eagle3"])
def test_a_damaged_file_is_named_with_the_way_out(
    name: str, damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    """Fails if a broken download dies in the library that reads it, with neither the file nor what to do."""
    folder = Path(shutil.copytree(GOLDEN / name / "draft", tmp_path / "draft"))
    damage(folder)
    make = eagle3.make if name == "eagle3" else MAKERS[name]
    with pytest.raises(ConfigError, match=message):
        make(folder).open(golden_target(), rows=1, capacity=64)


def test_sharded_and_bin_weights_give_the_same_tokens(tmp_path: Path) -> None:
    """Fails if one of the accepted file layouts loses or renames a tensor."""
    weights = weights_of("dspark-rnn")
    names = sorted(weights)
    shards = config_folder(tmp_path / "shards", config_of("dspark-rnn"))
    halves = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, shards / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    pickled = config_folder(tmp_path / "bin", config_of("dspark-rnn"))
    torch.save(weights, pickled / "pytorch_model.bin")

    def tokens(folder: Path) -> list[int]:
        drafter = dspark.make(folder)
        drafter.open(golden_target(), rows=1, capacity=64)
        feed(drafter, states_for(drafter, 12))
        return ask(drafter, 12)

    expected = tokens(GOLDEN / "dspark-rnn" / "draft")
    assert tokens(shards) == expected
    assert tokens(pickled) == expected
    (shards / "b.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"b\.safetensors: this shard is listed"):
        tokens(shards)


class Payload:
    """Unpickled carelessly, this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_bin_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """Fails if loading a checkpoint can execute what is in it."""
    folder = config_folder(tmp_path / "draft", config_of("dflash"))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "ran"), protocol=2))
    with pytest.raises(ConfigError, match="not a plain file of tensors"):
        dflash.make(folder).open(golden_target(), rows=1, capacity=64)
    assert not (tmp_path / "ran").exists()


def test_frozen_copies_are_aliased_and_own_ones_kept() -> None:
    """Fails if a bitwise copy is held twice, or a head the draft was trained with is swapped for the target's."""
    target = golden_target()
    shared = {}
    for name in ("dflash", "dspark-gated"):
        make = dflash.make if name == "dflash" else dspark.make
        drafter: Any = make(GOLDEN / name / "draft")
        drafter.open(target, rows=1, capacity=64)
        shared[name] = (drafter.net.embed_tokens is target.embed_tokens, drafter.net.lm_head is target.lm_head)
        own = weights_of(name)
        assert torch.equal(drafter.net.lm_head.weight, own["lm_head.weight"])
        assert torch.equal(drafter.net.embed_tokens.weight, own["embed_tokens.weight"])
        assert shared[name][1] == torch.equal(own["lm_head.weight"], target.lm_head.weight)  # type: ignore[arg-type]
    assert shared["dflash"][1] != shared["dspark-gated"][1], "the golden sets should cover both"


# -- geometry and families --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", 64, "hidden_size is 64"),
        ("vocab_size", 161, "vocab_size is 161"),
        ("num_target_layers", 8, "num_target_layers is 8"),
        ("target_layer_ids", [1, 9], "must lie in"),
        ("target_layer_ids", [3, 1], "strictly increasing"),
        ("mask_token_id", 160, "mask_token_id is 160"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0}, "rope type 'yarn'"),
        ("layer_types", ["full_attention", "sliding_attention"], "sliding_attention"),
        ("head_dim", None, "head_dim"),
        ("hidden_act", "gelu", "hidden_act"),
        ("attention_bias", True, "attention_bias"),
        ("block_size", None, "block_size"),
        ("block_size", 0, "block_size is 0; it must be a whole number from"),
        ("hidden_size", "wide", "hidden_size is 'wide'; it must be a whole number"),
        ("num_hidden_layers", 2.5, "num_hidden_layers is 2.5; it must be a whole number"),
        ("max_position_embeddings", "2k", "max_position_embeddings is '2k'"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps is nan; it must be a number above 0"),
        ("rope_theta", "big", "rope_theta is 'big'"),
        ("target_layer_ids", 3, "target_layer_ids is 3; it must be a list"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_before_any_weight_is_read(
    name: str, field: str, value: Any, message: str, tmp_path: Path
) -> None:
    """Fails if a wrong pair or an unimplemented feature gets as far as loading: there are no weights to load."""
    config = config_of(name)
    nested = config.get("dflash_config") or config.get("dlite_config") or config
    (nested if field in nested else config)[field] = value
    if field == "rope_scaling":
        config.pop("rope_parameters", None)
    if name == "dlite-g3":
        config["dlite_config"].pop("chs_num_layers")
    with pytest.raises(ConfigError, match=message):
        MAKERS[name](config_folder(tmp_path, config)).open(golden_target(), rows=1, capacity=64)


@pytest.mark.parametrize(
    ("name", "ids", "fits"),
    [
        ("dflash", [0, 2, 5], False),  # DeepSpec never taps the last layer
        ("dflash-zlab", [1, 5], False),
        ("dlite-g3", [0, 3, 5], True),  # DLite always does
        ("dspark-rnn", [-1, 1, 3], True),
        ("dflash-zlab", [-1, 3], False),
    ],
)
def test_which_layers_a_family_may_tap(name: str, ids: list[int], fits: bool, tmp_path: Path) -> None:
    """Fails if the last layer's normed state, or the embedding output, reaches a draft never trained on it."""
    config = config_of(name)
    nested = config.get("dflash_config") or config.get("dlite_config") or config
    nested["target_layer_ids"] = ids
    drafter = MAKERS[name](config_folder(tmp_path, config))
    with pytest.raises(ConfigError, match="no weights" if fits else "must lie in"):
        drafter.open(golden_target(), rows=1, capacity=64)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({}, "no rope base"),
        ({"rope_theta": 1e6}, "rope base is 1000000.0, target 'golden' has 10000.0"),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e4}}, "two different rope bases"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}, "no weights"),
        ({"rope_theta": 1e4, "rope_scaling": None}, "no weights"),
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
    ],
)
def test_both_rope_styles_are_read_and_none_is_guessed(rope: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Fails if a missing or foreign rope base silently becomes a default, or one style hides the other's scaling."""
    config = {k: v for k, v in config_of("dflash").items() if not k.startswith("rope")} | rope
    with pytest.raises(ConfigError, match=message):
        dflash.make(config_folder(tmp_path, config)).open(golden_target(), rows=1, capacity=64)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dflash", {"markov_rank": None, "enable_confidence_head": None}),  # nothing left that tells the family
        ("dflash-zlab", {"markov_rank": 0, "enable_confidence_head": False}),  # says both
        ("dflash-zlab", {"sample_from_anchor": True}),
        ("dflash", {"sample_from_anchor": False}),
        ("dflash-zlab", {"architectures": ["Qwen3DSparkModel"]}),
        ("dflash", {"architectures": ["DFlashDraftModel"]}),
        ("dflash-zlab", {"dflash_config": {"projector_type": "domino"}}),
        ("dflash-zlab", {"architectures": ["DFlash2DraftModel"]}),
    ],
)
def test_a_config_that_leaves_the_offset_open_is_refused(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Fails if a wrong offset can be reached silently: the text stays right and 4 % of drafts are accepted."""
    config = {k: v for k, v in (config_of(name) | changes).items() if v is not None}
    with pytest.raises(ConfigError, match=r"cannot tell whether|is not DFlash or DSpark"):
        dflash.make(config_folder(tmp_path, config))


def test_weights_of_the_other_family_do_not_load(tmp_path: Path) -> None:
    """Fails if a config copied from the other family is enough to read its weights with the wrong offset."""
    own = {
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {"mask_token_id": 159, "target_layer_ids": [0, 2, 4]},
    }
    deepspec = {k: v for k, v in config_of("dflash").items() if not k.startswith(("markov", "enable"))}
    folder = full_folder(tmp_path, "dflash", weights_of("dflash"), deepspec | own)
    with pytest.raises(ConfigError, match=r"unknown tensor '(embed_tokens|lm_head)"):
        dflash.make(folder).open(golden_target(), rows=1, capacity=64)


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (dflash.make, "dspark-rnn", "load it as dspark="),
        (dspark.make, "dflash", "load it as dflash="),
        (dspark.make, "dflash-zlab", "load it as dflash="),
        (dlite.make, "dflash", "no 'dlite_config'"),
        (dflash.make, "dlite-g1", "is not DFlash or DSpark"),
    ],
)
def test_a_checkpoint_of_another_drafter_says_where_it_belongs(
    make: Callable[..., Drafter], name: str, message: str
) -> None:
    """Fails if a mix-up of drafter names is loaded, or refused without the way out."""
    with pytest.raises(ConfigError, match=message):
        make(GOLDEN / name / "draft")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (dflash.make, {"verification": "typical"}, "choose 'rejection' or 'match'"),
        (dlite.make, {"verification": "typical"}, "choose 'match' or 'rejection'"),
        (dflash.make, {"block_size": 4}, "lower k"),
        (dlite.make, {"checkpoint": "nowhere"}, "no such folder"),
        (dlite.make, {"checkpoint": None}, "SJTU-DAI-Sys/Qwen3-4B-DLite for Qwen/Qwen3-4B"),
    ],
)
def test_options_that_cannot_hold_are_refused(
    make: Callable[..., Drafter], options: dict[str, Any], message: str
) -> None:
    """Fails if a bad option is ignored, or its error does not say what would be right."""
    name = "dlite-g1" if make is dlite.make else "dflash"
    with pytest.raises(ConfigError, match=message):
        make(**({"checkpoint": GOLDEN / name / "draft"} | options))


def test_dlite_versions_imply_the_group(tmp_path: Path) -> None:
    """Fails if v2 without anchor_group_size is read as v1: the weights cannot tell, acceptance would."""
    groups = {}
    for version in ("dlite_v1", "dlite_v2"):
        config = config_of("dlite-g1")
        del config["dlite_config"]["anchor_group_size"]
        config["dlite_config"]["architecture_version"] = version
        groups[version] = DLiteConfig.from_config(config, "test").group
    assert groups == {"dlite_v1": 1, "dlite_v2": 2}


def test_dlite_positions_match_the_published_table() -> None:
    """Fails if a local position is off by one; the last row is a text shorter than its group."""
    config = DLiteConfig.from_config(config_of("dlite-g1"), "test")
    rows = {}
    for group, at in ((1, 9), (2, 9), (3, 9), (6, 9), (3, 1)):
        place = layout(replace(config, group=group), torch.tensor([at]))
        seen = int(place.real.sum())
        assert place.visible.sum() == place.context.shape[1] + seen + 7
        rows[group, at] = (int(place.context[0, 0]), place.query[0, group - seen :].tolist())
    assert rows == {
        (1, 9): (0, [0, *range(1, 8)]),
        (2, 9): (0, [0, 1, *range(2, 9)]),
        (3, 9): (1, [0, 1, 2, *range(3, 10)]),
        (6, 9): (4, [*range(6), *range(6, 13)]),
        (3, 1): (0, [0, 1, *range(2, 9)]),
    }


# -- published sizes --------------------------------------------------------------------------------------------------

SIZES = {"4b": (2560, 9728, 32, 36), "8b": (4096, 12288, 32, 36), "14b": (5120, 17408, 40, 40)}
LAYER = {
    "input_layernorm.weight", "post_attention_layernorm.weight",
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "self_attn.q_norm.weight", "self_attn.k_norm.weight",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
}  # fmt: skip
BACKBONE = {f"layers.{i}.{name}" for i in range(5) for name in LAYER} | {"norm.weight"}
OWN_SLOT = BACKBONE | {"fc.weight", "hidden_norm.weight"}
DEEPSPEC = OWN_SLOT | {"embed_tokens.weight", "lm_head.weight"}
DSPARK = DEEPSPEC | {
    "markov_head.markov_w1.weight", "markov_head.markov_w2.weight",
    "confidence_head.proj.weight", "confidence_head.proj.bias",
}  # fmt: skip
DLITE = BACKBONE | {
    "context_norm.weight", "layer_depth_embedding.weight",
    "sequential_head.prev_token_embedding.weight", "sequential_head.output_proj.weight",
    "sequential_head.state_proj.weight", "sequential_head.state_proj.bias",
    "sequential_head.state_hidden_mlp.weight", "sequential_head.state_hidden_mlp.bias",
}  # fmt: skip


def qwen3_draft(size: str, **more: Any) -> dict[str, Any]:
    hidden, inner, heads, target_layers = SIZES[size]
    return {
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 5, "num_target_layers": target_layers,
        "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("size", "family", "count"),
    [
        ("4b", "z-lab", 537_427_200), ("8b", "z-lab", 1_048_626_432), ("14b", "z-lab", 1_782_641_920),
        ("4b", "dflash", 1_315_339_520), ("8b", "dflash", 2_293_286_144), ("14b", "dflash", 3_338_466_560),
        ("4b", "dspark", 1_393_133_569), ("8b", "dspark", 2_371_081_729), ("14b", "dspark", 3_416_263_169),
    ],
)  # fmt: skip
def test_published_block_drafts_have_these_tensors(size: str, family: str, count: int) -> None:
    """Fails if a real checkpoint of this size would not load: a name or a shape differs from the published one."""
    taps = [1, 10, 19, 28, 37] if size == "14b" else [1, 9, 17, 25, 33]
    heads = {"markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True,
             "confidence_head_with_markov": True}  # fmt: skip
    shared = {"block_size": 7, "mask_token_id": 151669, "target_layer_ids": taps}
    fields: dict[str, Any] = {
        "z-lab": {"block_size": 16, "dflash_config": {"mask_token_id": 151669, "target_layer_ids": taps}},
        "dflash": shared | {"markov_rank": 0, "enable_confidence_head": False},
        "dspark": shared | heads,
    }[family]
    config = BlockConfig.from_config(qwen3_draft(size, **fields), "test")
    with META:
        tensors = BlockNet(config).state_dict()
    assert set(tensors) == {"z-lab": OWN_SLOT, "dflash": DEEPSPEC, "dspark": DSPARK}[family]
    assert len(tensors) == {"z-lab": 58, "dflash": 60, "dspark": 64}[family]
    assert sum(tensor.numel() for tensor in tensors.values()) == count
    hidden, inner, heads_, _ = SIZES[size]
    assert tensors["layers.4.self_attn.q_proj.weight"].shape == (heads_ * 128, hidden)
    assert tensors["layers.0.mlp.down_proj.weight"].shape == (hidden, inner)
    assert tensors["fc.weight"].shape == (hidden, 5 * hidden)
    assert config.max_tokens == {"z-lab": 15}.get(family, 7)
    assert config.bytes_per_token * 2 == 20_480


@pytest.mark.parametrize(("size", "slots", "rank", "millions"), [("4b", 12, 320, 603.3), ("8b", 14, 512, 1123.9)])
def test_published_dlite_drafts_have_these_tensors(size: str, slots: int, rank: int, millions: float) -> None:
    """Fails if a real DLite checkpoint of this size would not load."""
    ids = {12: [0, 1, 5, 8, 12, 16, 19, 23, 27, 30, 34, 35], 14: [0, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35]}
    own = {"architecture_version": "dlite_v1", "model_role": "pivot_q_student", "anchor_group_size": 1,
           "chs_num_layers": slots, "target_layer_ids": ids[slots], "sequential_head": "rnn", "sequential_rank": rank,
           "mask_token_id": 151669}  # fmt: skip
    config = DLiteConfig.from_config(qwen3_draft(size, block_size=8, dlite_config=own), "test")
    with META:
        tensors = DLiteNet(config).state_dict()
    hidden = SIZES[size][0]
    assert set(tensors) == DLITE and len(tensors) == 64
    assert round(sum(tensor.numel() for tensor in tensors.values()) / 1e6, 1) == millions
    assert tensors["layer_depth_embedding.weight"].shape == (36, hidden)
    assert tensors["sequential_head.state_proj.weight"].shape == (2 * rank, 2 * rank)
    assert tensors["sequential_head.state_hidden_mlp.weight"].shape == (rank, rank + hidden)
    assert tensors["sequential_head.output_proj.weight"].shape == (151936, rank)


def test_the_registry_names_a_drafter_for_every_target() -> None:
    """Fails if a published pair is missing, or one names a drafter of another size than its target."""
    for size in ("4B", "8B", "14B"):
        known = {pair.drafter for pair in known_pairs(target=f"Qwen/Qwen3-{size}")}
        assert known >= {"dflash", "dlite", "dspark", "eagle3"}
    for pair in known_pairs():  # PARD's one model serves every size
        assert pair.drafter == "pard" or pair.target.rsplit("-", 1)[1].lower() in pair.checkpoint.lower()


# -- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MAKERS))
def test_state_bytes_follow_the_formula_of_the_config(name: str) -> None:
    """Fails if reported draft memory is not 2 x layers x KV heads x head_dim x bytes a token, or not 0 for DLite."""
    drafter = MAKERS[name](GOLDEN / name / "draft")
    drafter.open(golden_target(), rows=2, capacity=256)
    config = config_of(name)
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 4
    for start, length in ((0, 40), (40, 80), (80, 200)):
        feed(drafter, states_for(drafter, length - start), start, row=1)
        expected = 0 if name == "dlite-g3" else per_token * length
        assert drafter.state_bytes(1) == pytest.approx(expected, rel=0.05)
        assert drafter.state_bytes(0) == 0
    drafter.truncate(1, 50)
    assert drafter.state_bytes(1) == pytest.approx(0 if name == "dlite-g3" else per_token * 50, rel=0.05)


@pytest.mark.parametrize("name", list(MAKERS))
def test_five_turns_with_rewritten_history_equal_a_fresh_start(name: str) -> None:
    """Fails if anything of a rewritten or rejected stretch survives in what the drafter attends to."""
    worn = MAKERS[name](GOLDEN / name / "draft")
    worn.open(golden_target(), rows=1, capacity=256)
    text = torch.empty(0, *states_for(worn, 1).shape[1:])
    for turn, keep in enumerate((0, 20, 33, 5, 40)):
        text = torch.cat((text[:keep], states_for(worn, 30, seed=turn)))
        worn.truncate(0, keep)
        for start in range(keep, len(text), 11):
            feed(worn, text[start : start + 11], start)
        fresh = MAKERS[name](GOLDEN / name / "draft")
        fresh.open(golden_target(), rows=1, capacity=256)
        feed(fresh, text)
        assert ask(worn, len(text)) == ask(fresh, len(text))
        feed(worn, states_for(worn, 8, seed=99), len(text))  # a measured continuation, thrown away again
        ask(worn, len(text) + 8)


@pytest.mark.parametrize("name", list(MAKERS))
def test_propose_leaves_no_trace(name: str) -> None:
    """Fails if a second proposal sees the first one's block, or a proposal for another anchor in between."""
    drafter = MAKERS[name](GOLDEN / name / "draft")
    drafter.open(golden_target(), rows=1, capacity=64)
    feed(drafter, states_for(drafter, 20))
    first = ask(drafter, 20)
    assert ask(drafter, 20, token=44) != first
    assert ask(drafter, 20) == first


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_row_that_does_not_count_is_left_as_it_is(name: str) -> None:
    """Fails if a span with count 0 voids or overwrites an idle row, or an idle row breaks a proposal."""
    drafter = MAKERS[name](GOLDEN / name / "draft")
    drafter.open(golden_target(), rows=2, capacity=64)
    hidden = states_for(drafter, 20)
    for row in (0, 1):
        feed(drafter, hidden, row=row)
    both = drafter.propose(torch.tensor([9, 9]), torch.tensor([20, 20]), 5).ids.tolist()
    seen = hidden[:1] if drafter.spec.hidden_scope == "last" else hidden[:4]
    drafter.observe(replace(span(20, 0, hidden[:4], row=1), hidden=torch.full_like(seen, float("nan"))[None]))
    alone = drafter.propose(torch.tensor([9, 0]), torch.tensor([20, -1]), 5).ids.tolist()
    assert alone[0] == both[0] == both[1]
    assert drafter.propose(torch.tensor([0, 9]), torch.tensor([-1, 20]), 5).ids.tolist()[1] == both[1]


@pytest.mark.parametrize("name", list(MAKERS))
def test_an_anchor_with_a_gap_before_it_is_an_error(name: str) -> None:
    """Fails if positions that were cut off and not fed again are drafted from as though they were there."""
    drafter = MAKERS[name](GOLDEN / name / "draft")
    drafter.open(golden_target(), rows=1, capacity=64)
    feed(drafter, states_for(drafter, 20))
    with pytest.raises(ContractError, match="anchor of row 0 is at 22"):
        ask(drafter, 22)
    drafter.truncate(0, 12)
    with pytest.raises(ContractError, match="anchor of row 0 is at 20"):
        ask(drafter, 20)


@pytest.mark.parametrize("name", list(MAKERS))
def test_no_call_of_a_round_waits_for_the_device(name: str) -> None:
    """Fails if observe, propose or truncate reads a value back: on the meta device there is none to read."""
    drafter = MAKERS[name](GOLDEN / name / "draft")
    target = golden_target(META)
    lent = name in ("dflash-zlab", "dlite-g3")
    drafter.open(
        target if lent else replace(target, embed_tokens=nn.Identity(), lm_head=nn.Identity()), rows=2, capacity=64
    )
    ids = torch.zeros(2, 8, dtype=torch.int64, device=META)
    width = 1 if drafter.spec.hidden_scope == "last" else 8
    hidden = torch.zeros(2, width, len(drafter.spec.hidden_layers), 48, device=META)
    drafter.observe(Span(ids[:, 0], ids[:, 0], ids[:, 0], ids, ids, hidden))
    assert drafter.propose(ids[:, 0], ids[:, 0], 7).ids.shape == (2, 7)
    drafter.truncate(1, 3)


@pytest.mark.parametrize("name", list(MAKERS))
def test_other_dtypes_of_the_target_are_taken_on(name: str) -> None:
    """Fails if a part of a net stays in float32, or positions are rounded to the target's dtype."""
    tokens = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        target = golden_target()
        target.embed_tokens.to(dtype)
        target.lm_head.to(dtype)
        drafter = MAKERS[name](GOLDEN / name / "draft")
        drafter.open(replace(target, dtype=dtype), rows=1, capacity=64)
        feed(drafter, states_for(drafter, 20).to(dtype))
        tokens[dtype] = ask(drafter, 20)
    assert tokens[torch.float64] == tokens[torch.float32]
    assert len(tokens[torch.bfloat16]) == 7


def test_the_longest_text_is_the_trained_window_and_none_for_dlite() -> None:
    """Fails if a turn beyond a draft's rotary window is measured as though it were fine (field case 18)."""
    limits = {name: make(GOLDEN / name / "draft").spec.max_positions for name, make in MAKERS.items()}
    assert limits == {"dflash": 2048, "dflash-zlab": 2048, "dspark-rnn": 2048, "dlite-g3": None}


class FirstChoice:
    """Draws the most likely token, and says what it drew from, as at temperature 1."""

    greedy = False

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.argmax(-1), logits.softmax(-1)


@pytest.mark.parametrize(
    ("name", "options", "drawn"),
    [
        ("dflash", {}, True),
        ("dflash", {"verification": "match"}, False),
        ("dflash-zlab", {}, False),
        ("dflash-zlab", {"verification": "rejection"}, True),
        ("dspark-rnn", {}, True),
        ("dlite-g3", {}, False),
        ("dlite-g3", {"verification": "rejection"}, True),
    ],
)
def test_what_is_drawn_at_temperature_one(name: str, options: dict[str, Any], drawn: bool) -> None:
    """Fails if probs is not the distribution each token came from: rejection sampling would then not be exact."""
    drafter = MAKERS[name](GOLDEN / name / "draft", **options)
    drafter.open(golden_target(), rows=1, capacity=64)
    feed(drafter, states_for(drafter, 20))
    greedy = ask(drafter, 20)
    drafter.sampler = FirstChoice()
    proposal = drafter.propose(torch.tensor([9]), torch.tensor([20]), 7)
    assert proposal.ids[0].tolist() == greedy
    if not drawn:
        assert proposal.probs is None
        return
    assert proposal.probs is not None and proposal.probs.shape == (1, 7, 160)
    assert proposal.probs[0].argmax(-1).tolist() == greedy
    assert torch.allclose(proposal.probs.sum(-1), torch.ones(1, 7))


def test_a_confidence_threshold_needs_a_confidence_head(tmp_path: Path) -> None:
    """Fails if the option is accepted and then does nothing."""
    config = config_of("dspark-rnn") | {"enable_confidence_head": False}
    with pytest.raises(ConfigError, match="no confidence head"):
        dspark.make(config_folder(tmp_path, config), confidence_threshold=0.5)


def test_grouped_attention_equals_expanded_heads() -> None:
    """Fails if query heads meet the wrong key heads, or a per-query mask is not repeated per group."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, n, 8, generator=generator) for heads, n in ((6, 5), (2, 9), (2, 9)))
    mask = torch.rand(2, 1, 5, 9, generator=generator) > 0.3
    mask[..., 0] = True
    expanded = [x.repeat_interleave(3, 1) for x in (k, v)]
    for each in (None, mask, mask[:, :, :1]):
        expected = F.scaled_dot_product_attention(q, *expanded, attn_mask=each)
        assert torch.allclose(grouped_attention(q, k, v, each), expected, atol=1e-6)


def test_hub_ids_are_read_from_the_cache_and_refused_with_a_reason_offline(tmp_path: Path) -> None:
    """Fails if a hub id is not resolved with its revision, or a missing one ends in hub errors, or without the way out.

    EAGLE-3 once kept only the revision the user had named: two commits of one repository had the same version.
    """
    commit = "a" * 40
    for repository, name in (("draft", "dlite-g1"), ("head", "eagle3")):
        store = tmp_path / "hub" / f"models--owner--{repository}"
        shutil.copytree(GOLDEN / name / "draft", store / "snapshots" / commit)
        (store / "refs").mkdir()
        (store / "refs" / "main").write_text(commit)
    script = """
        from agentbench_spec_drafters import dlite, eagle3
        from agentbench_spec_drafters.nets.checkpoint import tensors_of
        from agentbench_spec.drafting import ConfigError
        for revision in (None, "a" * 40):
            drafter = dlite.make("owner/draft", revision=revision)
            print(drafter.spec.version[:4], len(dict(tensors_of(drafter.checkpoint.fetch()))))
            print(eagle3.make("owner/head", revision=revision).spec.version[:4])
        try:
            dlite.make("owner/other")
        except ConfigError as error:
            print(str(error).split(":")[0], "hf download owner/other" in str(error))
    """
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=offline, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [*["aaaa 31", "aaaa"] * 2, "checkpoint 'owner/other' (revision main) True"]


def test_opening_through_the_shared_loader_keeps_the_revision() -> None:
    """Fails if a run cannot say which revision of a draft it measured."""
    found = open_checkpoint(GOLDEN / "dflash" / "draft", revision="abc")
    config = BlockConfig.from_config(found.config, found.where)
    assert BlockDrafter("dflash", found, config, "match").spec.version == "abc"
