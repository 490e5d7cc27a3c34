"""Block drafters in the speculators layout: layer sizes nested, layer ids one higher, optional windows and vocabulary.

Source: spec newer-drafters, sections 1.3, 1.4 and 2; the defaults are those of the package speculators 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbench_spec.drafting import ConfigError

from .block import BlockConfig, Rule
from .context import Sight
from .qwen3 import Geometry, layer_ids, required, whole

_ANCHOR_READ = {"dflash": False, "dspark": True, "dflash2": False}
_BIDIRECTIONAL = {"dflash": False, "dspark": False, "dflash2": True}
"""Class defaults of `sample_from_anchor` and `sliding_window_non_causal`."""


def is_speculators(config: Mapping[str, Any]) -> bool:
    """True if a parsed config.json is of this layout."""
    return config.get("transformer_layer_config") is not None


def read_block(
    config: Mapping[str, Any], where: str, kind: str, *, rope_theta: float | None = None, rule: Rule = "query"
) -> BlockConfig:
    """Read a parsed config.json of this layout that says it is a `kind`: dflash, dspark or dflash2.

    rule: from where a sliding layer's window is measured, see Sight. Raises ConfigError if it is another kind, a field
    is missing, or something is asked for that is not implemented.
    """
    said = config.get("speculators_model_type")
    if said != kind:
        way = f"; load it as {said}=" if said in {*_ANCHOR_READ, "eagle3", "peagle"} else "; it is not implemented"
        raise ConfigError(f"{where}: speculators_model_type is {said!r}, expected {kind!r}{way}")
    layer = config["transformer_layer_config"]
    if not isinstance(layer, Mapping):
        raise ConfigError(f"{where}: transformer_layer_config is {layer!r}; it must be an object")
    geometry = Geometry.from_config({"model_type": "qwen3", **layer}, where, rope_theta=rope_theta, sliding=True)
    block_size = whole({"block_size": 8, **config}, "block_size", where, least=2)
    vocabulary = whole(
        {**config, "draft_vocab_size": config.get("draft_vocab_size") or geometry.vocab_size}, "draft_vocab_size", where
    )
    if vocabulary > geometry.vocab_size or (kind == "dflash2" and vocabulary != geometry.vocab_size):
        raise ConfigError(
            f"{where}: draft_vocab_size is {vocabulary}, vocab_size {geometry.vocab_size}; not implemented"
        )
    sights, notes = read_sights(
        layer, geometry, where, rule, config.get("sliding_window_non_causal"), default=_BIDIRECTIONAL[kind]
    )
    markov = kind == "dspark"
    confidence = markov and bool(config.get("enable_confidence_head", True))
    return BlockConfig(
        geometry=geometry,
        family="next-token" if _reads_anchor(config, kind, block_size, where) else "own-slot",
        block_size=block_size,
        mask_token_id=whole(config, "mask_token_id", where, least=0),
        target_layer_ids=tuple(i - 1 for i in layer_ids(config, "aux_hidden_state_layer_ids", where)),
        num_target_layers=None,
        markov_rank=whole(config, "markov_rank", where) if markov else 0,
        markov_head_type=required(config, "markov_head_type", where) if markov else None,
        confidence=confidence,
        confidence_with_markov=confidence and bool(config.get("confidence_head_with_markov", True)),
        layout="speculators",
        draft_vocab_size=vocabulary,
        sights=sights,
        notes=notes,
    )


def _reads_anchor(config: Mapping[str, Any], kind: str, block_size: int, where: str) -> bool:
    """True if the anchor's row predicts too; told by the flag, else by the number of tokens, else by the kind."""
    flag = config.get("sample_from_anchor")
    if flag is not None:
        if not isinstance(flag, bool):
            raise ConfigError(f"{where}: sample_from_anchor is {flag!r}; it must be true or false")
        return flag
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    tokens = methods[0].get("speculative_tokens")
    return {block_size: True, block_size - 1: False}.get(tokens, _ANCHOR_READ[kind])


def read_sights(
    layer: Mapping[str, Any], geometry: Geometry, where: str, rule: Rule, bidirectional: bool | None, *, default: bool
) -> tuple[tuple[Sight, ...], tuple[str, ...]]:
    """What the block's rows see in each layer, and a note where the config leaves it open.

    bidirectional: the config's word for sliding layers; full ones always are. default: where it says nothing.
    Raises ConfigError for layer types that are unknown or not as many as layers, or no window.
    """
    types = layer.get("layer_types")
    if types is None:
        types = ["sliding_attention" if layer.get("use_sliding_window") else "full_attention"] * geometry.num_layers
    if len(types) != geometry.num_layers or set(types) - {"sliding_attention", "full_attention"}:
        raise ConfigError(f"{where}: layer_types is {types}; it must name full or sliding attention of each layer")
    if "sliding_attention" not in types:
        return (Sight(),) * len(types), ()
    window = whole(layer, "sliding_window", where)
    both = default if bidirectional is None else bool(bidirectional)
    note = f"{where} does not say whether sliding layers are causal in the block; taken as {'not ' * both}causal"
    sliding = Sight(window, causal=not both, from_anchor=rule == "anchor")
    return tuple(sliding if own == "sliding_attention" else Sight() for own in types), (note,) * (bidirectional is None)
