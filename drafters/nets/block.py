"""DFlash and DSpark: one bidirectional block over projected target features (spec dspark-dflash, sections 1 and 2).

Two families share the backbone and differ in what a row of the block predicts. *Own slot* (z-lab): a mask at
position p predicts the token at p, and the anchor's row is not read. *Next token* (DeepSpec): row j predicts the
token after it, the anchor's row included. Axes as in qwen3.py; b rows of the block, S tapped layers, r Markov rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError

from .context import Sight
from .cross import CrossNet, Memory
from .dspark import ConfidenceHead, MarkovHead, make_markov_head
from .qwen3 import Geometry, RMSNorm, Rope, frozen_linear, joined, layer_ids, required, rms_norm, rotate, whole

Family = Literal["own-slot", "next-token"]
Layout = Literal["z-lab", "deepspec", "speculators"]
Rule = Literal["query", "anchor"]
"""Whether a sliding layer's window ends at each row of the block, or at the anchor for all of them."""

_NEXT_TOKEN_FIELDS = ("markov_rank", "enable_confidence_head")
_OTHER_ARCHITECTURES = ("DFlash2DraftModel", "DominoDraftModel", "DLiteDraftModel", "Qwen3Eagle3Model")
_NOT_IMPLEMENTED: Mapping[str, tuple[Any, ...]] = {
    "input_embedding_scale": (None, 1, 1.0),
    "output_multiplier": (None, 1, 1.0),
    "final_logit_softcapping": (None,),
    "is_causal": (None, False),
}


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """What a DFlash or DSpark config.json says."""

    geometry: Geometry
    family: Family
    block_size: int
    """Rows fed to the draft, anchor included."""
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    markov_rank: int
    markov_head_type: str | None
    confidence: bool
    confidence_with_markov: bool
    layout: Layout
    """Decides where embedding and head come from."""
    draft_vocab_size: int
    """Ids the draft can say; below the target's vocabulary the file maps them."""
    sights: tuple[Sight, ...]
    """What the block's rows see, layer by layer."""
    notes: tuple[str, ...] = ()

    @property
    def max_tokens(self) -> int:
        """Tokens proposed in a round."""
        return self.block_size - 1 if self.family == "own-slot" else self.block_size

    @property
    def bytes_per_token(self) -> int:
        """Context K/V elements of one text position; times the element size it is bytes."""
        return 2 * self.geometry.num_layers * self.geometry.num_kv_heads * self.geometry.head_dim

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str, *, rope_theta: float | None = None) -> BlockConfig:
        """Read a parsed config.json; fields are looked up in `dflash_config` first, then at the top level.

        Raises ConfigError if a field is missing, asks for something not implemented, or leaves the family open.
        """
        merged = {**config, **(config.get("dflash_config") or {})}
        for field, harmless in _NOT_IMPLEMENTED.items():
            if merged.get(field) not in harmless:
                raise ConfigError(f"{where}: {field} is {merged[field]!r}, which is not implemented")
        rank = 0 if merged.get("markov_rank") is None else whole(merged, "markov_rank", where, least=0)
        confidence = bool(merged.get("enable_confidence_head"))
        if rank:
            required(merged, "markov_head_type", where)
        if confidence and (not rank or "confidence_head_with_markov" not in merged):
            raise ConfigError(f"{where}: a confidence head needs markov_rank > 0 and confidence_head_with_markov")
        family = _family(config, where)
        geometry = Geometry.from_config(config, where, rope_theta=rope_theta)
        return cls(
            geometry=geometry,
            family=family,
            block_size=whole(merged, "block_size", where, least=2 if family == "own-slot" else 1),
            mask_token_id=whole(merged, "mask_token_id", where, least=0),
            target_layer_ids=layer_ids(merged, "target_layer_ids", where),
            num_target_layers=merged.get("num_target_layers"),
            markov_rank=rank,
            markov_head_type=merged.get("markov_head_type") if rank else None,
            confidence=confidence,
            confidence_with_markov=bool(merged.get("confidence_head_with_markov")),
            layout="deepspec" if family == "next-token" else "z-lab",
            draft_vocab_size=geometry.vocab_size,
            sights=(Sight(),) * geometry.num_layers,
        )


def _family(config: Mapping[str, Any], where: str) -> Family:
    """Which token a row predicts. Read wrongly, output stays correct and acceptance collapses: so never guessed."""
    nested = config.get("dflash_config")
    names = tuple(config.get("architectures") or ())
    projector = (nested or {}).get("projector_type", "dflash")
    if set(names) & set(_OTHER_ARCHITECTURES) or projector not in ("dflash", "dspark"):
        raise ConfigError(f"{where}: architecture {list(names)} ({projector}) is not DFlash or DSpark")
    merged = {**config, **(nested or {})}
    fields = [field in merged for field in _NEXT_TOKEN_FIELDS]
    says_next = all(fields) and (nested is None or projector == "dspark") and "DFlashDraftModel" not in names
    says_own = not any(fields) and nested is not None and projector == "dflash" and "Qwen3DSparkModel" not in names
    if says_next != says_own and merged.get("sample_from_anchor") in (None, says_next):
        return "next-token" if says_next else "own-slot"
    raise ConfigError(
        f"{where}: cannot tell whether a row predicts its own slot (z-lab: a dflash_config and no markov_rank) or the "
        "next token (DeepSpec: markov_rank and enable_confidence_head). Read with the wrong offset a draft still gives "
        "correct text but is hardly ever accepted, so it is refused; complete the config"
    )


