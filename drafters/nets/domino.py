"""Domino (arXiv 2605.29707): a DFlash block whose logits a small GRU over the chosen tokens corrects, left to right.

Source: spec eagle3-domino-mtp, section 8. Experimental: no recorded vectors exist. Axes: B rows, b rows of the block,
k drafted, H hidden, G GRU state, E width of the correction, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.drafting import ConfigError

from .block import BlockConfig, BlockNet
from .context import Sight
from .qwen3 import Geometry, layer_ids, whole

_PROJECTORS = ("domino", "causal_v5")


@dataclass(frozen=True, slots=True)
class DominoConfig:
    """What a Domino config.json says."""

    block: BlockConfig
    """The backbone. Its family says where the tables come from (the target); `shift_label` says what a row predicts."""
    plain_tokens: int
    """`pure_draft_prefix_len`: leading tokens chosen without the correction."""
    embed_size: int
    state_size: int
    shift_label: bool
    """True: row j predicts the token after it; False: its own slot."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str, *, rope_theta: float | None = None) -> DominoConfig:
        """Read a parsed config.json. Raises ConfigError if it is no Domino config or a field is missing."""
        nested = config.get("dflash_config") or {}
        names = config.get("architectures") or ()
        if "DominoDraftModel" not in names and nested.get("projector_type") not in _PROJECTORS:
            raise ConfigError(f"{where}: architecture {list(names)} is not DominoDraftModel")
        geometry = Geometry.from_config(config, where, rope_theta=rope_theta)
        merged = {**config, **nested}
        block = BlockConfig(
            geometry=geometry,
            family="own-slot",
            block_size=whole(merged, "block_size", where, least=2),
            mask_token_id=whole(merged, "mask_token_id", where, least=0),
            target_layer_ids=_layer_ids(merged, geometry.num_layers, where),
            num_target_layers=merged.get("num_target_layers"),
            markov_rank=0,
            markov_head_type=None,
            confidence=False,
            confidence_with_markov=False,
            layout="z-lab",
            draft_vocab_size=geometry.vocab_size,
            sights=(Sight(),) * geometry.num_layers,
        )
        return cls(
            block=block,
            plain_tokens=whole({"pure_draft_prefix_len": 0, **merged}, "pure_draft_prefix_len", where, least=0),
            embed_size=whole(merged, "emb_dim", where),
            state_size=whole(merged, "gru_hidden_dim", where),
            shift_label=bool(merged.get("shift_label", False)),
        )


def _layer_ids(config: Mapping[str, Any], taps: int, where: str) -> tuple[int, ...]:
    """The ids of the config, or as many as the draft has layers, evenly from 1 to three before the last."""
    if config.get("target_layer_ids"):
        return layer_ids(config, "target_layer_ids", where)
    last = whole(config, "num_target_layers", where) - 3
    return tuple(round(1 + i * (last - 1) / max(taps - 1, 1)) for i in range(taps))


class PrefixGru(nn.Module):
    """One GRU layer without biases, under PyTorch's names and gate order (reset, update, new)."""

    def __init__(self, input_size: int, state_size: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * state_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * state_size, state_size))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """x [B, H], state [B, G] -> the state after reading x [B, G]."""
        inputs = F.linear(x, self.weight_ih_l0).chunk(3, -1)
        states = F.linear(state, self.weight_hh_l0).chunk(3, -1)
        reset, update = (torch.sigmoid(inputs[gate] + states[gate]) for gate in (0, 1))
        return torch.lerp(torch.tanh(inputs[2] + reset * states[2]), state, update)


class DominoNet(BlockNet):
    """The block backbone with its serial correction; embedding and head are the target's."""

    def __init__(self, config: DominoConfig) -> None:
        super().__init__(config.block)
        geometry = config.block.geometry
        width = geometry.hidden_size
        self.domino = config
        self.prefix_gru = PrefixGru(width, config.state_size)
        self.embed_proj = nn.Sequential(
            nn.Linear(width + config.state_size, config.embed_size, bias=False),
            nn.SiLU(),
            nn.Linear(config.embed_size, geometry.vocab_size, bias=False),
        )

    def read(self, states: Tensor, k: int) -> Tensor:
        """The k of the final states [B, b, H] that predict positions anchor + 1 .. anchor + k: [B, k, H]."""
        first = 0 if self.domino.shift_label else 1
        return states[:, first : first + k]

    def start(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """For states [B, k, H]: the part of the correction they fix [B, k, E], and the GRU's first state [B, G]."""
        into = self._into()
        return F.linear(hidden, into[:, : hidden.shape[-1]]), hidden.new_zeros(len(hidden), self.domino.state_size)

    def correction(self, fixed: Tensor, state: Tensor) -> Tensor:
        """fixed [B, E] of one row and the state after every token before its own [B, G] -> logits to add [B, V]."""
        into = self._into()
        return self.embed_proj[2](F.silu(fixed + F.linear(state, into[:, -state.shape[-1] :])))  # type: ignore[no-any-return]

    def _into(self) -> Tensor:
        return self.embed_proj[0].get_parameter("weight")
