"""A small dense causal language model as a drafter's net: Qwen3- and Llama-shaped, no biases, no scaled rope.

Source: spec newer-drafters, section 3. Its text is its own context: committed tokens run through it in `observe`.
Axes: B rows, n positions, R engine rows, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError, DrafterSpec, Proposal, Span, TargetInfo

from .block_drafter import stack_probs
from .checkpoint import Checkpoint, load_strictly
from .context import Committed, ContextCache, Sight, told_width
from .context_drafter import ContextDrafter
from .cross import CrossNet
from .qwen3 import Attention, Geometry, Rotary

_SHAPES = {"qwen3": True, "llama": False}
"""model_type -> whether queries and keys are normed per head."""


@dataclass(frozen=True, slots=True)
class LmConfig:
    """What the config.json of a small language model says."""

    geometry: Geometry
    qk_norm: bool
    tied: bool
    """The head is the embedding table."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> LmConfig:
        """Read a parsed config.json. Raises ConfigError for a model of another shape, or a missing field."""
        kind = config.get("model_type")
        if kind not in _SHAPES:
            raise ConfigError(f"{where}: model_type is {kind!r}; draft models are implemented for {', '.join(_SHAPES)}")
        return cls(Geometry.from_config(config, where), _SHAPES[kind], bool(config.get("tie_word_embeddings", False)))


class LmNet(CrossNet):
    """The model: embedding, decoder layers, norm and head."""

    def __init__(self, config: LmConfig) -> None:
        geometry = config.geometry
        super().__init__(geometry)
        for layer in self.each_layer():
            layer.self_attn = Attention(geometry, qk_norm=config.qk_norm)
        self.embed_tokens = nn.Embedding(geometry.vocab_size, geometry.hidden_size)
        self.lm_head: nn.Module | None = None
        if not config.tied:
            self.lm_head = nn.Linear(geometry.hidden_size, geometry.vocab_size, bias=False)

    def logits(self, states: Tensor) -> Tensor:
        """States before the final norm [..., H] -> logits [..., V]."""
        normed = self.norm(states)
        return normed @ self.embed_tokens.weight.T if self.lm_head is None else self.lm_head(normed)  # type: ignore[no-any-return]


class LmDrafter(ContextDrafter):
    """A small language model on engine rows; subclasses say how it guesses."""

    net: LmNet
    static = True

    def __init__(self, name: str, checkpoint: Checkpoint, *, max_tokens: int, same_tokenizer: bool) -> None:
        if max_tokens < 1:
            raise ConfigError(f"{name}: max_tokens is {max_tokens}; it must be at least 1")
        self.checkpoint, self.config = checkpoint, LmConfig.from_config(checkpoint.config, checkpoint.where)
        self._same_tokenizer = same_tokenizer
        self.spec = DrafterSpec(
            name=name,
            max_tokens=max_tokens,
            max_positions=self.config.geometry.max_positions,
            version=checkpoint.revision or "0",
        )

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Load the model and allocate its keys and values. Raises ConfigError if its vocabulary is another."""
        geometry, where = self.config.geometry, self.checkpoint.where
        if geometry.vocab_size != target.vocab_size and not self._same_tokenizer:
            raise ConfigError(
                f"{where}: vocab_size is {geometry.vocab_size}, target {target.name!r} has {target.vocab_size}; if "
                "both share one tokenizer and only pad their tables differently, say so with same_tokenizer=true"
            )
        device, dtype, most = target.device, target.dtype, self.spec.max_tokens or 0
        self.net = load_strictly(
            lambda: LmNet(self.config),
            self.checkpoint,
            device=device,
            dtype=dtype,
            rename=lambda name: None if self.config.tied and name == "lm_head.weight" else name.removeprefix("model."),
            tolerated=("rotary_emb.inv_freq",),
        )
        self._vocab_size = target.vocab_size
        self._rotary = Rotary(geometry, device=device, dtype=dtype)
        self._context = ContextCache(
            geometry,
            rows=rows,
            capacity=capacity,
            block=most,
            device=device,
            dtype=dtype,
            sights=(Sight(causal=True),) * geometry.num_layers,
            attention=target.attention,
        )

    @torch.inference_mode()
    def observe(self, span: Span) -> None:
        """Run the committed tokens through the model and keep their keys and values."""
        n = told_width(span, static=self._context.attention is not None)
        self._context.advance(span)
        if n:
            device = self._rotary.device
            rows, start, count = (part.to(device) for part in (span.rows, span.start, span.count))
            offset = torch.arange(n, device=device)
            counted, positions = offset < count[:, None], start[:, None] + offset
            ids = span.input_ids[:, :n].to(device).masked_fill(~counted, 0)
            memory = Committed(self._context, rows, positions, counted, in_round=self._context.is_round(span))
            self.net.run(self.net.embed_tokens(ids), self._rotary(positions), memory)

    def logits_of(self, ids: Tensor, position: Tensor) -> Tensor:
        """Next-token logits [R, b, V_target] of ids [R, b] fed at `position` [R] (-1: idle) and after; nothing is kept.

        Ids that only one of the two vocabularies has get no probability.
        """
        window = self._context.window(position, ids.shape[1])
        known = ids.clamp_max(self.config.geometry.vocab_size - 1)
        states = self.net.run(self.net.embed_tokens(known), self._rotary(window.positions), window)
        logits = self.net.logits(states)[..., : self._vocab_size]
        return nn.functional.pad(logits, (0, self._vocab_size - logits.shape[-1]), value=-torch.inf)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Guess k tokens; raises ConfigError if k is above max_tokens."""
        if k > (self.spec.max_tokens or 0):
            raise ConfigError(
                f"{self.spec.name}: asked for {k} tokens; the option max_tokens allows {self.spec.max_tokens}"
            )
        if k == 0:
            return Proposal(ids=anchor.new_empty((len(anchor), 0)))
        self._context.lengths.check(position, self.spec.name)
        with torch.inference_mode():
            drawn = self.draft(anchor, position.to(self._rotary.device), k)
        return Proposal(torch.stack([ids for ids, _ in drawn], 1), stack_probs([probs for _, probs in drawn]))

    def draft(self, anchor: Tensor, position: Tensor, k: int) -> list[tuple[Tensor, Tensor | None]]:
        """k times tokens [R] and what they were drawn from [R, V]."""
        raise NotImplementedError

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits [R, V] -> tokens [R] and their distribution, None if greedy."""
        sampler = getattr(self, "sampler", None)
        return (logits.argmax(-1), None) if sampler is None or sampler.greedy else sampler.draw(logits)
