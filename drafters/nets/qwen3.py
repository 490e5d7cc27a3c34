"""Qwen3-style parts shared by the draft nets: geometry, norm, rotary positions, grouped attention, feed-forward.

Axes: B rows, n positions fed, T positions attended, H hidden, Nq / Nkv heads, d head_dim, I intermediate, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.drafting import ConfigError

from .yarn import Yarn

Rope = tuple[Tensor, Tensor]
"""Cosine and signed sine of some positions, each [B or 1, 1, n, d], as `Rotary` makes and `rotate` takes them."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a Qwen3-style decoder stack, as its config.json gives them."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int | None
    """Trained window in tokens; None where the config does not say."""

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], where: str, *, rope_theta: float | None = None, sliding: bool = False
    ) -> Geometry:
        """Read the sizes from a parsed config.json; `where` names the file in errors.

        rope_theta: the rope base to use instead of the config's. sliding: the caller reads the layers' windows.
        Raises ConfigError for a missing field or a feature these nets do not implement.
        """
        refuse_unsupported(config, where, sliding=sliding)
        grouped = config.get("num_key_value_heads") is not None
        return cls(
            hidden_size=whole(config, "hidden_size", where),
            intermediate_size=whole(config, "intermediate_size", where),
            num_layers=whole(config, "num_hidden_layers", where),
            num_heads=whole(config, "num_attention_heads", where),
            num_kv_heads=whole(config, "num_key_value_heads" if grouped else "num_attention_heads", where),
            head_dim=_head_dim(config, where),
            vocab_size=whole(config, "vocab_size", where),
            rms_norm_eps=number(required(config, "rms_norm_eps", where), "rms_norm_eps", where),
            rope_theta=read_rope_theta(config, where)
            if rope_theta is None
            else number(rope_theta, "rope_theta", where),
            max_positions=max_positions(config, where),
        )


def required(config: Mapping[str, Any], field: str, where: str) -> Any:
    """The value of `field`, or a ConfigError that names it and the file."""
    value = config.get(field)
    if value is None:
        raise ConfigError(f"{where}: no field {field!r}, which this architecture needs")
    return value


def whole(config: Mapping[str, Any], field: str, where: str, *, least: int = 1) -> int:
    """The whole number in `field`, or a ConfigError if there is none, or one below `least`."""
    value = required(config, field, where)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{where}: {field} is {value!r}; it must be a whole number from {least} up")
    return value


def layer_ids(config: Mapping[str, Any], field: str, where: str) -> tuple[int, ...]:
    """The list of layer numbers in `field`, or a ConfigError if it is not one."""
    value = required(config, field, where)
    if not isinstance(value, list | tuple) or not all(isinstance(each, int) for each in value):
        raise ConfigError(f"{where}: {field} is {value!r}; it must be a list of layer numbers")
    return tuple(value)


