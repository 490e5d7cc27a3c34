"""Five published namings of one-layer MTP (NEXTN) modules, mapped to the names of `MtpNet` (spec section 9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentbench_spec.drafting import ConfigError

from .checkpoint import Checkpoint
from .eagle3_layouts import known_depth
from .qwen3 import Geometry, whole

Rename = Callable[[str], str | None]

_MODULE: Mapping[str, str] = {
    "enorm": "enorm",
    "pre_fc_norm_embedding": "enorm",
    "token_layernorm": "enorm",
    "hnorm": "hnorm",
    "pre_fc_norm_hidden": "hnorm",
    "hidden_layernorm": "hnorm",
    "eh_proj": "eh_proj",
    "fc": "eh_proj",
    "input_proj": "eh_proj",
    "final_layernorm": "final_layernorm",
    "shared_head.norm": "final_layernorm",
}
_LAYER_PARTS = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """What config.json says about an MTP module."""

    geometry: Geometry
    where: str
    num_target_layers: int
    max_tokens: int | None
    """Trained chain length (`ttt_length`); None: any."""


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """How a file names the module, and where its family departs from the Qwen3-next form."""

    name: str
    prefix: str
    """What every tensor of the module starts with; other tensors of the file belong to the target."""
    hidden_first: bool = False
    """MiMo: the fusion takes [hidden, embedding]."""
    carry_raw: bool = False
    """DeepSeek-V3: the state before the final norm is carried to the next step."""

    def rename(self, name: str) -> str | None:
        """The net's name for a tensor; None for a tensor of the bundled target."""
        if not name.startswith(self.prefix):
            return None
        inner = name.removeprefix(self.prefix)
        for old in ("midlayer.", "layers.0."):
            inner = inner.removeprefix(old)
        if inner.split(".")[0] in _LAYER_PARTS:
            return f"layer.{inner}"
        module, _, leaf = inner.rpartition(".")
        if self.name == "serving" and module == "norm":
            return f"final_layernorm.{leaf}"
        if module in ("embed_tokens", "lm_head", "shared_head.head"):
            return None
        return f"{_MODULE[module]}.{leaf}" if module in _MODULE else inner


def read_config(checkpoint: Checkpoint, *, target_layers: int | None, rope_theta: float | None) -> MtpConfig:
    """Read config.json; target_layers: decoder layers of the target, where the config does not say.

    Raises ConfigError if it has more than one MTP layer, or leaves the depth of the target open.
    """
    config, where = checkpoint.config, checkpoint.where
    layers = config.get("num_nextn_predict_layers", 1)
    if layers != 1:
        raise ConfigError(f"{where}: num_nextn_predict_layers is {layers}; modules of one layer are supported")
    if config.get("mlp_type", "dense") != "dense" or config.get("num_experts") or config.get("n_routed_experts"):
        raise ConfigError(f"{where}: this MTP module has experts; dense modules are supported")
    single = {**config, "num_hidden_layers": 1, "layer_types": None}
    return MtpConfig(
        geometry=Geometry.from_config(single, where, rope_theta=rope_theta),
        where=where,
        num_target_layers=_depth(config, where, target_layers),
        max_tokens=None if config.get("ttt_length") is None else whole(config, "ttt_length", where),
    )


def _depth(config: Mapping[str, Any], where: str, given: int | None) -> int:
    bundled = int(config.get("num_hidden_layers") or 0)
    depth = given or config.get("num_target_layers") or (bundled if bundled > 1 else known_depth(config))
    if not depth:
        raise ConfigError(f"{where}: does not say how many layers the target has; pass target_layers=<number>")
    return int(depth)


def find_layout(names: Iterable[str], config: MtpConfig, kind: str | None) -> MtpLayout:
    """The layout whose names are in the file; kind: the config's model_type.

    Raises ConfigError if the file holds no MTP module under a name known here.
    """
    names = list(names)
    if any(name.startswith("mtp.") for name in names):
        return MtpLayout("serving", "mtp.")
    stem = next((found[0] for name in names if (found := re.match(r"(model\.)?mtp_layers\.0\.", name))), None)
    if stem is not None:
        mimo = stem.startswith("model.") or kind == "mimo"
        return MtpLayout("mimo" if mimo else "speculators", stem, hidden_first=mimo)
    appended = f"model.layers.{config.num_target_layers}."
    if any(name.startswith(appended) for name in names):
        raw = any(name.startswith(f"{appended}shared_head.norm") for name in names)
        return MtpLayout("appended", appended, carry_raw=raw)
    if "eh_proj.weight" in names:
        return MtpLayout("training", "")
    raise ConfigError(
        f"{config.where}: the weights hold no MTP module (mtp.*, mtp_layers.0.*, {appended}*, or eh_proj)"
    )
