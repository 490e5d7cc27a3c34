"""Which architectures the engine refuses.

The engine runs stock transformers code with its own cache and attention function. What that cannot serve exactly
(recurrent state, chunked or indexed attention, soft-capped or sink logits, encoders) is refused here with the reason,
because a model that runs with the wrong attention gives plausible numbers that mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from agentbench_spec.engine.windows import SLIDING, Windows
from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_RECURRENT = {"linear_attention", "conv", "mamba", "mamba2", "recurrent", "hybrid", "hybrid_sliding"}
"""Layer types that carry a state from position to position."""
_SINK = re.compile(r"(\b|_)sinks?(\b|_)")


def refuse_unsupported(config: PretrainedConfig) -> None:
    """Raise ConfigError, with every reason, for an architecture the engine cannot serve exactly."""
    try:
        text = config.get_text_config(decoder=True)
    except ValueError:
        text = config
    reasons = [reason for check in _CHECKS if (reason := check(text))]
    if type(text) is not type(config) and getattr(_causal_class(config), "config_class", None) is not type(text):
        reasons.append("its language model is part of a larger one; save that part by itself to make it a target")
    if reasons := reasons or _module_reasons(text):
        raise ConfigError(
            f"model type {text.model_type!r} is not supported: {'; '.join(reasons)}. "
            "Supported: decoder-only models with causal attention over the whole text or a fixed window, such as "
            "Llama, Qwen2, Qwen3, Mistral and Gemma 3"
        )


def _causal_class(config: PretrainedConfig) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return found[0] if isinstance(found, tuple) else found


def _not_causal(config: PretrainedConfig) -> str | None:
    if config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if getattr(config, "use_bidirectional_attention", None):
        return "its attention is bidirectional"
    if _causal_class(config) is None:
        return "transformers has no causal language model of this type"
    return None


def _recurrent(config: PretrainedConfig) -> str | None:
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    named = sorted(kinds & _RECURRENT)
    if not named and not getattr(_causal_class(config), "_is_stateful", False):
        return None
    of_kind = f" ({', '.join(named)})" if named else ""
    return (
        f"it has recurrent layers{of_kind}, whose state cannot be rolled back when a draft is rejected; such a target "
        "runs through --backend sglang only"
    )


def _layer_types(config: PretrainedConfig) -> str | None:
    types = set(getattr(config, "layer_types", None) or [])
    if SLIDING in types and Windows.of(config) is None:
        return f"layer_types has {SLIDING}, and sliding_window is {getattr(config, 'sliding_window', None)}"
    other = sorted(types - {"full_attention", SLIDING} - _RECURRENT)
    return f"layer_types has {', '.join(other)}" if other else None


def _uneven_layers(config: PretrainedConfig) -> str | None:
    for name in ("head_dim", "num_key_value_heads", "num_attention_heads"):
        try:
            getattr(config, name, None)
        except Exception as error:  # transformers' own, where a field has no one value
            return f"its layers differ in {name}: {str(error).splitlines()[0]}"
    return None


def _softcap(config: PretrainedConfig) -> str | None:
    cap = getattr(config, "attn_logit_softcapping", None)
    return f"it caps attention logits (config.attn_logit_softcapping = {cap})" if cap else None


def _backend(config: PretrainedConfig) -> str | None:
    found = _causal_class(config)
    if found is not None and not getattr(found, "_supports_attention_backend", False):
        return f"{found.__name__} does not support transformers' attention backends"
    return None


_CHECKS: tuple[Callable[[Any], str | None], ...] = (
    _not_causal,
    _recurrent,
    _layer_types,
    _uneven_layers,
    _softcap,
    _backend,
)


def _module_reasons(config: PretrainedConfig) -> list[str]:
    """Reasons only the module tree shows. Built on the meta device, without memory for weights."""
    try:
        with torch.device("meta"):
            model = _causal_class(config)(config)
    except Exception as error:
        return [f"its modules cannot be built from this config: {type(error).__name__}: {error}"]
    reasons = []
    if any(getattr(module, "is_causal", True) is False for module in model.modules()):
        reasons.append("its attention is bidirectional")
    if sinks := [name for name, _ in model.named_parameters() if _SINK.search(name)]:
        reasons.append(f"it has attention sinks ({sinks[0]})")
    return reasons
