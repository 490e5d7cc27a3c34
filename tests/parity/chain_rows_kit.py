"""Random texts for the chain drafters: what matters for row bookkeeping is where features and tokens land."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, Span

VOCABULARY, WIDTH = 160, 48


class Probing:
    """Draws the best token but reports the distribution, so that a difference too small to flip an id is seen."""

    greedy = False

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.argmax(-1), logits.float().softmax(-1)


@dataclass
class Text:
    """Tokens of a row and what the target made of each position."""

    tokens: Tensor
    hidden: Tensor

    @classmethod
    def random(cls, length: int, seed: int, taps: int) -> Text:
        draw = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, VOCABULARY, (length,), generator=draw)
        return cls(tokens, torch.randn(length, taps, WIDTH, generator=draw))

    def rewritten(self, at: int, other: Text) -> Text:
        """This text up to `at`, then the other's."""
        return Text(torch.cat((self.tokens[:at], other.tokens[at:])), torch.cat((self.hidden[:at], other.hidden[at:])))


def span(texts: Sequence[Text], rows: Sequence[int], start: Sequence[int], count: Sequence[int], n: int) -> Span:
    """Positions start .. start + count - 1 of each text; padding is poison."""
    shape = (len(texts), n)
    inputs, following = torch.full(shape, -7), torch.full(shape, -7)
    hidden = torch.full((*shape, *texts[0].hidden.shape[1:]), torch.nan)
    for b, (text, first, many) in enumerate(zip(texts, start, count, strict=True)):
        inputs[b, :many] = text.tokens[first : first + many]
        following[b, :many] = text.tokens[first + 1 : first + many + 1]
        hidden[b, :many] = text.hidden[first : first + many]
    return Span(torch.tensor(rows), torch.tensor(start), torch.tensor(count), inputs, following, hidden)


def feed(drafter: Drafter, text: Text, until: int, *, start: int = 0, row: int = 0, chunk: int = 64) -> None:
    """Observe positions start .. until - 1 of one row in chunks."""
    for first in range(start, until, chunk):
        many = min(chunk, until - first)
        drafter.observe(span([text], [row], [first], [many], many))


def drafted(drafter: Drafter, anchors: Sequence[int], positions: Sequence[int], k: int = 5) -> Tensor:
    """Distributions [B, k, V] of a proposal."""
    probs = drafter.propose(torch.tensor(anchors), torch.tensor(positions), k).probs
    assert probs is not None
    return probs