OWN_TABLES = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
"""Tensors that a file may hold of its own; what is missing is the target's."""


class BlockNet(CrossNet):
    """The draft network. `embed_tokens` and `lm_head` are the draft's own or lent by the target, by its layout."""

    embed_tokens: nn.Module
    lm_head: nn.Module

    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(self, config: BlockConfig, *, own: Collection[str] | None = None) -> None:
        """own: which of the tensors in OWN_TABLES the file holds; None: those that the layout always has."""
        geometry = config.geometry
        super().__init__(geometry)
        h = geometry.hidden_size
        self.config = config
        self.context_kv_proj: nn.Module | None = None
        self.fc = nn.Linear(len(config.target_layer_ids) * h, h, bias=False)
        self.hidden_norm = RMSNorm(h, geometry.rms_norm_eps)
        if own is None:
            own = OWN_TABLES[:2] if config.layout == "deepspec" else ()
        if "embed_tokens.weight" in own:
            self.embed_tokens = nn.Embedding(geometry.vocab_size, h)
        if "lm_head.weight" in own:
            self.lm_head = nn.Linear(h, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.empty(config.draft_vocab_size, dtype=torch.int64) if "d2t" in own else None)
        self.register_buffer("t2d", torch.empty(geometry.vocab_size, dtype=torch.bool) if "t2d" in own else None)
        self.markov_head: MarkovHead | None = None
        if config.markov_rank and config.markov_head_type is not None:
            self.markov_head = make_markov_head(
                config.markov_head_type, geometry.vocab_size, config.markov_rank, h, said=config.draft_vocab_size
            )
        self.confidence_head: ConfidenceHead | None = None
        if config.confidence:
            self.confidence_head = ConfidenceHead(h, config.markov_rank if config.confidence_with_markov else 0)

    def prepare(self) -> None:
        attentions = [layer.self_attn for layer in self.each_layer()]
        every = joined([p for a in attentions for p in (a.k_proj, a.v_proj)])
        for attention, part in zip(attentions, every.weight.detach().chunk(len(attentions)), strict=True):
            attention.join(frozen_linear(part))
        for layer in self.each_layer():
            layer.mlp.join()
        self.context_kv_proj = every

    def fuse(self, hidden: Tensor) -> Tensor:
        """Target states hidden [B, n, S, H], layers in config order -> context features [B, n, H]."""
        return self.hidden_norm(self.fc(hidden.flatten(2)))  # type: ignore[no-any-return]

    def context_keys_values(self, features: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Context features [B, n, H] -> keys, values [B, L, Nkv, n, d] of every layer; from one product if prepared."""
        if self.context_kv_proj is None:
            each = [layer.self_attn.keys_values(features, rope) for layer in self.each_layer()]
            return torch.stack([keys for keys, _ in each], 1), torch.stack([values for _, values in each], 1)
        geometry = self.geometry
        both = self.context_kv_proj(features)
        both = both.view(*features.shape[:2], geometry.num_layers, 2, geometry.num_kv_heads, geometry.head_dim)
        keys, values = both.permute(3, 0, 2, 4, 1, 5).unbind(0)
        gains = torch.stack([cast(RMSNorm, layer.self_attn.k_norm).weight for layer in self.each_layer()])
        cos, sin = rope
        keys = rms_norm(keys, gains[:, None, None], geometry.rms_norm_eps)
        return rotate(keys, (cos[:, None], sin[:, None])), values

    def block(self, anchor: Tensor, rope: Rope, memory: Memory) -> Tensor:
        """Run the block [anchor, mask, ...] for anchor [B] int64: final normed states [B, b, H]."""
        ids = anchor.new_full((len(anchor), self.config.block_size), self.config.mask_token_id)
        ids[:, 0] = anchor
        return self.norm(self.run(self.embed_block(ids), rope, memory))  # type: ignore[no-any-return]

    def embed_block(self, ids: Tensor) -> Tensor:
        """The block's token ids [B, b] -> its input rows [B, b, H]."""
        return self.embed_tokens(ids)  # type: ignore[no-any-return]

    def read(self, states: Tensor, k: int) -> Tensor:
        """The k of the final states [B, b, H] that predict positions anchor + 1 .. anchor + k: [B, k, H]."""
        first = 1 if self.config.family == "own-slot" else 0
        return states[:, first : first + k]
