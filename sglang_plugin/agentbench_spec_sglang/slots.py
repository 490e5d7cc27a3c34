"""What DLite keeps for each request slot of the server, and how a round changes it. Pure: nothing here knows SGLang.

Axes: R request slots, bs requests of a batch, S tapped layers, H hidden, G real tokens of a query, B tokens of a block
with the anchor, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def taps(layer_ids: Sequence[int], num_layers: int) -> tuple[list[int], bool]:
    """The layers whose output the server's models hand out, and whether the state after the final norm is wanted too.

    A layer's output is caught as the next layer's input, so the last layer has none; DLite wants it after the norm.
    """
    return [layer for layer in layer_ids if layer < num_layers - 1], num_layers - 1 in layer_ids


def last_rows(lengths: Sequence[int]) -> list[int]:
    """The row of each request's last token, where requests of these lengths lie end to end."""
    return [end - 1 for end in accumulate(lengths)]


def tail(tokens: Sequence[int], count: int) -> list[int]:
    """The last `count` tokens, token 0 where the text does not reach so far back."""
    known = list(tokens[max(len(tokens) - count, 0) :])
    return [0] * (count - len(known)) + known


def accepted(block: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many drafts of block [bs, B] the target agrees with, and the token it adds itself.

    chosen [bs, B] int64: the target's own token after each of the block. Returns count [bs] int64 and bonus [bs] int64.
    """
    count = (block[:, 1:] == chosen[:, :-1]).cumprod(1).sum(1)
    return count, chosen.gather(1, count[:, None])[:, 0]


def emitted(chosen: Tensor, count: Tensor) -> Tensor:
    """The tokens of a round [bs, B]: the accepted drafts and the bonus, which are the target's own; then zeros."""
    column = torch.arange(chosen.shape[1], device=chosen.device)
    return torch.where(column <= count[:, None], chosen, 0)


def draw(probs: Tensor) -> Tensor:
    """One token from each distribution of probs [bs, B, V], scaled or not -> [bs, B] int64; no device is waited for."""
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1)


def at_least(probs: Tensor, least: Tensor) -> Tensor:
    """Drop what is less likely than least [bs] times the likeliest: probs [bs, B, V] -> the same, not scaled again."""
    return torch.where(probs >= least[:, None, None] * probs.amax(-1, keepdim=True), probs, 0)


class Slots:
    """pivots [R, S, H]: states of the newest processed position; previous [R, G - 1] int64: the tokens up to it.

    A slot is written by every prefill before it is read, so what an ended request left in it is never seen. Slot 0 is
    the server's padding.
    """

    def __init__(
        self, count: int, taps: int, hidden_size: int, group: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pivots = torch.zeros(count, taps, hidden_size, dtype=dtype, device=device)
        self.previous = torch.zeros(count, group - 1, dtype=torch.int64, device=device)

    def filled(self, slots: Tensor, states: Tensor, rows: Tensor, previous: Tensor) -> None:
        """A prefill ended: states [tokens, S * H] of all its tokens, rows [bs] the last of each request, previous
        [bs, G - 1] the tokens up to it."""
        self.pivots[slots] = states[rows].reshape(-1, *self.pivots.shape[1:])
        self.previous[slots] = previous

    def advanced(self, slots: Tensor, states: Tensor, block: Tensor, count: Tensor) -> None:
        """A round ended: states [bs * B, S * H] of block [bs, B], of which the anchor and `count` [bs] drafts stay."""
        each = torch.arange(len(block), device=block.device)
        self.pivots[slots] = states.reshape(*block.shape, -1)[each, count].reshape(-1, *self.pivots.shape[1:])
        width = self.previous.shape[1]
        if width:
            text = torch.cat((self.previous[slots], block), 1)
            self.previous[slots] = text.gather(1, (count + 1)[:, None] + torch.arange(width, device=block.device))
