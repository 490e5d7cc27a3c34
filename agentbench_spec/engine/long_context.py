"""Longer windows than a model was trained for: YaRN, for the target and through it for every drafter.

A rope scaling changes the target's outputs at every length, short prompts included. So it is a setting of the whole
run: the baseline and all drafters verify against the one scaled target, drafters that share its positions read the
scaling from `TargetInfo.config`, and the manifest holds what was applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["apply_rope_scaling"]


def apply_rope_scaling(config: PretrainedConfig, scaling: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Set a static YaRN scaling on a model's configuration; returns it as applied, for the manifest.

    scaling: `factor` and, where given, original_max_position_embeddings (default: the config's window), beta_fast,
    beta_slow, attention_factor. The window becomes factor x original. Source: YaRN, arXiv 2309.00071, as transformers
    computes it. Raises ConfigError if the model has no plain rope to scale.
    """
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None)
    if not isinstance(rope, Mapping) or "rope_theta" not in rope:
        raise ConfigError(f"target.rope_scaling: model {source!r} has no single rope base to scale; leave it out")
    if rope.get("rope_type", "default") != "default":
        raise ConfigError(
            f"target.rope_scaling: model {source!r} is scaled already (rope_type {rope['rope_type']!r}); leave it out"
        )
    given = {name: value for name, value in scaling.items() if value is not None}
    window = int(text.max_position_embeddings)
    original = int(given.get("original_max_position_embeddings", window))
    if original > window:
        raise ConfigError(
            f"target.rope_scaling.original_max_position_embeddings: {original} is more than the window of {window} "
            f"that model {source!r} says it was trained for"
        )
    applied = {**rope, **given, "rope_type": "yarn", "original_max_position_embeddings": original}
    text.rope_parameters = applied
    text.max_position_embeddings = int(original * float(applied["factor"]))
    return {**applied, "window_tokens": text.max_position_embeddings}
