"""What the trainees share: initial weights, lent tables, packed attention, the checkpoint writer.

Axes as in qwen3.py; A anchors, b query rows of a block, m keys a block brings along, T text positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError, TargetInfo
from agentbench_spec.train.interface import Setting, logits_of

from ..nets.checkpoint import open_checkpoint, target_rope_theta, tensors_of

INITIAL_STD = 0.02
Start = str
"""Initial weights: "random", as published; "target", its last layers, which needs far fewer steps; or the folder or hub
id of a checkpoint of the same options, which is trained on."""
_BLOCKS_AT_ONCE = 64
"""Blocks that share one attention: more would waste more on keys of other blocks."""


def initialise(net: nn.Module, setting: Setting) -> None:
    """Give a net built on the meta device its weights: Hugging Face's standard start, in the trained dtype.

    Matrices are normal with std 0.02, norms 1, biases 0. Torch's global generator is not used.
    """
    generator = setting.generator
    net.to_empty(device="cpu").to(setting.dtype)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim > 1:
                weight.copy_(torch.empty(weight.shape).normal_(0, INITIAL_STD, generator=generator))
            else:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
    net.to(setting.target.device)


@torch.no_grad()
def start_as_target(
    net: nn.Module,
    setting: Setting,
    *,
    context_norm: nn.Module | None = None,
    renamed: Mapping[str, str | None] | None = None,
) -> None:
    """Give the layers of `net`, and its final norm, the weights of the target's last layers, where names agree.

    context_norm: of the states that the layers attend to; starts as the first of these layers' input norm.
    renamed: a layer's parameter -> the target's to take in its place, None: leave it.
    A matrix that reads an embedding beside a state (EAGLE-3) takes the target's for the state.
    Raises ConfigError if the target's weights do not fit.
    """
    layers = cast(nn.ModuleList, net.layers)
    first = setting.target.num_layers - len(layers)
    for index, layer in enumerate(layers):
        for name, weight in layer.named_parameters():
            wanted = (renamed or {}).get(name, name)
            if wanted is not None and (found := target_weight(setting, f"layers.{first + index}.{wanted}")) is not None:
                if found.shape[0] != weight.shape[0] or found.shape[-1] > weight.shape[-1]:
                    raise ConfigError(f"start=target: {name} is {list(weight.shape)}, the target's {list(found.shape)}")
                weight[..., weight.shape[-1] - found.shape[-1] :].copy_(found)
    for norm, name in ((net.norm, "norm.weight"), (context_norm, f"layers.{first}.input_layernorm.weight")):
        if norm is not None:
            found = target_weight(setting, name)
            if found is None:
                raise ConfigError(f"start=target: {setting.target.name!r} has no model.{name}; use start=random")
            cast(nn.Module, norm).get_parameter("weight").copy_(found)


@torch.no_grad()
def start_as_checkpoint(
    net: nn.Module,
    checkpoint: str,
    config: Mapping[str, Any],
    *,
    name_of: Callable[[str], str] = str,
    apart: Collection[str] = (),
) -> dict[str, Tensor]:
    """Give `net` the weights of a checkpoint in the layout of its trainee; what it has no place for comes back.

    config: what this training writes. name_of: a stored name -> the net's. apart: of config and weights, what may
    differ.
    Raises ConfigError if there is no such checkpoint, or its config or weights are not those of these options.
    """
    there = open_checkpoint(checkpoint)
    ours, theirs = _flat(config), _flat(there.config)
    differing = [name for name, value in ours.items() if theirs.get(name) != value and name not in apart]
    if differing:
        told = "; ".join(f"{name} is {theirs.get(name)}, here {ours[name]}" for name in sorted(differing))
        raise ConfigError(f"start={checkpoint}: {told}; give the options that it was trained with")
    stored = {name_of(name): tensor for name, tensor in tensors_of(there.fetch())}
    wanted = {name: weight for name, weight in net.state_dict().items() if name not in apart}
    missing = sorted(
        name for name, weight in wanted.items() if getattr(stored.get(name), "shape", None) != weight.shape
    )
    if missing:
        raise ConfigError(f"start={checkpoint}: {', '.join(missing)} missing or of another shape; give its options")
    for name, weight in wanted.items():
        weight.copy_(stored.pop(name))
    return stored


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their last name; a checkpoint's nested ones have names of their own."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return found


def target_weight(setting: Setting, name: str) -> Tensor | None:
    """A weight of the target's stack by the name it has in Llama- and Qwen-like models; None: it has none."""
    return setting.target_weights.get(f"model.{name}")


@torch.no_grad()
def pass_last_tap(fuse: nn.Linear) -> None:
    """Let the layer that fuses the taps start as the last tap, with a tenth of its random weights."""
    width = fuse.out_features
    fuse.weight.mul_(0.1)[:, -width:] += torch.eye(width, device=fuse.weight.device)


def lend_tables(net: nn.Module, setting: Setting, *, head: bool) -> None:
    """Give `net` the target's embedding, and with `head` its LM head, in the trained dtype; both stay the target's.

    They replace modules of the net's own, and are hidden from its parameters and state dict.
    """
    target, dtype = setting.target, setting.dtype

    def embed(ids: Tensor) -> Tensor:
        return target.embed_tokens(ids).to(dtype)  # type: ignore[no-any-return]

    _lend(net, "embed_tokens", embed)
    if head:
        _lend(net, "lm_head", _Head(target))


def _lend(net: nn.Module, name: str, call: Callable[[Tensor], Tensor]) -> None:
    net._modules.pop(name, None)
    net.__dict__[name] = call


