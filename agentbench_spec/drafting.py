"""Public interface for drafter authors. One file; nothing else need be read to write a drafter.

**Text.** The text of a row is its list of committed token ids. Its last token is the *anchor*: the target chose it
but has not run it yet. After every call, positions `0 .. len(text) - 2` have been through the target.

**Rows and counts.** The engine decodes B rows at once. Tensors keep their shape; how many positions count is data
(`Span.count`, `Proposal.count`). A rejected position is not counted and is overwritten the next time, so rolling
back costs nothing.

**Life of a drafter.**

    open(target, rows=..., capacity=...)       once
    turn:
      truncate(row, length)                    only when history was rewritten
      observe(span) ...                        the new context, one span per prefill chunk; then the anchor exists
      repeat: propose(anchor, position, k)     leaves no trace
              observe(span)                    what the target made of it
      truncate(row, length)                    a measured continuation is thrown away

A drafter in ten lines:

    class Echo(SequenceDrafter):
        spec = DrafterSpec(name="echo")

        def propose_one(self, row, text, k):
            return text[-1:] * k                # token ids; may be shorter than k, or empty

    def make(**options):
        return Echo()

Axes: B rows, n positions, k drafted, S tapped layers, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from agentbench_spec.errors import ConfigError, ContractError, hub_said

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "ConfigError", "ContractError", "DraftSampler", "Drafter", "DrafterFactory", "DrafterSpec", "Proposal",
    "SequenceDrafter", "Span", "TargetInfo", "hub_said",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What a drafter is and what it needs from the target."""

    name: str
    hidden_layers: tuple[int, ...] = ()
    """Target states wanted, in this order: 0-based decoder-layer outputs; -1 is the embedding output; the last
    layer's id means the state *after* the final norm."""
    hidden_scope: Literal["none", "last", "all"] = "none"
    """Positions for which `Span.hidden` is filled: none, only position `count - 1`, or all."""
    max_tokens: int | None = None
    """Most tokens the drafter can propose in a round; None: no limit. The engine asks for at most this many."""
    max_positions: int | None = None
    """Longest text the drafter supports; longer turns get the status `draft_limit` instead of a bad number."""
    history_free: bool = False
    """True if the drafter's state does not grow with the text. Only then may its maintenance be reported as zero."""
    fused_ingest: bool = False
    """True if `propose` also does work that belongs to `observe`; maintenance is then null, never 0."""
    version: str = "0"


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The target model, as far as a drafter may look at it."""

    name: str
    vocab_size: int
    """V: rows of the embedding table (padded vocabulary, not tokenizer length)."""
    hidden_size: int
    num_layers: int
    max_positions: int
    """Trained context window in tokens."""
    dtype: torch.dtype
    device: torch.device
    config: Any
    """The transformers configuration of the target."""
    embed_tokens: nn.Module
    """ids [...] int64 -> embeddings [..., H]. Do not mutate."""
    lm_head: nn.Module
    """hidden states after the final norm [..., H] -> logits [..., V]. Do not mutate."""
    attention: Any = None
    """Where rounds are static, how they attend (docs/graphs.md): then do so, too; None: they are not."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions the target evaluated; the first `count` of each row are committed, the rest is padding.

    Everything a drafter knows at positions >= `start` is void when a span arrives.
    """

    rows: Tensor
    """[B] int64: engine row of each sequence."""
    start: Tensor
    """[B] int64: text position of the first token fed."""
    count: Tensor
    """[B] int64: 0..n positions that are committed; 0 leaves the row as it is."""
    input_ids: Tensor
    """[B, n] int64: token fed at position start + i."""
    next_ids: Tensor
    """[B, n] int64: token that follows it; next_ids[b, count - 1] is the anchor."""
    hidden: Tensor | None = None
    """[B, n, S, H] (scope "all"), [B, 1, S, H] (scope "last": position count - 1), target dtype; else None."""
    on_host: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[Sequence[int]]] | None = None
    """rows, start, count and each row's `count` committed tokens as lists, where the engine has them: no wait."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens a drafter guesses to follow the anchor."""

    ids: Tensor
    """[B, k] int64 in the target's vocabulary, anchor not included; k may be 0."""
    probs: Tensor | None = None
    """[B, k, V] float32: the distribution each token was drawn from; None: point mass on `ids`."""
    count: Tensor | None = None
    """[B] int64: leading tokens that count, 0..k; None: all k. Keep it on the CPU if the host knows it: the engine
    then verifies no more positions than the longest row needs."""
    source: Sequence[str] | None = None
    """[B]: who guessed each row's tokens, of a drafter made of several; None: the drafter has no parts."""


class DraftSampler(Protocol):
    """Draws draft tokens the way the run is configured; one generator per (seed, rollout, turn, drafter)."""

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """logits [B, V] -> token ids [B] int64 and their distribution [B, V] float32 (None when greedy)."""


