"""P-EAGLE (2026): an EAGLE-3 head that guesses k tokens in one pass, the later ones from mask rows.

`observe` runs the committed pairs (feature of position p, token at p + 1) through all layers and keeps their keys and
values; `propose` runs the pair of the anchor and k - 1 mask rows behind them, of which nothing stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError, ContractError, DrafterSpec, Proposal, Span, TargetInfo

from .nets import eagle3
from .nets.block_drafter import stack_probs
from .nets.chain import DEFAULT_WINDOW, FeatureRing, pick
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.context import Committed, ContextCache, Sight, told_width
from .nets.context_drafter import ContextDrafter
from .nets.eagle3_layouts import Eagle3Config, read_config
from .nets.peagle import PEagleNet
from .nets.registry import require_checkpoint

_MAX_TOKENS = 16
"""Most tokens a round where the checkpoint does not say for how many it was trained."""


class PEagleDrafter(ContextDrafter):
    """P-EAGLE on rows; see `make` for the options."""

    net: PEagleNet
    static = True

    def __init__(self, checkpoint: Checkpoint, config: Eagle3Config, spec: DrafterSpec, *, window: int) -> None:
        self.spec, self.notes = spec, config.notes
        self._checkpoint, self._config, self._window = checkpoint, config, window

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Load the head for `target` and allocate its rows. Raises ConfigError if they do not belong together."""
        self.net = net = eagle3.load(self._checkpoint, self._config, target, PEagleNet)
        self.notes = net.notes
        self._mask_id = self._config.mask_token_id
        self._context = ContextCache(
            net.geometry,
            rows=rows,
            capacity=capacity,
            block=self.spec.max_tokens or _MAX_TOKENS,
            device=target.device,
            dtype=target.dtype,
            sights=(Sight(causal=True),) * net.geometry.num_layers,
            attention=target.attention,
        )
        window = min(self._window, capacity)
        self._ring = FeatureRing(
            self.spec.name, rows=rows, window=window, width=net.feature_size, like=self._context.keys
        )

    @torch.inference_mode()
    def observe(self, span: Span) -> None:
        """Run the pairs that the span completes through the head, and keep its newest features."""
        if span.hidden is None:
            raise ContractError("peagle needs Span.hidden of every position (scope 'all'); the span has none")
        n = max(told_width(span, static=self._context.attention is not None), 1)
        rows, start, count = (part.to(self._context.keys.device) for part in (span.rows, span.start, span.count))
        offset = self._context.index[:n]
        counted = offset < count[:, None]
        features = self.net.fuse(span.hidden[:, :n])
        before, kept = self._ring.before(rows, start)
        paired = torch.cat((before[:, None], features[:, :-1]), 1).masked_fill(~counted[..., None], 0)
        pairs = (start[:, None] + offset - 1).clamp_min(0)
        self._context.advance(span)
        whole, in_round = counted & (kept[:, None] | (offset > 0)), self._context.is_round(span)
        memory = Committed(self._context, rows, pairs, whole, in_round=in_round)
        self.net.run(span.input_ids[:, :n].masked_fill(~counted, 0), paired, self.net.rope(pairs), memory)
        self._ring.keep(rows, start, count, features)

    @torch.inference_mode()
    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Guess k tokens in one pass; raises ConfigError if k is above max_tokens."""
        most = self.spec.max_tokens or _MAX_TOKENS
        if k > most:
            raise ConfigError(f"{self.spec.name}: asked for {k} tokens; the option max_tokens allows {most}")
        if k == 0:
            return Proposal(ids=anchor.new_empty((len(anchor), 0)))
        self._context.lengths.check(position, self.spec.name)
        position = position.to(self._context.keys.device)
        feature, kept = self._ring.before(self._context.index[: len(position)], position)
        window = self._context.window(torch.where(kept, position - 1, -1), k)  # without its feature a pair must stay
        features = self.net.mask_feature.expand(len(anchor), k, -1).clone()
        features[:, 0] = feature
        ids = torch.full_like(anchor, self._mask_id or 0)[:, None].repeat(1, k)
        ids[:, 0] = anchor.clamp_min(0)
        logits = self.net.logits(self.net.run(ids, features, self.net.rope(window.positions), window))
        drawn = [pick(row, self.net.target_ids, self.net.geometry.vocab_size, self.sampler) for row in logits.unbind(1)]
        maybe_lost = self._ring.lost or self._context.attention is not None  # a captured step must always look
        count = torch.where(kept, k, 0) if maybe_lost else None
        return Proposal(torch.stack([ids for ids, _ in drawn], 1), stack_probs([probs for _, probs in drawn]), count)

    @torch.inference_mode()
    def truncate(self, row: int, length: int) -> None:
        if length < int(self._context.lengths.on_device[row]):
            super().truncate(row, length)
            self._ring.cut(row, length)

    def snapshot(self, row: int) -> Mapping[str, Tensor]:
        """Whole pairs: keys, values [L, Nkv, length - 1, d]; and the last feature [H]."""
        keys, values = self._context.of_row(row)
        length = keys.shape[2]
        state = {"keys": keys[:, :, : max(length - 1, 0)], "values": values[:, :, : max(length - 1, 0)]}
        return {**state, "feature": self._ring.newest(row, length)} if length else state


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    max_tokens: int | None = None,
    max_positions: int | None = None,
    target_layers: int | None = None,
    window: int = DEFAULT_WINDOW,
) -> PEagleDrafter:
    """A P-EAGLE drafter (speculators layout) from a local folder or hub id.

    max_tokens: most tokens a round; default: as many as it was trained for, where the config says so, else 16; more is
    allowed and weakens slowly. max_positions, target_layers, window: as for eagle3.
    Raises ConfigError if the checkpoint is no P-EAGLE head or an option does not fit it.
    """
    found = open_checkpoint(require_checkpoint("peagle", checkpoint), revision=revision)
    config = read_config(found, target_layers=target_layers, kind="peagle")
    most = max_tokens if max_tokens is not None else config.max_tokens or _MAX_TOKENS
    if most < 1:
        raise ConfigError(f"peagle: max_tokens is {most}; it must be at least 1")
    spec = DrafterSpec(
        name="peagle",
        hidden_layers=config.target_layers,
        hidden_scope="all",
        max_tokens=most,
        max_positions=config.max_positions if max_positions is None else max_positions,
        version=found.revision or "0",
    )
    return PEagleDrafter(found, config, spec, window=window)
