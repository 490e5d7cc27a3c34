"""A one-layer MTP (NEXTN) module: the target's normed state and the next token's embedding, fused at every step.

Source: spec eagle3-domino-mtp, section 9. Experimental: no recorded vectors exist. Axes as in chain.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import TargetInfo

from .chain import Attend
from .checkpoint import Checkpoint, check_fits, load_strictly
from .eagle3_layouts import read_names
from .mtp_layouts import MtpConfig, MtpLayout, find_layout
from .qwen3 import Layer, RMSNorm, Rope, Rotary
from .yarn import target_yarn


class MtpNet(nn.Module):
    """Parameters of the module; embedding and head are the target's."""

    target_ids: Tensor | None = None

    def __init__(self, config: MtpConfig, layout: MtpLayout) -> None:
        super().__init__()
        geometry = config.geometry
        width, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.geometry, self.layout, self.feature_size = geometry, layout, width
        self.enorm, self.hnorm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.layer = Layer(geometry)
        self.final_layernorm = RMSNorm(width, eps)

    def prepare(self, target: TargetInfo) -> None:
        """After loading: borrow the target's tables."""
        self.layer.mlp.join()
        self.embed_tokens, self.lm_head = target.embed_tokens, target.lm_head
        yarn = target_yarn(target.config)
        self._rotary = Rotary(self.geometry, device=target.device, dtype=target.dtype, yarn=yarn)

    def rope(self, positions: Tensor) -> Rope:
        """positions [B, n] int64 -> rotations [B, 1, n, d]."""
        return self._rotary(positions)

    def fuse(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, 1, H], the target's states after its final norm -> [B, n, H]; fusion waits for the token."""
        return hidden[:, :, 0]

    def join(self, hidden: Tensor, token_ids: Tensor, positions: Tensor) -> Tensor:
        """hidden [..., H] and the tokens after it [...] at positions [...] -> the layer's input [..., H]."""
        embedded = self.embed_tokens(token_ids).masked_fill((positions == 0)[..., None], 0)
        parts = [self.enorm(embedded), self.hnorm(hidden)]
        if self.layout.hidden_first:
            parts.reverse()
        return self.eh_proj(torch.cat(parts, -1))  # type: ignore[no-any-return]

    def pair(self, features: Tensor, token_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, n, H], the tokens after them [B, n], positions [B, n] -> keys, values [B, n, Nkv, d]."""
        joined = self.layer.input_layernorm(self.join(features, token_ids, positions))
        keys, values = self.layer.self_attn.keys_values(joined, self.rope(positions))
        return keys.transpose(1, 2), values.transpose(1, 2)

    def step(
        self, token_ids: Tensor, hidden: Tensor, position: Tensor, rope: Rope, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """One row per sequence: token_ids [B], hidden [B, H] (the target's state, or the last step's output).

        Returns what the next step takes as hidden [B, H], and logits [B, V].
        """
        joined = self.join(hidden, token_ids, position)[:, None]
        normed, attention = self.layer.input_layernorm(joined), self.layer.self_attn
        mixed = attend(attention.queries(normed, rope), *attention.keys_values(normed, rope))
        raw = self.layer.finish(joined, mixed)[:, 0]
        out = self.final_layernorm(raw)
        return (raw if self.layout.carry_raw else out), self.lm_head(out)


def load(checkpoint: Checkpoint, config: MtpConfig, target: TargetInfo) -> MtpNet:
    """Load an MTP module and fit it to `target`.

    Raises ConfigError if module and target do not belong together, or a tensor is missing, unknown or misshapen.
    """
    layout = find_layout(read_names(checkpoint.fetch()), config, checkpoint.config.get("model_type"))
    check_fits(
        checkpoint.where,
        config.geometry,
        target,
        layer_ids=(config.num_target_layers - 1,),
        last_layer=True,
        num_target_layers=config.num_target_layers,
    )
    net = load_strictly(
        lambda: MtpNet(config, layout),
        checkpoint,
        device=target.device,
        dtype=target.dtype,
        rename=layout.rename,
    )
    net.prepare(target)
    return net
