"""The EAGLE-3 net: one decoder layer over the concatenation of a token embedding and a fused target feature.

Source: spec eagle3-domino-mtp, sections 1.2, 1.3, 2. Axes: B rows, n positions, S tapped layers, Ht target width,
H draft width, Nq / Nkv heads, d head_dim, V target vocabulary, V_d draft vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError, TargetInfo

from .chain import Attend
from .checkpoint import Checkpoint, alias_frozen_copies, check_fits, load_strictly
from .eagle3_layouts import Eagle3Config, Eagle3Shape, check_taps, infer_shape, read_shapes, rename
from .qwen3 import Attention, Geometry, Mlp, RMSNorm, Rope, Rotary, frozen_linear, joined, rms_norm, rotate

Net = TypeVar("Net", bound="Eagle3Net")


class Eagle3Layer(nn.Module):
    """Parameters of the one decoder layer, under the names the checkpoints use."""

    def __init__(self, geometry: Geometry, *, qk_norm: bool) -> None:
        super().__init__()
        width, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.self_attn = Attention(geometry, input_size=2 * width, qk_norm=qk_norm)
        self.mlp = Mlp(geometry)
        self.input_layernorm = RMSNorm(width, eps)
        self.hidden_norm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)


class Eagle3Net(nn.Module):
    """Parameters of an EAGLE-3 head, and its maths on fused features and tokens."""

    d2t: Tensor | None
    t2d: Tensor | None
    notes: tuple[str, ...]

    def __init__(self, shape: Eagle3Shape, config: Eagle3Config) -> None:
        super().__init__()
        geometry = shape.geometry
        width, eps = geometry.hidden_size, geometry.rms_norm_eps
        features = shape.taps * shape.target_hidden_size
        self.geometry, self.config, self.taps = geometry, config, shape.taps
        self.feature_size = width
        self.qk_norm = shape.qk_norm
        self.fc = nn.Linear(features, width, bias=shape.fc_bias)
        self.input_norm = RMSNorm(features, eps) if shape.input_norm else None
        taps = range(shape.taps) if shape.fc_norm else ()
        self.fc_norm = nn.ModuleList(RMSNorm(shape.target_hidden_size, eps) for _ in taps)
        self.layers = nn.ModuleList([Eagle3Layer(geometry, qk_norm=shape.qk_norm)])
        self.norm = RMSNorm(width, eps)
        self.lm_head: nn.Module = nn.Linear(width, shape.draft_vocab_size, bias=False)
        self.embed_tokens: nn.Module | None = None
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(geometry.vocab_size, width)
        self.register_buffer("d2t", torch.empty(shape.draft_vocab_size, dtype=torch.int64) if shape.d2t else None)
        self.register_buffer("t2d", torch.empty(geometry.vocab_size, dtype=torch.bool) if shape.t2d else None)
        self.target_ids: Tensor | None = None

    def prepare(self, target: TargetInfo) -> None:
        """After loading: settle tables and vocabulary, and join projections that always run together."""
        self.settle(target)
        layer = self._layer
        attention = layer.self_attn
        self._key_gain = attention.k_norm.get_parameter("weight").detach() if self.qk_norm else None
        self.qkv = joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.kv = frozen_linear(self.qkv.weight.detach()[self.geometry.num_heads * self.geometry.head_dim :])
        del attention.q_proj, attention.k_proj, attention.v_proj
        layer.mlp.join()
        # plain tensors: looking parameters up at every step costs time
        self._post_gain, self._final_gain = layer.post_attention_layernorm.weight.detach(), self.norm.weight.detach()
        self._pair_gain = torch.stack((layer.input_layernorm.weight, layer.hidden_norm.weight))
        if self._key_gain is not None:
            q_gain = attention.q_norm.get_parameter("weight").expand(self.geometry.num_heads, -1)
            self._qk_gain = torch.cat((q_gain, self._key_gain.expand(self.geometry.num_kv_heads, -1)))[:, None]

    def settle(self, target: TargetInfo) -> None:
        """Share the target's tables where they are the same, map the draft vocabulary, and set up the positions."""
        alias_frozen_copies(self, target)
        if self.embed_tokens is None:
            self.embed_tokens = target.embed_tokens
        self.target_ids, note = vocabulary_map(self.d2t, self.t2d, self.geometry.vocab_size, self.config.where)
        self.notes = (*self.config.notes, *([note] if note else []))
        self.d2t = self.t2d = None
        self._rotary = Rotary(self.geometry, device=target.device, dtype=target.dtype)

    @property
    def _layer(self) -> Eagle3Layer:
        return self.layers[0]  # type: ignore[return-value]

    def rope(self, positions: Tensor) -> Rope:
        """positions [B, n] int64 -> rotations [B, 1, n, d]."""
        return self._rotary(positions)

    def embed(self, token_ids: Tensor) -> Tensor:
        """token_ids [...] in the target's vocabulary -> embeddings [..., H]."""
        assert self.embed_tokens is not None  # prepare() has run
        return self.embed_tokens(token_ids)  # type: ignore[no-any-return]

    def fuse(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, S, Ht], taps ascending -> fused features [B, n, H], not normed."""
        if len(self.fc_norm):
            hidden = torch.stack([norm(hidden[:, :, i]) for i, norm in enumerate(self.fc_norm)], 2)
        features = hidden.flatten(2)
        if self.input_norm is not None:
            features = self.input_norm(features)
        return self.fc(features)  # type: ignore[no-any-return]

    def pair(self, features: Tensor, token_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, n, H], the tokens after them [B, n], positions [B, n] -> keys, values [B, n, Nkv, d]."""
        pair = torch.stack((self.embed(token_ids), features), 2)
        normed = rms_norm(pair, self._pair_gain, self.geometry.rms_norm_eps).flatten(2)
        heads = self.kv(normed).view(*token_ids.shape, 2, -1, self.geometry.head_dim)
        keys, values = heads.unbind(2)
        if self._key_gain is not None:
            keys = rms_norm(keys, self._key_gain, self.geometry.rms_norm_eps)
        return rotate(keys.transpose(1, 2), self.rope(positions)).transpose(1, 2), values

    def step(
        self, token_ids: Tensor, hidden: Tensor, position: Tensor, rope: Rope, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """One row per sequence: token_ids [B], hidden [B, H] (fused feature or the last step's output).

        Returns what the next step takes as hidden [B, H], and logits [B, V_d].
        """
        eps = self.geometry.rms_norm_eps
        normed = rms_norm(torch.stack((self.embed(token_ids), hidden), 1), self._pair_gain, eps)
        mixed = attend(*self._queries_keys_values(normed.flatten(1), rope))
        residual = normed[:, 1] if self.config.norm_before_residual else hidden
        residual = residual + self._layer.self_attn.o_proj(mixed.flatten(1))
        raw = residual + self._layer.mlp(rms_norm(residual, self._post_gain, eps))
        out = rms_norm(raw, self._final_gain, eps)
        logits = self.lm_head(out if self.config.norm_logits else raw)
        return (out if self.config.feed_back_normed else raw), logits

    def _queries_keys_values(self, pair: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """pair [B, 2H] -> queries [B, Nq, 1, d], keys and values [B, Nkv, 1, d]."""
        geometry = self.geometry
        heads = self.qkv(pair).view(len(pair), -1, 1, geometry.head_dim)
        queries_keys = geometry.num_heads + geometry.num_kv_heads
        turned, values = heads[:, :queries_keys], heads[:, queries_keys:]
        if self.qk_norm:
            turned = rms_norm(turned, self._qk_gain, geometry.rms_norm_eps)
        turned = rotate(turned, rope)
        return turned[:, : geometry.num_heads], turned[:, geometry.num_heads :], values


def vocabulary_map(
    d2t: Tensor | None, t2d: Tensor | None, vocab_size: int, where: str
) -> tuple[Tensor | None, str | None]:
    """Target id of each draft id [V_d] int64, None if they are the same ids; and a note where the reading is open.

    d2t [V_d] int64: offset, target id minus draft id, or the target id itself, in any order; t2d [V] bool: ids the
    draft can say. Raises ConfigError if no reading gives each draft id a target id of its own, or t2d names others.
    """
    if d2t is None:
        return None, None
    own = torch.arange(len(d2t), device=d2t.device)
    readings = [("offsets", own + d2t), ("target ids", d2t.to(torch.int64))]
    possible = [(name, ids) for name, ids in readings if _one_to_one(ids, vocab_size)]
    if not possible:
        raise ConfigError(
            f"{where}: d2t gives the draft ids no target ids of their own below vocab_size {vocab_size}, read as "
            "offsets or as the ids themselves; the file is damaged"
        )
    if t2d is not None:
        said = t2d.nonzero()[:, 0]
        possible = [(name, ids) for name, ids in possible if torch.equal(ids.sort().values, said)]
        if not possible:
            raise ConfigError(
                f"{where}: d2t names {len(d2t)} draft ids and t2d {len(said)} others; the file is damaged"
            )
    name, ids = possible[0]
    note = None
    if name == "target ids":
        note = f"{where}: d2t holds target ids, not offsets" + (
            "; t2d agrees" if t2d is not None else "; no t2d is there"
        )
    elif len(possible) > 1 and not torch.equal(ids, possible[1][1]):
        note = f"{where}: d2t was read as offsets; it could be target ids too, and there is no t2d to tell them apart"
    return (None if torch.equal(ids, torch.arange(vocab_size, device=ids.device)) else ids), note


def _one_to_one(ids: Tensor, vocab_size: int) -> bool:
    ascending = ids.sort().values
    return bool((ascending.diff() > 0).all()) and int(ascending[0]) >= 0 and int(ascending[-1]) < vocab_size


def load(checkpoint: Checkpoint, config: Eagle3Config, target: TargetInfo, kind: type[Net]) -> Net:
    """Load a head into a net of this kind and fit it to `target`.

    Raises ConfigError if head and target do not belong together, or a tensor is missing, unknown or misshapen.
    """
    shape = infer_shape(config, read_shapes(checkpoint.fetch()))
    check_taps(config, shape, target.hidden_size, config.target_layers)
    check_fits(
        checkpoint.where,
        replace(shape.geometry, hidden_size=shape.target_hidden_size),
        target,
        layer_ids=config.target_layers,
        lowest_layer=-1,
        num_target_layers=config.num_target_layers,
        mask_token_id=config.mask_token_id,
        absolute_rope=False,  # heads may have a base of their own: positions of the draft cache are private to it
    )
    if not shape.own_embedding and shape.geometry.hidden_size != target.hidden_size:
        raise ConfigError(
            f"{checkpoint.where}: missing tensor 'embed_tokens.weight'; the head is {shape.geometry.hidden_size} wide, "
            f"so the embeddings of target {target.name!r} ({target.hidden_size}) do not fit"
        )
    net = load_strictly(
        lambda: kind(shape, config), checkpoint, device=target.device, dtype=target.dtype, rename=rename
    )
    net.prepare(target)
    return net
