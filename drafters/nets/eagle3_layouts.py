"""The three published layouts of EAGLE-3 checkpoints, read into one plan: DeepSpec, "midlayer" and speculators.

P-EAGLE's are the last two with more layers, a mask token and a mask state; its sizes are checked against the config.

Sizes come from the tensors, because published configs are known to be wrong about them (head_dim, layer count,
tied embeddings); flags and rotary base come from the config, because no tensor shows them. Source: spec sections
1.1, 2.1-2.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agentbench_spec.drafting import ConfigError

from .checkpoint import Checkpoint, shapes_in, shard_paths
from .qwen3 import (
    Geometry,
    layer_ids,
    max_positions,
    number,
    read_rope_theta,
    refuse_unsupported,
    required,
    whole,
)

Layout = Literal["deepspec", "midlayer", "speculators"]
Kind = Literal["eagle3", "peagle"]
Shapes = Mapping[str, tuple[int, ...]]

DEFAULT_ROPE_THETA = 10000.0
"""Rope base of "midlayer" and speculators heads whose config has none, as their own loaders assume."""

_QWEN3_LAYERS = {1024: 28, 2048: 28, 2560: 36, 4096: 36, 5120: 40}
"""Hidden size -> decoder layers of the dense Qwen3 models (151936 token rows); opening on a target checks the guess."""
_QWEN3_VOCABULARY = 151936


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """What config.json alone says about an EAGLE-3 head."""

    layout: Layout
    layer: Mapping[str, Any]
    """The config of the decoder layer itself: nested in speculators files, else the whole file."""
    where: str
    target_layers: tuple[int, ...]
    """Tapped target layers as 0-based layer outputs, -1 the embedding output, ascending."""
    num_target_layers: int | None
    """Decoder layers the head expects of its target; None where the config does not say."""
    rope_theta: float
    max_tokens: int | None
    """Trained length (DeepSpec's ttt_length, P-EAGLE's speculative_tokens); None: any."""
    max_positions: int | None
    """Trained window in tokens, for information: the rotary table has no end."""
    norm_before_residual: bool
    feed_back_normed: bool
    """Speculators' `norm_output`: the normed output is carried to the next step."""
    norm_logits: bool
    """SpecForge's `norm_output`, default true: the final norm is applied before the head."""
    flags: Mapping[str, bool]
    """`norm_before_fc` and `fc_norm` as the config has them; the tensors must agree."""
    mask_token_id: int | None = None
    """P-EAGLE's; None: EAGLE-3."""
    notes: tuple[str, ...] = ()
    """What the config leaves open, and what was taken in its place, in words."""


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """Sizes and optional parts of an EAGLE-3 net, from its tensors."""

    geometry: Geometry
    target_hidden_size: int
    taps: int
    draft_vocab_size: int
    qk_norm: bool
    input_norm: bool
    fc_norm: bool
    fc_bias: bool
    own_embedding: bool
    d2t: bool
    t2d: bool
    mask_hidden: tuple[int, ...] | None = None
    """P-EAGLE's mask state as the file has it; None: EAGLE-3."""


def read_config(checkpoint: Checkpoint, *, target_layers: int | None = None, kind: Kind = "eagle3") -> Eagle3Config:
    """Read config.json of a head of this kind in whichever of the three layouts it is.

    target_layers: decoder layers of the target, where the config neither lists the tapped layers nor lets them be
    derived. Raises ConfigError for another architecture, a field that is missing, or flags that exclude each other.
    """
    config, where = checkpoint.config, checkpoint.where
    layout = _layout(config, where, kind)
    layer = config["transformer_layer_config"] if layout == "speculators" else config
    refuse_unsupported(layer, where, biases=True)
    flags = {name: bool(config.get(name, False)) for name in ("norm_before_fc", "fc_norm")}
    if all(flags.values()):
        raise ConfigError(f"{where}: norm_before_fc and fc_norm are both true; a head has one of them at most")
    depth = _target_depth(config, layer, target_layers, where)
    norm_output = config.get("norm_output")
    layers, guessed = _tapped_layers(config, layout, depth, where)
    rope_theta, assumed = _rope_theta(layer, layout, where)
    found = Eagle3Config(
        layout=layout,
        layer=layer,
        where=where,
        target_layers=layers,
        num_target_layers=depth,
        rope_theta=rope_theta,
        max_tokens=whole(config, "ttt_length", where) if layout == "deepspec" else None,
        max_positions=max_positions(layer, where),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        feed_back_normed=layout == "speculators" and bool(norm_output),
        norm_logits=layout != "midlayer" or norm_output is not False,
        flags=flags,
        notes=(*guessed, *assumed),
    )
    return found if kind == "eagle3" else _masked(found, config)


_MASK_IDS = ("mask_token_id", "pard_token", "ptd_token_id")


