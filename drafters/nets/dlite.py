"""DLite: a block drafter that reads S target states of one position and keeps no history (spec dlite, section 1).

Axes as in qwen3.py; S context slots, G real tokens of the query, K proposals, R rank of the serial head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.drafting import ConfigError, TargetInfo

from .checkpoint import Checkpoint, check_fits, load_strictly
from .cross import CrossNet
from .qwen3 import Geometry, RMSNorm, Rope, Rotary, grouped_attention, layer_ids, required, whole

Choose = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Logits [B, V] -> the tokens [B] int64 chosen, and what they were drawn from [B, V]; None: nothing was drawn."""

_IMPLIED_GROUP = {"dlite_v1": 1, "dlite_v2": 2}

# a student trained beside a history-aware teacher may carry the teacher's fusion, which it never runs
_TOLERATED = ("history_fuse.weight", "history_norm.weight", "rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True)
class DLiteConfig:
    """What a DLite config.json says."""

    geometry: Geometry
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    block_size: int
    """Anchor included; proposals are one fewer."""
    group: int
    """G: real tokens in the query, anchor last."""
    rank: int
    mask_token_id: int

    @property
    def max_tokens(self) -> int:
        """Tokens proposed in a round."""
        return self.block_size - 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str, *, rope_theta: float | None = None) -> DLiteConfig:
        """Read a parsed config.json of a v1 or v2 student; raises ConfigError naming the field that does not fit."""
        own = config.get("dlite_config")
        if not isinstance(own, Mapping):
            raise ConfigError(f"{where}: no 'dlite_config'; this is not a DLite checkpoint")
        _check_kind(own, where)
        ids = layer_ids(own, "target_layer_ids", where)
        slots = own.get("chs_num_layers", len(ids))
        if slots != len(ids):
            raise ConfigError(f"{where}: chs_num_layers is {slots}, target_layer_ids has {len(ids)} entries")
        implied = {"anchor_group_size": _IMPLIED_GROUP[own["architecture_version"]]}
        return cls(
            geometry=Geometry.from_config(config, where, rope_theta=rope_theta),
            target_layer_ids=ids,
            num_target_layers=whole(config, "num_target_layers", where),
            block_size=whole(config, "block_size", where, least=2),
            group=whole({**implied, **own}, "anchor_group_size", where),
            rank=whole(own, "sequential_rank", where),
            mask_token_id=whole(own, "mask_token_id", where, least=0),
        )


def _check_kind(own: Mapping[str, Any], where: str) -> None:
    for field, known in (
        ("architecture_version", tuple(_IMPLIED_GROUP)),
        ("model_role", ("pivot_q_student",)),
        ("sequential_head", ("rnn",)),
    ):
        if required(own, field, where) not in known:
            raise ConfigError(f"{where}: dlite_config.{field} is {own[field]!r}; implemented: {', '.join(known)}")