def number(value: Any, field: str, where: str) -> float:
    """`value` as a positive finite number, or a ConfigError that names the field."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not 0 < found < math.inf:
        raise ConfigError(f"{where}: {field} is {value!r}; it must be a number above 0")
    return found


def max_positions(config: Mapping[str, Any], where: str) -> int | None:
    """The trained window in tokens, None where the config has none."""
    field = "max_position_embeddings"
    return None if config.get(field) is None else whole(config, field, where)


def _head_dim(config: Mapping[str, Any], where: str) -> int:
    if config.get("head_dim") is not None:
        return whole(config, "head_dim", where)
    if config.get("model_type") == "qwen3":  # Qwen3 has heads x head_dim != hidden_size: guessing would be silent
        raise ConfigError(f"{where}: no field 'head_dim'; a Qwen3 config must give it")
    return whole(config, "hidden_size", where) // whole(config, "num_attention_heads", where)


def refuse_unsupported(config: Mapping[str, Any], where: str, *, biases: bool = False, sliding: bool = False) -> None:
    """Raise ConfigError for what these nets do not compute; biases, sliding: the caller sees to those itself."""
    if config.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{where}: hidden_act is {config['hidden_act']!r}; only 'silu' is implemented")
    for field in () if biases else ("attention_bias", "mlp_bias"):
        if config.get(field):
            raise ConfigError(f"{where}: {field} is true; drafts with biases in the backbone are not implemented")
    if sliding:
        return
    other = sorted(set(config.get("layer_types") or ()) - {"full_attention"})
    if other or config.get("use_sliding_window"):
        raise ConfigError(f"{where}: layer_types has {other or 'a sliding window'}; only full attention is implemented")


def read_rope_theta(config: Mapping[str, Any], where: str) -> float:
    """The rope base of a config in either style: `rope_parameters.rope_theta` or a top-level `rope_theta`.

    Raises ConfigError if there is none (a default would be silently wrong), if two are there and differ, or if
    the config asks for a scaled rope in either style.
    """
    bases = [config.get("rope_theta")]
    for field in ("rope_parameters", "rope_scaling"):
        nested = config.get(field) or {}
        if not isinstance(nested, Mapping):
            raise ConfigError(f"{where}: {field} is {nested!r}; it must be an object or null")
        kind = nested.get("rope_type", nested.get("type", "default"))
        if kind != "default" or nested.get("partial_rotary_factor", 1) != 1:
            raise ConfigError(f"{where}: rope type {kind!r} is not implemented for drafts, only 'default'")
        bases.append(nested.get("rope_theta"))
    found = {number(base, "rope_theta", where) for base in bases if base is not None}
    if len(found) != 1:
        problem = f"two different rope bases {sorted(found)}" if found else "no rope base"
        raise ConfigError(f"{where}: {problem}; give one in rope_parameters.rope_theta, or the option rope_theta=")
    return found.pop()


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis: float32 statistics, cast back, then the gain (as Qwen3 does)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., d] normed over the last axis, then times weight (broadcast): the functional form of RMSNorm."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return weight * F.rms_norm(wide, wide.shape[-1:], eps=eps).to(x.dtype)


class Rotary:
    """Half-split rotary positions with a fixed base; nothing is stored per position, so no window is imposed."""

    def __init__(
        self, geometry: Geometry, *, device: torch.device, dtype: torch.dtype, yarn: Yarn | None = None
    ) -> None:
        """yarn: the scaling of the target whose positions are shared; None: positions as trained."""
        even = torch.arange(0, geometry.head_dim, 2, dtype=torch.int64, device="cpu").float()
        plain = 1.0 / geometry.rope_theta ** (even / geometry.head_dim)
        scaled = plain if yarn is None else yarn.inverse_frequency(plain, geometry.rope_theta)
        self._inverse_frequency = scaled.to(device)
        self._magnitude = None if yarn is None else yarn.magnitude
        self._dtype = dtype
        self.device = device

    def __call__(self, positions: Tensor) -> Rope:
        """positions [B, n] int64 -> cosine and signed sine [B, 1, n, d] in the net's dtype."""
        angle = positions[:, None, :, None].float() * self._inverse_frequency
        cos, sin = angle.cos(), angle.sin()
        if self._magnitude is not None:
            cos, sin = cos * self._magnitude, sin * self._magnitude
        return torch.cat((cos, cos), -1).to(self._dtype), torch.cat((-sin, sin), -1).to(self._dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Turn x [B, heads, n, d] to its positions."""
    cos, signed_sin = rope
    return x * cos + x.roll(x.shape[-1] // 2, -1) * signed_sin


class Attention(nn.Module):
    """Projections and norms of one attention layer; the caller owns the keys and values.

    input_size: width of the input where it is not H (EAGLE-3 feeds 2H). qk_norm: per-head norms as in Qwen3.
    """

    def __init__(self, geometry: Geometry, *, input_size: int | None = None, qk_norm: bool = True) -> None:
        super().__init__()
        width, d = input_size or geometry.hidden_size, geometry.head_dim
        self.head_dim = d
        self.q_proj = nn.Linear(width, geometry.num_heads * d, bias=False)
        self.k_proj = nn.Linear(width, geometry.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(width, geometry.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(geometry.num_heads * d, geometry.hidden_size, bias=False)
        self.kv_proj: nn.Module | None = None
        self.q_norm: nn.Module = RMSNorm(d, geometry.rms_norm_eps) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = RMSNorm(d, geometry.rms_norm_eps) if qk_norm else nn.Identity()

    def join(self, kv_proj: nn.Linear | None = None) -> None:
        """Compute keys and values in one product from now on; kv_proj: both weights, keys first, if already there."""
        self.kv_proj = kv_proj or joined([self.k_proj, self.v_proj])
        del self.k_proj, self.v_proj

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        """x [B, n, input] -> normed, rotated queries [B, Nq, n, d]."""
        return rotate(self.q_norm(split_heads(self.q_proj(x), self.head_dim)), rope)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """x [B, n, input] -> normed, rotated keys and plain values, each [B, Nkv, n, d]."""
        keys, values = self.kv_proj(x).chunk(2, -1) if self.kv_proj is not None else (self.k_proj(x), self.v_proj(x))
        return rotate(self.k_norm(split_heads(keys, self.head_dim)), rope), split_heads(values, self.head_dim)

    def output(self, mixed: Tensor) -> Tensor:
        """mixed [B, Nq, n, d], as grouped_attention returns it -> [B, n, H]."""
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, n, heads * d] -> [B, heads, n, d], a view."""
    return x.view(*x.shape[:-1], x.shape[-1] // head_dim, head_dim).transpose(1, 2)


def grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention of query-head groups over shared keys, without expanding keys or values.

    queries [B, Nq, n, d]; keys, values [B, Nkv, T, d]; mask [B, 1, n or 1, T] bool: True may be seen; None: all seen.
    Returns [B, Nq, n, d]. The query heads of a group become further query rows, so each key is read once.
    """
    heads, n = queries.shape[1:3]
    groups = heads // keys.shape[1]
    if mask is not None and mask.shape[2] > 1:
        mask = mask.repeat(1, 1, groups, 1)
    folded = queries.reshape(queries.shape[0], keys.shape[1], groups * n, -1)
    mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return mixed.reshape(queries.shape[0], heads, n, -1)


class Mlp(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(geometry.hidden_size, geometry.intermediate_size, bias=False)
        self.up_proj = nn.Linear(geometry.hidden_size, geometry.intermediate_size, bias=False)
        self.down_proj = nn.Linear(geometry.intermediate_size, geometry.hidden_size, bias=False)
        self.gate_up: nn.Module | None = None

    def join(self) -> None:
        """Compute gate and up in one product from now on; call once, after the weights are in."""
        self.gate_up = joined([self.gate_proj, self.up_proj])
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]."""
        gate, up = self.gate_up(x).chunk(2, -1) if self.gate_up is not None else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(F.silu(gate) * up)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Parameters of one pre-norm Qwen3 decoder layer; the block drafters bring their own keys and values."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.self_attn = Attention(geometry)
        self.mlp = Mlp(geometry)
        self.input_layernorm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Residual, output projection and feed-forward: x [B, n, H], mixed [B, Nq, n, d] -> [B, n, H]."""
        x = x + self.self_attn.output(mixed)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


def joined(linears: Sequence[nn.Linear]) -> nn.Linear:
    """One linear that computes what these bias-free ones do, their outputs end to end."""
    return frozen_linear(torch.cat([linear.weight.detach() for linear in linears]))


def frozen_linear(weight: Tensor) -> nn.Linear:
    """A bias-free linear around an existing weight [out, in], which is not copied."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear
