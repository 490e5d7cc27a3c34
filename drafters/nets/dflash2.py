"""DFlash 2: DFlash with short convolutions around attention and MLP, and a selector that chains the guesses of a block.

Source: spec newer-drafters, section 1. Axes: B rows, b rows of the block, k drafted, H hidden, V vocabulary, C
candidates, r selector rank, n taps, G groups of channels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.drafting import ConfigError

from .block import BlockConfig, BlockNet, Rule
from .context import Sight
from .cross import Memory
from .qwen3 import Geometry, Layer, Rope, layer_ids, number, whole
from .speculators import is_speculators, read_block, read_sights


@dataclass(frozen=True, slots=True)
class DFlash2Config:
    """What a DFlash 2 config.json says."""

    block: BlockConfig
    taps: int
    """Rows of the block that a convolution reads, its own included."""
    group_size: int
    """Channels that share a dynamic coefficient."""
    rank: int
    top_k: int
    """Candidates of each row."""
    input_scale: float
    multiplier: float
    softcap: float | None

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], where: str, *, rope_theta: float | None = None, rule: Rule = "query"
    ) -> DFlash2Config:
        """Read a parsed config.json of the z-lab or the speculators layout.

        Raises ConfigError if it is neither, a field is missing, or sizes do not divide.
        """
        if is_speculators(config):
            block = read_block(config, where, "dflash2", rope_theta=rope_theta, rule=rule)
            given = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16, **config}
        else:
            given = {**config, **(config.get("dflash_config") or {})}
            block = _read_zlab(config, given, where, rope_theta, rule)
        taps, group = (whole(given, field, where) for field in ("conv_kernel_size", "conv_group_size"))
        top_k = whole(given, "selector_top_k", where)
        geometry = block.geometry
        if geometry.hidden_size % group:
            raise ConfigError(f"{where}: hidden_size {geometry.hidden_size} does not divide by conv_group_size {group}")
        if taps > block.block_size or top_k > geometry.vocab_size:
            raise ConfigError(
                f"{where}: conv_kernel_size {taps} or selector_top_k {top_k} is beyond block or vocabulary"
            )
        cap = float(given.get("final_logit_softcapping") or 0)
        return cls(
            block=block,
            taps=taps,
            group_size=group,
            rank=whole(given, "selector_rank", where),
            top_k=top_k,
            input_scale=number(given.get("input_embedding_scale", 1), "input_embedding_scale", where),
            multiplier=number(given.get("output_multiplier", 1), "output_multiplier", where),
            softcap=cap if cap > 0 else None,
        )


def _read_zlab(
    config: Mapping[str, Any], merged: Mapping[str, Any], where: str, rope_theta: float | None, rule: Rule
) -> BlockConfig:
    names = config.get("architectures") or ()
    if "DFlash2DraftModel" not in names and "selector_rank" not in merged:
        raise ConfigError(
            f"{where}: architecture {list(names)} is not DFlash2DraftModel; for DFlash load it as dflash="
        )
    geometry = Geometry.from_config(config, where, rope_theta=rope_theta, sliding=True)
    causal = merged.get("is_causal")
    # is_causal speaks for all layers; without it full layers are bidirectional and sliding ones causal
    sights, notes = read_sights(config, geometry, where, rule, None if causal is None else not causal, default=False)
    if causal:
        sights = tuple(Sight(sight.window, True, sight.from_anchor) for sight in sights)
    return BlockConfig(
        geometry=geometry,
        family="own-slot",
        block_size=whole(merged, "block_size", where, least=2),
        mask_token_id=whole(merged, "mask_token_id", where, least=0),
        target_layer_ids=layer_ids(merged, "target_layer_ids", where),
        num_target_layers=merged.get("num_target_layers"),
        markov_rank=0,
        markov_head_type=None,
        confidence=False,
        confidence_with_markov=False,
        layout="z-lab",
        draft_vocab_size=geometry.vocab_size,
        sights=sights,
        notes=notes,
    )


class BlockConv(nn.Module):
    """A depthwise convolution over the rows of one block, before and after a sublayer; nothing precedes the block.

    Its coefficients are a learned base and a part that a projection of the row's own normed input adds.
    """

    def __init__(self, hidden_size: int, taps: int, group_size: int) -> None:
        super().__init__()
        self.taps, self.group_size = taps, group_size
        self.base_kernel = nn.Parameter(torch.empty(2, taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * hidden_size // group_size, bias=False)

    def kernels(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients [B, b, n, H] before and after the sublayer, for its normed input [B, b, H]."""
        added = self.kernel_projection(normed).view(*normed.shape[:2], 2, self.taps, -1)
        both = self.base_kernel + added.repeat_interleave(self.group_size, -1)
        return both[:, :, 0], both[:, :, 1]

    def apply_to(self, x: Tensor, kernel: Tensor) -> Tensor:
        """x [B, b, H] under coefficients [B, b, n, H]: each row plus what the rows before it in the block add."""
        rows = x.shape[1]
        padded = F.pad(x, (0, 0, self.taps - 1, 0))
        shifted = [padded[:, self.taps - 1 - t : self.taps - 1 - t + rows] for t in range(self.taps)]
        return (torch.stack(shifted, 2) * kernel).sum(2)


class DFlash2Layer(Layer):
    """A decoder layer with its two convolutions."""

    def __init__(self, geometry: Geometry, taps: int, group_size: int) -> None:
        super().__init__(geometry)
        self.attention_conv = BlockConv(geometry.hidden_size, taps, group_size)
        self.mlp_conv = BlockConv(geometry.hidden_size, taps, group_size)


class Selector(nn.Module):
    """Scores of the likeliest tokens of each row, given the token chosen before."""

    def __init__(self, vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def forward(self, candidates: Tensor, unary: Tensor, previous: Tensor, code: Tensor) -> Tensor:
        """candidates [B, C] and their logits, previous [B], code [B, r] of the row's state -> scores [B, C] float32."""
        pair = self.predecessor_codebook[previous].float() * code.float()
        return unary + (self.successor_codebook[candidates].float() @ pair[..., None])[..., 0]


class DFlash2Net(BlockNet):
    """The block backbone with convolutions and selector; embedding and head are the target's."""

    def __init__(self, config: DFlash2Config, *, own: Collection[str] = ()) -> None:
        super().__init__(config.block, own=own)
        geometry = config.block.geometry
        self.dflash2 = config
        self.layers = nn.ModuleList(
            DFlash2Layer(geometry, config.taps, config.group_size) for _ in range(geometry.num_layers)
        )
        self.candidate_selector = Selector(geometry.vocab_size, config.rank, geometry.hidden_size)

    def embed_block(self, ids: Tensor) -> Tensor:
        return self.embed_tokens(ids) * self.dflash2.input_scale  # type: ignore[no-any-return]

    def run(self, x: Tensor, rope: Rope, memory: Memory, *, context: tuple[Tensor, Rope] | None = None) -> Tensor:
        """Query rows x [B, b, H] through all layers; the context enters through `memory` alone."""
        for index, layer in enumerate(cast(list[DFlash2Layer], self.layers)):
            attention, conv, normed = layer.self_attn, layer.attention_conv, layer.input_layernorm(x)
            before, after = conv.kernels(normed)
            mixed_in = conv.apply_to(normed, before)
            seen = memory.attend(index, attention.queries(mixed_in, rope), *attention.keys_values(mixed_in, rope))
            x = x + conv.apply_to(attention.output(seen), after)
            conv, normed = layer.mlp_conv, layer.post_attention_layernorm(x)
            before, after = conv.kernels(normed)
            x = x + conv.apply_to(layer.mlp(conv.apply_to(normed, before)), after)
        return x

    def candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """States [B, k, H] -> the likeliest token ids [B, k, C] and their logits float32, likeliest first."""
        logits = self.lm_head(hidden).float() * self.dflash2.multiplier
        if self.dflash2.softcap is not None:
            logits = self.dflash2.softcap * torch.tanh(logits / self.dflash2.softcap)
        unary, ids = logits.topk(self.dflash2.top_k, -1)
        return ids, unary