class SerialHead(nn.Module):
    """Low-rank vocabulary head with a recurrence over tokens: the names are those of the checkpoint."""

    def __init__(self, vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__()
        self.rank = rank
        self.prev_token_embedding = nn.Embedding(vocab_size, rank)
        self.state_proj = nn.Linear(2 * rank, 2 * rank)
        self.state_hidden_mlp = nn.Linear(rank + hidden_size, rank)
        self.output_proj = nn.Linear(rank, vocab_size, bias=False)

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """Take in one token: state [B, R], token [B] int64 -> state [B, R]."""
        embedded = self.prev_token_embedding(token)
        joint = self.state_proj(torch.cat((state, embedded), -1)).to(state.dtype)  # under autocast the state stays wide
        gate, candidate = joint.chunk(2, -1)
        return torch.lerp(torch.tanh(candidate), state, torch.sigmoid(gate))

    def hidden_part(self, hidden: Tensor) -> Tensor:
        """The part of every latent that no token changes: hidden [B, k, H] -> [B, k, R], the bias included."""
        weight = self.state_hidden_mlp.weight[:, self.rank :]
        return F.linear(hidden, weight, self.state_hidden_mlp.bias)

    def forward(self, state: Tensor, token: Tensor, hidden_part: Tensor) -> tuple[Tensor, Tensor]:
        """One step: state [B, R], token before it [B], hidden_part [B, R] -> state [B, R], logits [B, V].

        The latent between them has no activation, as published.
        """
        state = self.advance(state, token)
        latent = hidden_part + F.linear(state, self.state_hidden_mlp.weight[:, : self.rank])
        return state, self.output_proj(latent)

    def walk(self, states: Tensor, real: Tensor, choose: Choose) -> tuple[Tensor, list[Tensor | None]]:
        """Choose tokens left to right, each seen by the next: states [B, k, H] of the masks, real [B, G] int64 before
        them -> tokens [B, k] int64, and what each column was drawn from."""
        state = states.new_zeros(len(states), self.rank)
        if real.shape[1] > 1:
            state = self.advance(state, real[:, -2])
        token, tokens, drawn_from = real[:, -1], [], []
        for hidden_part in self.hidden_part(states).unbind(1):
            state, logits = self(state, token, hidden_part)
            token, probs = choose(logits)
            tokens.append(token)
            drawn_from.append(probs)
        return torch.stack(tokens, 1), drawn_from


@dataclass(frozen=True, slots=True)
class Layout:
    """Where slots and query rows of one round sit, and which may be seen; B is 1 when all rows are alike."""

    context: Tensor
    """[B, S] int64: positions of the context slots, all the same."""
    query: Tensor
    """[B, G + K] int64: positions of the real tokens and the masks."""
    real: Tensor
    """[B, G] bool: real tokens that exist."""

    @property
    def positions(self) -> Tensor:
        """[B, S + G + K] int64: slots, then query."""
        return torch.cat((self.context, self.query), 1)

    @property
    def visible(self) -> Tensor:
        """[B, 1, 1, S + G + K] bool: all but real tokens before the text's first."""
        seen = torch.ones_like(self.positions, dtype=torch.bool)
        first = self.context.shape[1]
        seen[:, first : first + self.real.shape[1]] = self.real
        return seen[:, None, None]


def layout(config: DLiteConfig, anchor_position: Tensor) -> Layout:
    """Local positions for anchors at anchor_position [B] int64 >= 0; the text may be shorter than the group."""
    group, device = config.group, anchor_position.device
    have = (anchor_position + 1).clamp(max=group)[:, None]
    place = torch.arange(group + config.max_tokens, device=device) - (group - have)
    context = (have - 2).clamp(min=0).expand(-1, len(config.target_layer_ids))
    return Layout(context, place.clamp(min=0), place[:, :group] >= 0)


class _Together:
    """No memory of its own: the slots are projected with the query rows. mask [B, 1, 1, S + G + K] bool or None."""

    def __init__(self, mask: Tensor | None) -> None:
        self._mask = mask

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return grouped_attention(queries, keys, values, self._mask)


class DLiteNet(CrossNet):
    """The draft network; real tokens and masks are embedded by the target."""

    embed_tokens: nn.Module
    """The target's input embedding, lent after loading."""

    def __init__(self, config: DLiteConfig) -> None:
        geometry = config.geometry
        super().__init__(geometry)
        h = geometry.hidden_size
        self.config = config
        self.context_norm = RMSNorm(h, geometry.rms_norm_eps)
        self.layer_depth_embedding = nn.Embedding(config.num_target_layers, h)
        self._depth: Tensor | None = None
        self.sequential_head = SerialHead(geometry.vocab_size, config.rank, h)

    def prepare(self) -> None:
        super().prepare()
        self._depth = self.depth().detach()

    def depth(self) -> Tensor:
        """What tells the slots apart: the table's rows of the tapped layers [S, H]."""
        return torch.stack([self.layer_depth_embedding.weight[layer] for layer in self.config.target_layer_ids])

    def slots(self, pivot: Tensor) -> Tensor:
        """Target states pivot [B, S, H] of the newest processed position -> context slots [B, S, H]."""
        return self.context_norm(pivot + (self.depth() if self._depth is None else self._depth))  # type: ignore[no-any-return]

    def queries(self, real: Tensor, k_masks: int) -> Tensor:
        """Tokens real [B, G] int64, anchor last, then masks -> embeddings [B, G + k_masks, H]."""
        masks = real.new_full((len(real), k_masks), self.config.mask_token_id)
        return self.embed_tokens(torch.cat((real, masks), 1))  # type: ignore[no-any-return]

    def block(self, slots: Tensor, query: Tensor, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """slots [B, S, H], query [B, G + K, H], rope of both in this order, mask [B, 1, 1, S + G + K] bool.

        Returns the final normed states of the masks [B, K, H].
        """
        query_rope = rope[0][:, :, slots.shape[1] :], rope[1][:, :, slots.shape[1] :]
        states = self.run(query, query_rope, _Together(mask), context=(slots, rope))
        return self.norm(states[:, -self.config.max_tokens :])  # type: ignore[no-any-return]


def check_geometry(checkpoint: Checkpoint, config: DLiteConfig, target: TargetInfo) -> None:
    """Raise ConfigError unless the checkpoint was made for a target of this shape."""
    check_fits(
        checkpoint.where,
        config.geometry,
        target,
        layer_ids=config.target_layer_ids,
        last_layer=True,
        num_target_layers=config.num_target_layers,
        mask_token_id=config.mask_token_id,
        absolute_rope=False,
    )


def open_net(checkpoint: Checkpoint, config: DLiteConfig, target: TargetInfo) -> DLiteNet:
    """The student with its weights, embedding through the target. Raises ConfigError if it does not fit the target."""
    check_geometry(checkpoint, config, target)
    device, dtype = target.device, target.dtype
    net = load_strictly(lambda: DLiteNet(config), checkpoint, device=device, dtype=dtype, tolerated=_TOLERATED)
    net.embed_tokens = target.embed_tokens
    if device.type == "cuda":  # fewer kernel launches; thin products on a CPU gain nothing from being joined
        net.prepare()
    return net


class BlockForward:
    """The block forward of a net for rows whose pivots the caller holds; local positions are computed once."""

    def __init__(self, net: DLiteNet, *, device: torch.device, dtype: torch.dtype) -> None:
        self.net = net
        self._rotary = Rotary(net.config.geometry, device=device, dtype=dtype)
        whole_group = layout(net.config, torch.tensor([net.config.group - 1], device=device))
        self._whole_rope = self._rotary(whole_group.positions)  # that of every text of at least G tokens

    def __call__(self, pivots: Tensor, query: Tensor, at: Tensor | None) -> Tensor:
        """Final states [B, K, H] of the masks.

        pivots [B, S, H]: target states of the position before each anchor; query [B, G + K, H]: as `DLiteNet.queries`
        gives it; at [B] int64: the anchors' positions, None where every text is known to hold G tokens.
        """
        net, slots = self.net, self.net.slots(pivots)
        if at is None or net.config.group <= 2:  # an anchor has a token before it
            return net.block(slots, query, self._whole_rope)
        place = layout(net.config, at)
        return net.block(slots, query, self._rotary(place.positions), place.visible)