def _masked(found: Eagle3Config, config: Mapping[str, Any]) -> Eagle3Config:
    """The same with what P-EAGLE adds: the mask token, and how many tokens a round it was trained for."""
    name = next((name for name in _MASK_IDS if config.get(name) is not None), "mask_token_id")
    mask = whole(config, name, found.where, least=0)
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    if methods[0].get("speculative_tokens") is None:
        return replace(found, mask_token_id=mask, norm_logits=True)
    trained = whole(methods[0], "speculative_tokens", found.where)
    return replace(found, mask_token_id=mask, norm_logits=True, max_tokens=trained)


def _layout(config: Mapping[str, Any], where: str, kind: Kind) -> Layout:
    names = set(config.get("architectures") or ())
    if config.get("transformer_layer_config") is not None:
        said = config.get("speculators_model_type", "eagle3")
        if said != kind:
            known = ("eagle3", "peagle", "dflash", "dflash2", "dspark")
            way = f"load it as {said}=" if said in known else "it is not implemented"
            raise ConfigError(f"{where}: speculators_model_type is {said!r}, expected {kind!r}; {way}")
        if not isinstance(config["transformer_layer_config"], Mapping):
            raise ConfigError(f"{where}: transformer_layer_config must be an object")
        return "speculators"
    if bool(config.get("parallel_drafting")) != (kind == "peagle"):
        way = "this is an EAGLE-3 head or no draft head at all" if kind == "peagle" else "load it as peagle="
        raise ConfigError(f"{where}: parallel_drafting is {config.get('parallel_drafting')}; {way}")
    if kind == "peagle":
        return "midlayer"
    if "ttt_length" in config or "Qwen3Eagle3Model" in names:
        return "deepspec"
    if names & {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM"}:
        return "midlayer"
    raise ConfigError(
        f"{where}: architectures {sorted(names)} is no EAGLE-3 head known here (DeepSpec: Qwen3Eagle3Model; "
        "SafeAILab, AngelSlim, SpecForge: LlamaForCausalLMEagle3; speculators: a transformer_layer_config)"
    )


def _target_depth(config: Mapping[str, Any], layer: Mapping[str, Any], given: int | None, where: str) -> int | None:
    if given is not None or config.get("num_target_layers") is not None:
        return given if given is not None else whole(config, "num_target_layers", where)
    return known_depth({**layer, "hidden_size": config.get("target_hidden_size") or layer.get("hidden_size")})


def known_depth(config: Mapping[str, Any]) -> int | None:
    """Decoder layers of the dense Qwen3 model with the config's hidden and vocabulary size; None if there is none."""
    if config.get("vocab_size") != _QWEN3_VOCABULARY:
        return None
    return _QWEN3_LAYERS.get(int(config.get("hidden_size") or 0))


def _tapped_layers(
    config: Mapping[str, Any], layout: Layout, depth: int | None, where: str
) -> tuple[tuple[int, ...], list[str]]:
    """The same three tensors under three numberings, see the table of spec section 1.1; and a note if none is there."""
    key = "eagle_aux_hidden_state_layer_ids"
    if layout == "deepspec":
        return layer_ids(config, "target_layer_ids", where), []
    nested = config.get("eagle_config") or {}
    if nested.get(key):
        return layer_ids(nested, key, where), []
    if config.get(key):
        return tuple(layer - 1 for layer in layer_ids(config, key, where)), []
    if depth is None:
        raise ConfigError(f"{where}: no {key} and no depth of the target to derive it; pass target_layers=<number>")
    guess = (1, depth // 2 - 1, depth - 4)
    note = (
        f"{where} does not name the tapped layers; {', '.join(map(str, guess))} are guessed, the published default for "
        f"a target of {depth} layers: a head trained on others drafts badly and without an error"
    )
    return guess, [note]


def _rope_theta(layer: Mapping[str, Any], layout: Layout, where: str) -> tuple[float, list[str]]:
    places = (layer, layer.get("rope_parameters"), layer.get("rope_scaling"))
    absent = all(each.get("rope_theta") is None for each in places if isinstance(each, Mapping))
    if absent and layout != "deepspec":
        note = f"{where} has no rope_theta; {DEFAULT_ROPE_THETA:g} is taken, as the loaders of this layout do"
        return read_rope_theta({**layer, "rope_theta": DEFAULT_ROPE_THETA}, where), [note]
    return read_rope_theta(layer, where), []


def rename(name: str) -> str | None:
    """The net's name for a tensor of any layout; None for tensors that are not the head's own."""
    for prefix in ("draft_model.", "model."):
        name = name.removeprefix(prefix)
    if name.startswith("verifier_") or name.endswith("inv_freq"):
        return None
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def read_names(folder: Path) -> list[str]:
    """The tensor names of a checkpoint folder as the file has them; weights are not read."""
    return [name for path in shard_paths(folder) for name in shapes_in(path)]


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Renamed tensor name -> shape for every tensor of a checkpoint folder; weights are not read."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in shard_paths(folder):
        for name, shape in shapes_in(path).items():
            known = rename(name)
            if known is not None:
                shapes[known] = shape
    return shapes


def infer_shape(config: Eagle3Config, shapes: Shapes) -> Eagle3Shape:
    """Sizes of the net from the tensors of the file, checked against each other and the config's flags.

    Raises ConfigError naming the tensor that is missing or contradicts the config.
    """
    layers = _layers(config, shapes)
    fc, q, k = (_need(config, shapes, name) for name in _SIZE_TENSORS)
    hidden, vocabulary = _need(config, shapes, "norm.weight")[0], _need(config, shapes, "lm_head.weight")[0]
    heads = whole(config.layer, "num_attention_heads", config.where)
    head_dim = _divide(q[0], heads, config, "rows of q_proj", "num_attention_heads")
    geometry = Geometry(
        hidden_size=hidden,
        intermediate_size=_need(config, shapes, "layers.0.mlp.gate_proj.weight")[0],
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=_divide(k[0], head_dim, config, "rows of k_proj", "head_dim"),
        head_dim=head_dim,
        vocab_size=whole(config.layer, "vocab_size", config.where),
        rms_norm_eps=number(required(config.layer, "rms_norm_eps", config.where), "rms_norm_eps", config.where),
        rope_theta=config.rope_theta,
        max_positions=config.max_positions,
    )
    taps = len(config.target_layers)
    shape = Eagle3Shape(
        geometry=geometry,
        target_hidden_size=_divide(fc[1], taps, config, "columns of fc", "tapped layers"),
        taps=taps,
        draft_vocab_size=vocabulary,
        qk_norm="layers.0.self_attn.q_norm.weight" in shapes,
        input_norm="input_norm.weight" in shapes,
        fc_norm="fc_norm.0.weight" in shapes,
        fc_bias="fc.bias" in shapes,
        own_embedding="embed_tokens.weight" in shapes,
        d2t="d2t" in shapes,
        t2d="t2d" in shapes,
        mask_hidden=None if config.mask_token_id is None else _mask_hidden(config, shapes, fc[1]),
    )
    _check_parts(config, shape)
    return shape


_SIZE_TENSORS = ("fc.weight", "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight")


def _need(config: Eagle3Config, shapes: Shapes, name: str) -> tuple[int, ...]:
    if name not in shapes:
        raise ConfigError(f"{config.where}: missing tensor {name!r} in the weights of this {config.layout} checkpoint")
    return shapes[name]


def _divide(total: int, parts: int, config: Eagle3Config, what: str, by: str) -> int:
    if parts < 1 or total % parts:
        raise ConfigError(f"{config.where}: {total} {what} do not divide by {parts} ({by})")
    return total // parts


def _layers(config: Eagle3Config, shapes: Shapes) -> int:
    """One for EAGLE-3, whose configs are known to be wrong about it; for P-EAGLE as many as its config says."""
    layers = sorted({name.split(".")[1] for name in shapes if name.startswith("layers.")})
    if config.mask_token_id is None:
        if layers != ["0"]:
            raise ConfigError(f"{config.where}: the weights hold layers {layers}; heads of one layer are supported")
        return 1
    count = whole(config.layer, "num_hidden_layers", config.where)
    if layers != sorted(str(layer) for layer in range(count)):
        raise ConfigError(f"{config.where}: num_hidden_layers is {count}, and the weights hold layers {layers}")
    return count


def _mask_hidden(config: Eagle3Config, shapes: Shapes, features: int) -> tuple[int, ...]:
    """The mask state's shape. Raises ConfigError if it is not as wide as what fc takes, or no embedding is there."""
    _need(config, shapes, "embed_tokens.weight")  # trained, its mask row above all: the target's will not do
    shape = _need(config, shapes, "mask_hidden")
    if math.prod(shape) != features:
        raise ConfigError(f"{config.where}: tensor 'mask_hidden' is {list(shape)}; fc takes {features} features")
    return shape


def _check_parts(config: Eagle3Config, shape: Eagle3Shape) -> None:
    for flag, present in (("norm_before_fc", shape.input_norm), ("fc_norm", shape.fc_norm)):
        if config.flags[flag] != present:
            there = "there" if present else "missing"
            raise ConfigError(f"{config.where}: {flag} is {config.flags[flag]}, but its tensor is {there}")
    vocabulary = shape.geometry.vocab_size
    if shape.draft_vocab_size < vocabulary and not shape.d2t:
        raise ConfigError(
            f"{config.where}: missing tensor 'd2t'; the head has {shape.draft_vocab_size} of {vocabulary} token ids"
        )


def check_taps(config: Eagle3Config, shape: Eagle3Shape, target_hidden_size: int, layers: Sequence[int]) -> None:
    """Raise ConfigError if the features the target gives are not as wide as fc wants them."""
    if shape.target_hidden_size != target_hidden_size:
        raise ConfigError(
            f"{config.where}: fc takes {shape.taps * shape.target_hidden_size} features; {len(layers)} layers of a "
            f"target of hidden_size {target_hidden_size} give {len(layers) * target_hidden_size}; wrong pair?"
        )
