"""The row state machine that DFlash and DSpark share: context in `observe`, one block in `propose`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError, DrafterSpec, Proposal, Span, TargetInfo

from .block import OWN_TABLES, BlockConfig, BlockNet
from .checkpoint import Checkpoint, alias_frozen_copies, check_fits, load_strictly, tensor_names
from .context import BEHIND, ContextCache, told_width
from .context_drafter import ContextDrafter
from .eagle3 import vocabulary_map
from .qwen3 import Rotary
from .yarn import stretched, target_yarn

Verification = Literal["rejection", "match"]

# left behind by other tools in otherwise sound files; none enters the computation
_TOLERATED = ("rotary_emb.inv_freq", "mask_embedding", "mask_embedding.weight", "verifier_lm_head.", "verifier_norm.")


class BlockDrafter(ContextDrafter):
    """A DFlash or DSpark checkpoint on engine rows.

    verification: at temperature > 0, "rejection" draws draft tokens from the draft's distribution and hands it
    over, "match" proposes the most likely tokens as point masses; both are exact.
    """

    net: BlockNet
    behind = BEHIND
    """Positions that sliding layers keep beyond their window: so far back, a cut asks for nothing again."""
    static = True

    def __init__(self, name: str, checkpoint: Checkpoint, config: BlockConfig, verification: Verification) -> None:
        if verification not in ("rejection", "match"):
            raise ConfigError(f"{name}: verification is {verification!r}; choose 'rejection' or 'match'")
        self.checkpoint, self.config, self._verification = checkpoint, config, verification
        self.spec = DrafterSpec(
            name=name,
            hidden_layers=config.target_layer_ids,
            hidden_scope="all",
            max_tokens=config.max_tokens,
            max_positions=config.geometry.max_positions,
            version=checkpoint.revision or "0",
        )
        self.notes = config.notes

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Check the geometry, load the weights, allocate the context of `rows` rows. Raises ConfigError."""
        config, where = self.config, self.checkpoint.where
        check_fits(
            where,
            config.geometry,
            target,
            layer_ids=config.target_layer_ids,
            lowest_layer=0 if config.layout == "z-lab" else -1,
            last_layer=config.layout == "speculators",
            num_target_layers=config.num_target_layers,
            mask_token_id=config.mask_token_id,
        )
        device, dtype, yarn = target.device, target.dtype, target_yarn(target.config)
        self.spec = stretched(self.spec, yarn)
        self._own = self._stored_tables()
        net = load_strictly(
            self.build, self.checkpoint, device=device, dtype=dtype, rename=self.rename, tolerated=_TOLERATED
        )
        if "embed_tokens.weight" not in self._own:
            net.embed_tokens = target.embed_tokens
        if "lm_head.weight" not in self._own:
            net.lm_head = target.lm_head
        if self._own:
            alias_frozen_copies(net, target)
        self._target_ids, note = vocabulary_map(net.d2t, net.t2d, target.vocab_size, where)
        self.notes = (*config.notes, *([note] if note else []))
        if device.type == "cuda":  # fewer kernel launches; thin products on a CPU gain nothing from being joined
            net.prepare()
        self.net = net
        self._rotary = Rotary(config.geometry, device=device, dtype=dtype, yarn=yarn)
        self._context = ContextCache(
            config.geometry,
            rows=rows,
            capacity=capacity,
            block=config.block_size,
            device=device,
            dtype=dtype,
            sights=config.sights,
            behind=self.behind,
            attention=target.attention,
        )

    def build(self) -> BlockNet:
        """The net, still empty, under the names `rename` gives the file's tensors."""
        return BlockNet(self.config, own=self._own)

    def _stored_tables(self) -> frozenset[str]:
        """Which of the optional tables the file has to hold. Raises ConfigError if a reduced vocabulary lacks one."""
        config, stored = self.config, {self.rename(name) for name in tensor_names(self.checkpoint.fetch())}
        own = frozenset(OWN_TABLES) & stored
        if config.layout == "z-lab":
            return frozenset()
        if config.layout == "deepspec":
            return frozenset(OWN_TABLES[:2]) if own & set(OWN_TABLES[:2]) else frozenset()
        if config.draft_vocab_size < config.geometry.vocab_size:
            return own | {"lm_head.weight", "d2t"}
        return own

    def rename(self, name: str) -> str | None:
        """The net's name for a tensor of the file; None to skip it."""
        return name

    @torch.inference_mode()
    def observe(self, span: Span) -> None:
        """Project the committed target states to keys and values of every draft layer and append them."""
        if span.hidden is None:
            raise ConfigError(f"{self.spec.name}: the engine delivered no hidden states")
        self._context.advance(span)
        device = span.hidden.device
        hidden = span.hidden[:, : told_width(span, static=self._context.attention is not None)]
        rows, start, count = (part.to(device) for part in (span.rows, span.start, span.count))
        positions = start[:, None] + torch.arange(hidden.shape[1], device=device)
        keys, values = self.net.context_keys_values(self.net.fuse(hidden), self._rotary(positions))
        self._context.append(rows, start, count, keys, values)

    @torch.inference_mode()
    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Run one full block per row and keep the first k guesses; raises ConfigError if k is beyond the block."""
        if k > self.config.max_tokens:
            raise ConfigError(too_many(self.spec.name, k, self.config.max_tokens))
        if k == 0:
            return Proposal(ids=anchor.new_empty((len(anchor), 0)))
        self._context.lengths.check(position, self.spec.name)
        window = self._context.window(position.to(self._rotary.device))
        states = self.net.block(anchor, self._rotary(window.positions), window)
        return self.draft(anchor, self.net.read(states, k))

    def draft(self, anchor: Tensor, hidden: Tensor) -> Proposal:
        """Turn the states [B, k, H] that predict the next k positions into tokens; positions are independent."""
        logits = self.net.lm_head(hidden)
        drawn = [self.choose(logits[:, index]) for index in range(logits.shape[1])]
        return Proposal(torch.stack([ids for ids, _ in drawn], 1), stack_probs([probs for _, probs in drawn]))

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Draft logits [B, V_d] -> target ids [B] and the distribution over the target's vocabulary, if drawn."""
        ids = self._target_ids
        if self.takes_argmax:
            best = logits.argmax(-1)
            return (best if ids is None else ids[best]), None
        if ids is not None:
            full = logits.new_full((len(logits), self.config.geometry.vocab_size), -torch.inf)
            logits = full.index_copy_(1, ids, logits)
        return self.sampler.draw(logits)

    @property
    def takes_argmax(self) -> bool:
        """True if draft tokens are the most likely ones rather than drawn."""
        sampler = getattr(self, "sampler", None)
        return self._verification == "match" or sampler is None or sampler.greedy


def stack_probs(probs: list[Tensor | None]) -> Tensor | None:
    """Distributions of successive draws [B, V] -> [B, k, V]; None if the draws were greedy."""
    known = [each for each in probs if each is not None]
    return torch.stack(known, 1) if len(known) == len(probs) else None


def too_many(name: str, k: int, most: int) -> str:
    """Why a block drafter refuses k."""
    return (
        f"{name}: asked for {k} tokens, the draft was trained with blocks of {most}. A longer block changes what every "
        f"row attends to and acceptance collapses without a sign; ask for at most {most}"
    )