class Drafter:
    """Base of every drafter; override what you need. Only `spec` and `propose` have no useful default."""

    spec: DrafterSpec
    sampler: DraftSampler
    """Set by the engine before `propose`. Drafters that ignore it propose point masses, which is always exact."""
    host_only: bool = False
    """True if all work is done on the host and no hidden states are wanted. Then `propose` and `observe` are handed
    CPU tensors whatever the target's device, and the proposal is on the CPU: it travels with the round's one copy."""
    static: bool = False
    """True if rounds keep the law of capture (docs/graphs.md): a run may then replay them as CUDA graphs."""
    carried: Sequence[Tensor] = ()
    """Lists that a method `look_ahead(anchor, position, k)` gave, sent along with the round's; set before `propose`."""
    notes: Sequence[str] = ()
    """What was guessed where a checkpoint leaves it open, in words, complete once open; runs and manifests say it."""

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Allocate state for `rows` texts of at most `capacity` tokens. Raises ConfigError naming what does not fit."""

    def observe(self, span: Span) -> None:
        """Take in committed positions: prefill chunks and verified rounds alike. The only call that adds state."""

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        """Guess up to k tokens after `anchor` [B] int64, which sits at text position `position` [B] int64.

        B is all engine rows; a row that is not decoding has position -1 and its guesses are ignored.
        Must leave no trace: asked twice, it answers the same.
        """
        raise NotImplementedError

    def truncate(self, row: int, length: int) -> int | None:
        """Forget positions >= length of `row`.

        What follows is `observe` from position `length`, or, where the cut goes back to the end of the last prefill,
        `propose` with the same anchor: that cut must bring back all that a proposal there needs. A drafter which no
        longer holds that returns the position from which it is to observe the kept text again first; else None.
        """
        return None

    def state_bytes(self, row: int) -> int:
        """Bytes held for `row` that grow with the text; 0 for a history-free drafter."""
        return 0

    def networks(self) -> Sequence[nn.Module]:
        """Networks of this drafter, once open, whose linears the engine may swap for faster ones of equal product."""
        return ()

    def snapshot(self, row: int) -> Mapping[str, Tensor] | None:
        """What this drafter knows about `row`'s text, for the conformance kit; None: only proposals are compared.

        Name -> tensor, of the positions that count and nothing else: no padding, no scratch, no spare capacity. The
        kit compares it with that of a fresh drafter which saw the same text at once. Never called in a measured run.
        """
        return None


_TOKEN_BYTES = 40
"""Host memory of a token in a Python list, an estimate: the slot and the int object."""

DrafterFactory = Callable[..., Drafter]
"""What an entry point or "module:factory" names: keyword options in, drafter out."""


class SequenceDrafter(Drafter):
    """Lifts a one-sequence drafter in plain Python to the row interface by looping over the rows.

    Subclasses implement `propose_one(row, text, k)` and, if they keep an index, `extend_one`, `truncate_one` and
    `state_bytes`. They never see hidden states.
    """

    host_only = True

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self._texts: list[list[int]] = [[] for _ in range(rows)]

    def observe(self, span: Span) -> None:
        if span.on_host is not None:
            rows, starts, _, fed = span.on_host
        else:
            rows, starts, counts = span.rows.tolist(), span.start.tolist(), span.count.tolist()
            fed = [row[:count] for row, count in zip(span.input_ids.tolist(), counts, strict=True)]
        for row, start, tokens in zip(rows, starts, fed, strict=True):
            if tokens:
                self.truncate(row, start)
                if len(self._texts[row]) != start:
                    raise ContractError(
                        f"{self.spec.name}: span of row {row} starts at {start}, text has {len(self._texts[row])}"
                    )
                new = list(tokens)
                self._texts[row].extend(new)
                self.extend_one(row, new)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        guesses: list[list[int]] = []
        for row, (token, at) in enumerate(zip(anchor.tolist(), position.tolist(), strict=True)):
            with self._ending_in(row, token, at) as text:
                guesses.append(self._whole(self.propose_one(row, text, k))[:k] if k and at >= 0 else [])
        count = torch.tensor([len(g) for g in guesses])
        width = int(count.max())
        ids = torch.tensor([g + [0] * (width - len(g)) for g in guesses], dtype=torch.int64).view(len(guesses), width)
        return Proposal(ids=ids.to(anchor.device), count=count)

    def match_lengths(self, anchor: Tensor, position: Tensor) -> list[int]:
        """Tokens of the match that each row's guess would rest on; arguments as those of `propose`."""
        lengths = []
        for row, (token, at) in enumerate(zip(anchor.tolist(), position.tolist(), strict=True)):
            with self._ending_in(row, token, at) as text:
                lengths.append(self.match_one(row, text) if at >= 0 else 0)
        return lengths

    @contextmanager
    def _ending_in(self, row: int, anchor: int, at: int) -> Iterator[list[int]]:
        """The row's text with its anchor behind it, for as long as the context lasts; an idle row's as it is."""
        text = self._texts[row]
        if at >= 0 and at != len(text):
            raise ContractError(f"{self.spec.name}: anchor of row {row} is at {at}, text has {len(text)} tokens")
        length = len(text)
        text.append(anchor)
        try:
            yield text
        finally:
            del text[length:]

    def _whole(self, guess: Sequence[int]) -> list[int]:
        """The guess, if it is a list of whole numbers; a float would silently become another token."""
        try:
            return [index(token) for token in guess]
        except TypeError as error:
            raise ContractError(f"{self.spec.name}: propose_one must return whole numbers: {error}") from None

    def truncate(self, row: int, length: int) -> None:
        if length < len(self._texts[row]):
            del self._texts[row][length:]
            self.truncate_one(row, length)

    def state_bytes(self, row: int) -> int:
        """Host memory of the row's text, an estimate; a subclass with an index adds its own."""
        return _TOKEN_BYTES * len(self._texts[row])

    def propose_one(self, row: int, text: Sequence[int], k: int) -> Sequence[int]:
        """Guess at most k tokens to follow `text` (anchor last). Do not mutate or keep `text`."""
        raise NotImplementedError

    def match_one(self, row: int, text: Sequence[int]) -> int:
        """Tokens at the end of `text` (anchor last) that a look-up found earlier in it; 0: nothing, or no look-up."""
        return 0

    def extend_one(self, row: int, tokens: Sequence[int]) -> None:
        """`tokens` were added at the end of `row`'s text (the anchor is not among them)."""

    def truncate_one(self, row: int, length: int) -> None:
        """`row`'s text was cut to `length` tokens."""
