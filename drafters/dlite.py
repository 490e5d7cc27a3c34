"""DLite: drafts from S target states of the newest position and the last G tokens; nothing grows with the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError, Drafter, DrafterSpec, Proposal, Span, TargetInfo

from .nets.block_drafter import stack_probs, too_many
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.dlite import BlockForward, DLiteConfig, DLiteNet, check_geometry, open_net
from .nets.pivots import Pivots
from .nets.registry import require_checkpoint

Verification = Literal["match", "rejection"]


class DLiteDrafter(Drafter):
    """A DLite checkpoint on engine rows.

    verification: at temperature > 0, "match" proposes the most likely tokens as point masses (the published default),
    "rejection" draws them and hands their distribution over; both are exact.
    """

    net: DLiteNet
    static = True

    def __init__(self, checkpoint: Checkpoint, config: DLiteConfig, verification: Verification) -> None:
        if verification not in ("match", "rejection"):
            raise ConfigError(f"dlite: verification is {verification!r}; choose 'match' or 'rejection'")
        self.checkpoint, self.config, self._verification = checkpoint, config, verification
        self.spec = DrafterSpec(
            name="dlite",
            hidden_layers=config.target_layer_ids,
            hidden_scope="last",
            max_tokens=config.max_tokens,
            history_free=True,
            version=checkpoint.revision or "0",
        )

    def check_geometry(self, target: TargetInfo) -> None:
        """Raise ConfigError unless the checkpoint was made for a target of this shape."""
        check_geometry(self.checkpoint, self.config, target)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Check the geometry, load the weights, allocate one set of slots a row. Raises ConfigError."""
        config, device, dtype = self.config, target.device, target.dtype
        self.net = open_net(self.checkpoint, config, target)
        self._block = BlockForward(self.net, device=device, dtype=dtype)
        slots = len(config.target_layer_ids)
        self._static = target.attention is not None
        self._pivots = Pivots(rows, slots, target.hidden_size, dtype=dtype, device=device, static=self._static)
        # The text itself (G > 1 only): a rollback must find the G - 1 tokens before the anchor again. The last column
        # takes what padding would write.
        width = capacity + 1 if config.group > 1 else 1
        self._text = torch.zeros(rows, width, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def observe(self, span: Span) -> None:
        """Keep the states of the newest committed position and note the tokens fed."""
        if span.hidden is None:
            raise ConfigError("dlite: the engine delivered no hidden states")
        device = span.hidden.device
        rows, start, count = (part.to(device) for part in (span.rows, span.start, span.count))
        self._pivots.take(rows, start, count, span.hidden[:, -1])
        if self.config.group > 1:
            offset = torch.arange(span.input_ids.shape[1], device=device)
            at = torch.where(offset < count[:, None], start[:, None] + offset, self._text.shape[1] - 1)
            self._text[rows[:, None], at] = span.input_ids

    @torch.inference_mode()
    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Run one full block per row, then k steps of the serial head; raises ConfigError if k is beyond the block."""
        if k > self.config.max_tokens:
            raise ConfigError(too_many("dlite", k, self.config.max_tokens))
        self._pivots.ask(position, "dlite")
        if k == 0:
            return Proposal(ids=anchor.new_empty((len(anchor), 0)))
        at = position.to(self._text.device).clamp(min=0)
        real = self._group(anchor, at)
        return self._walk(self._states(real, at)[:, :k], real)

    def _group(self, anchor: Tensor, at: Tensor) -> Tensor:
        """The last G tokens of each row [B, G], anchor last; token 0 stands where the text does not reach."""
        back = torch.arange(1 - self.config.group, 0, device=at.device)
        before = (at[:, None] + back).clamp(min=0)
        return torch.cat((self._text.gather(1, before), anchor[:, None]), 1)

    def _states(self, real: Tensor, at: Tensor) -> Tensor:
        """Final states [B, K, H] of the masks, for groups real [B, G] whose anchors sit at `at` [B]."""
        query = self.net.queries(real, self.config.max_tokens)
        known = self.config.group <= 2 or self._reaches(at)
        return self._block(self._pivots.newest, query, None if known else at)

    def _reaches(self, at: Tensor) -> bool:
        """True if every row is known to hold G tokens (with G <= 2 always: an anchor has a token before it)."""
        return not self._static and at.device.type == "cpu" and bool((at + 1 >= self.config.group).all())

    def _walk(self, states: Tensor, real: Tensor) -> Proposal:
        """Choose tokens left to right from states [B, k, H]."""
        tokens, drawn_from = self.net.sequential_head.walk(states, real, self._choose)
        return Proposal(tokens, stack_probs(drawn_from))

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        sampler = getattr(self, "sampler", None)
        if self._verification == "match" or sampler is None or sampler.greedy:
            return logits.argmax(-1), None
        return sampler.draw(logits)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def truncate(self, row: int, length: int) -> None:
        """Forget positions >= length; a cut to where the row's turn started brings back the states it had there."""
        self._pivots.truncate(row, length)

    def networks(self) -> Sequence[nn.Module]:
        """The net, for the engine's CPU linears."""
        return (self.net,)

    def snapshot(self, row: int) -> Mapping[str, Tensor]:
        """The newest position's states [S, H] and the G - 1 tokens up to it; empty after a cut or before any text."""
        end = int(self._pivots.end[row])
        if end <= 0:
            return {}
        return {"pivot": self._pivots.newest[row], "tokens": self._text[row, max(end + 1 - self.config.group, 0) : end]}


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    verification: Verification = "match",
    rope_theta: float | None = None,
) -> DLiteDrafter:
    """A DLite drafter (v1 or v2, any group size) from a local folder or hub id.

    verification: "match" (published default) or "rejection" at temperature > 0. rope_theta: rope base in place of the
    config's. Raises ConfigError if the checkpoint is not a DLite student.
    """
    found = open_checkpoint(require_checkpoint("dlite", checkpoint), revision=revision)
    return DLiteDrafter(found, DLiteConfig.from_config(found.config, found.where, rope_theta=rope_theta), verification)