class _Head:
    """The target's head for states of any dtype; gradients pass through to the states."""

    def __init__(self, target: TargetInfo) -> None:
        self._target = target

    def __call__(self, states: Tensor, ids: Tensor | None = None) -> Tensor:
        return logits_of(self._target.lm_head, states.to(self._target.dtype), ids)


class Packed:
    """Memory of many blocks at once: shared keys of the text, of which each block sees its own part.

    shared: keys and values [Nkv, T, d] of each layer; visible [A, T] bool; own [A, m] bool: which of the keys a block
    brings along it may see, None: all.
    """

    def __init__(self, shared: Sequence[tuple[Tensor, Tensor]], visible: Tensor, own: Tensor | None = None) -> None:
        seen = visible.any(0).nonzero().flatten()
        first, stop = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
        self._shared = [(keys[:, first:stop], values[:, first:stop]) for keys, values in shared]
        self._visible, self._own = visible[:, first:stop], own

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [A, Nq, b, d] over the shared keys and the block's own keys, values [A, Nkv, m, d]."""
        parts = range(0, len(queries), _BLOCKS_AT_ONCE)
        return torch.cat([self._some(layer, slice(at, at + _BLOCKS_AT_ONCE), queries, keys, values) for at in parts])

    def _some(self, layer: int, blocks: slice, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Blocks side by side as the rows of one attention; what another block brought along is masked."""
        queries, (count, heads, rows, d) = queries[blocks], queries[blocks].shape
        repeat = heads // keys.shape[1]
        far_keys, far_values = self._shared[layer]
        mixed = nn.functional.scaled_dot_product_attention(
            queries.transpose(0, 1).reshape(1, heads, -1, d),
            _side_by_side(far_keys, keys[blocks]).repeat_interleave(repeat, 0)[None],
            _side_by_side(far_values, values[blocks]).repeat_interleave(repeat, 0)[None],
            attn_mask=self._mask(blocks, keys.shape[2]).repeat_interleave(rows, 0),
        )
        return mixed.view(heads, count, rows, d).transpose(0, 1)

    def _mask(self, blocks: slice, brought: int) -> Tensor:
        """[blocks, T + blocks * m] bool: what each block sees."""
        visible = self._visible[blocks]
        own = torch.eye(len(visible), dtype=torch.bool, device=visible.device).repeat_interleave(brought, 1)
        if self._own is not None:
            own = own & self._own[blocks].repeat(1, len(visible))
        return torch.cat((visible, own), 1)


def _side_by_side(far: Tensor, own: Tensor) -> Tensor:
    """far [Nkv, T, d] and own [A, Nkv, m, d] as [Nkv, T + A * m, d]."""
    return torch.cat((far, own.transpose(0, 1).flatten(1, 2)), 1)


def ahead_of(ids: Tensor, anchors: Tensor, first: int, count: int) -> Tensor:
    """Tokens at anchor + first .. anchor + first + count - 1: ids [T + K], anchors [A] -> [A, count]."""
    at = anchors[:, None] + torch.arange(first, first + count, device=anchors.device)
    return ids[at.clamp(min=0)]


def base_config(target: TargetInfo, *, depth: int, intermediate_size: int | None) -> dict[str, Any]:
    """The part of config.json that describes a Qwen3-style stack of `depth` layers with the target's sizes.

    Raises ConfigError if the target's config does not say what a draft needs.
    """
    config = target.config
    heads = getattr(config, "num_attention_heads", None)
    theta = target_rope_theta(config)
    if heads is None or theta is None:
        raise ConfigError(f"target {target.name!r}: its config gives no number of heads or no rope base to train with")
    return {
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": intermediate_size or config.intermediate_size,
        "num_hidden_layers": depth,
        "num_target_layers": target.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or target.hidden_size // heads,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "max_position_embeddings": target.max_positions,
        "layer_types": ["full_attention"] * depth,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": INITIAL_STD,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "target_model_name_or_path": target.name,
    }


def unused_token(setting: Setting, given: int | None) -> int:
    """The mask's token id: the given one, else the highest id that is never supervised.

    That is a padded row of the embedding where the target has some. Raises ConfigError if every id is in use or the
    given one is no token.
    """
    vocab = setting.target.vocab_size
    if given is not None:
        if not 0 <= given < vocab:
            raise ConfigError(f"mask_token_id {given} is not in 0..{vocab - 1}")
        return given
    unused = (setting.token_counts == 0).nonzero().flatten()
    if not len(unused):
        raise ConfigError("every token id is supervised in the data; choose mask_token_id yourself")
    return int(unused[-1])


def spread_layers(count: int, depth: int) -> list[int]:
    """z-lab's default taps: `count` of `depth` target layers, from layer 1 to the last but two."""
    if count == 1:
        return [depth // 2]
    ids = sorted({round(1 + i * (depth - 4) / (count - 1)) for i in range(count)})
    if len(ids) != count or ids[0] < 0 or depth < 4:
        raise ConfigError(f"{count} taps do not fit a target of {depth} layers; give target_layer_ids or fewer taps")
    return ids


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors, weights first, each through a temporary file."""
    folder.mkdir(parents=True, exist_ok=True)
    dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
    named = {**config, "dtype": str(dtypes.pop()).removeprefix("torch.")} if len(dtypes) == 1 else dict(config)
    partial = folder / ".model.safetensors.partial"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, {"format": "pt"})
    partial.replace(folder / "model.safetensors")
    text = folder / ".config.json.partial"
    text.write_text(json.dumps(named, indent=2) + "\n", "utf-8")
    text.replace(folder / "config.json")


def under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of a state dict below `prefix`, which is taken off."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
