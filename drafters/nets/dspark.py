"""DSpark's serial heads: a Markov bias on the logits and a confidence per position (spec dspark-dflash, section 1.3).

Axes: B rows, H hidden, V vocabulary, r Markov rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError


class MarkovHead(nn.Module):
    """First-order ("vanilla") head: the bias of a position depends on the token just before it."""

    def __init__(self, vocab_size: int, rank: int, hidden_size: int, said: int) -> None:
        super().__init__()
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, said, bias=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [...] int64 -> rows of W1 [..., r]."""
        return self.markov_w1(tokens)  # type: ignore[no-any-return]

    def start(self, hidden: Tensor) -> Tensor:
        """State before the first position of a block: zeros [B, r], for hidden [B, ...] of any width."""
        return hidden.new_zeros(len(hidden), self.rank)

    def code(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """One position: state [B, r], previous tokens' rows of W1 [B, r], hidden [B, H] -> state, W2's input."""
        return state, previous

    def forward(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """One position, as `code` -> state [B, r], bias [B, V]."""
        state, code = self.code(state, previous, hidden)
        return state, self.markov_w2(code)


class GatedMarkovHead(MarkovHead):
    """The previous token's row is gated by the hidden state before it becomes a bias."""

    def __init__(self, vocab_size: int, rank: int, hidden_size: int, said: int) -> None:
        super().__init__(vocab_size, rank, hidden_size, said)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def code(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        gate = torch.sigmoid(self.gate_proj(torch.cat((hidden, previous), -1)))
        return state, gate * previous


class RnnMarkovHead(MarkovHead):
    """A gated recurrence over the block; the bias reads the joint projection, not the new state."""

    def __init__(self, vocab_size: int, rank: int, hidden_size: int, said: int) -> None:
        super().__init__(vocab_size, rank, hidden_size, said)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def code(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        joint = self.joint_proj(torch.cat((state, previous, hidden), -1)).to(state.dtype)  # as in training: kept wide
        gate, candidate, output = joint.chunk(3, -1)
        state = torch.lerp(torch.tanh(candidate), state, torch.sigmoid(gate))
        return state, torch.tanh(output)


_HEADS: dict[str, type[MarkovHead]] = {"vanilla": MarkovHead, "gated": GatedMarkovHead, "rnn": RnnMarkovHead}


def make_markov_head(kind: str, vocab_size: int, rank: int, hidden_size: int, *, said: int) -> MarkovHead:
    """The head a config's `markov_head_type` names; said: ids that get a bias.

    Raises ConfigError for an unknown one.
    """
    if kind not in _HEADS:
        raise ConfigError(f"markov_head_type is {kind!r}; implemented: {', '.join(_HEADS)}")
    return _HEADS[kind](vocab_size, rank, hidden_size, said)


class ConfidenceHead(nn.Module):
    """Chance that a position is accepted given that all before it were; one logit per position."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.with_markov = rank > 0
        self.proj = nn.Linear(hidden_size + rank, 1)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """hidden [B, k, H], previous tokens' rows of W1 [B, k, r] -> logits [B, k]."""
        features = torch.cat((hidden, previous), -1) if self.with_markov else hidden
        return self.proj(features).squeeze(-1)  # type: ignore[no-any-return]


def confident_prefix(logits: Tensor, threshold: float) -> Tensor:
    """Positions before the first whose confidence is strictly below threshold: logits [B, k] -> [B] int64.

    The test is per position, not on the running product; threshold <= 0 keeps all.
    """
    kept = torch.sigmoid(logits.float()) >= threshold
    return kept.long().cumprod(-1).sum(-1)
