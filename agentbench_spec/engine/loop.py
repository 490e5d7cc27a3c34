"""Speculative decoding of one turn. This file is the whole loop, for every method, the baseline included.

anchor ──► propose ──► verify ──► accept ──► observe ──┐
  ▲        k guesses   one target  longest   the drafter │
  │                    pass over   prefix    learns what │
  │                    k + 1       + 1       was kept    │
  └──────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, Proposal, Span
from agentbench_spec.engine.sampling import RowSampler, pick, probabilities
from agentbench_spec.engine.target import Evaluated, Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.engine.verify import Verdict, accept_equal, accept_sampled
from agentbench_spec.errors import ContractError, MeasurementError
from agentbench_spec.results.rows import StopReason


@dataclass(frozen=True, slots=True)
class Limits:
    """When a turn ends, and how far ahead a drafter may guess."""

    k: int
    """Drafted tokens per round; 0: plain decoding."""
    max_new_tokens: int
    """Output cap, the prefill token included."""
    stop_ids: frozenset[int] = frozenset()


class Round(NamedTuple):
    """What one round did."""

    proposed: int
    """Drafts verified."""
    matched: int
    """Drafts accepted, before any stop rule."""
    emitted: int
    """Tokens added to the text, clipped at stop tokens and the cap."""


@dataclass(slots=True)
class Turn:
    """One row's turn: its prefill is done and its anchor, the first output token, is chosen."""

    position: int
    """Text position of the anchor."""
    output: list[int]
    """Emitted ids, the prefill token first; the last one is the anchor."""
    reference: Sequence[int] | None = None
    """Forced decoding: what the target "chooses", output[0] included."""
    rounds: list[Round] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def take(self, tokens: Sequence[int], proposed: int, limits: Limits) -> int:
        """Append the round's accepted drafts and next token, clipped; returns how many were kept."""
        kept = tokens[: self._room(limits)]
        for i, token in enumerate(kept):
            if token in limits.stop_ids:
                kept = kept[: i + 1]
                break
        self.output.extend(kept)
        self.position += len(kept)
        self.rounds.append(Round(proposed, len(tokens) - 1, len(kept)))
        self.end(limits)
        return len(kept)

    def end(self, limits: Limits) -> None:
        """Set the stop reason if the turn is over."""
        if self.output[-1] in limits.stop_ids:
            self.stop_reason = "stop"
        elif self.reference is not None and len(self.output) >= len(self.reference):
            self.stop_reason = "end_of_record"
        elif len(self.output) >= limits.max_new_tokens:
            self.stop_reason = "length"

    def _room(self, limits: Limits) -> int:
        cap = limits.max_new_tokens if self.reference is None else min(limits.max_new_tokens, len(self.reference))
        return cap - len(self.output)


@torch.inference_mode()
def decode(
    target: Target, drafter: Drafter, turns: Sequence[Turn | None], limits: Limits, sampler: RowSampler, clock: Clock
) -> None:
    """Decode every turn to its end, in place. turns[row] is the turn of each engine row; None: an idle row.

    Raises ContractError if the drafter's proposal breaks its contract, MeasurementError if only some turns are forced.
    """
    live = [turn for turn in turns if turn is not None]
    if len({turn.reference is None for turn in live}) > 1:
        raise MeasurementError("forced turns and free ones cannot share a batch")
    for begun in live:
        begun.end(limits)  # a turn may end on its prefill token: no round, no τ
    while any(turn.stop_reason is None for turn in live):
        step(target, drafter, turns, limits, sampler, clock)


@torch.inference_mode()
def step(
    target: Target, drafter: Drafter, turns: Sequence[Turn | None], limits: Limits, sampler: RowSampler, clock: Clock
) -> None:
    """One round of every turn that has not ended, in place; rows may be filled and emptied between two steps.

    turns: one entry for each of the first B engine rows, those the drafter is open for. Raises ContractError.
    """
    drafter.sampler = sampler
    k = limits.k if drafter.spec.max_tokens is None else min(limits.k, drafter.spec.max_tokens)
    device = target.info.device
    decoding = [turn if turn is not None and turn.stop_reason is None else None for turn in turns]
    with clock.phase("draft"):
        anchor = torch.tensor([turn.output[-1] if turn else 0 for turn in decoding], device=device)
        position = torch.tensor([turn.position if turn else -1 for turn in decoding], device=device)
        proposal = checked(drafter.propose(anchor, position, k), drafter, len(turns), k, target)
        drafts, probs, count = trimmed(proposal, [turn is not None for turn in decoding])
        in_vocabulary(drafts, drafter, target)
    with clock.phase("verify"):
        start = [turn.position if turn else target.lengths[row] for row, turn in enumerate(decoding)]
        block = torch.cat([anchor[:, None], drafts], dim=1)  # [B, 1 + k]
        evaluated = target.evaluate(0, start, block, taps=drafter.spec.hidden_layers)
    with clock.phase("accept"):
        verdict = accept(evaluated.logits, drafts, probs, count, decoding, sampler, k)
        # draft i follows position i; at `matched` stands the target's own token, and nothing after it counts
        next_ids = torch.cat([drafts, drafts.new_zeros(len(turns), 1)], dim=1).scatter(
            1, verdict.matched[:, None], verdict.next_ids[:, None]
        )
        outcome = torch.cat([next_ids, verdict.matched[:, None], count[:, None]], dim=1).tolist()  # the one read-back
        kept = [0] * len(turns)
        for row, turn in enumerate(decoding):
            if turn is not None:
                *tokens, matched, proposed = outcome[row]
                kept[row] = turn.take(tokens[: matched + 1], proposed, limits)
                target.commit(row, turn.position)
    with clock.phase("draft_append"):
        drafter.observe(span_of(drafter, range(len(turns)), start, kept, block, next_ids, evaluated))


def accept(
    logits: Tensor,
    drafts: Tensor,
    probs: Tensor | None,
    count: Tensor,
    decoding: Sequence[Turn | None],
    sampler: RowSampler,
    asked: int,
) -> Verdict:
    """The target's word on a round: equality with its own choice (greedy, forced), or rejection sampling.

    logits [B, k + 1, V]; drafts [B, k]; probs [B, k, V] or None; count [B]; asked: k before trimming, so that a row's
    random numbers do not depend on how many drafts the other rows of the round have.
    """
    k = drafts.shape[1]
    if any(turn is not None and turn.reference is not None for turn in decoding):
        verdict = accept_equal(recorded(decoding, k + 1, logits.device), drafts, count)
        return Verdict(verdict.matched, verdict.next_ids.clamp_min(0))  # past the record's end: clipped by the turn
    if sampler.greedy:
        return accept_equal(logits.argmax(-1), drafts, count)
    p = probabilities(logits, sampler.sampling)
    uniform = sampler.uniform(asked + 1)
    matched, following = accept_sampled(p, drafts, probs, uniform[:, :k], count)
    return Verdict(matched, pick(following, uniform[:, asked]))


def recorded(decoding: Sequence[Turn | None], n: int, device: torch.device) -> Tensor:
    """The next n recorded tokens of each row, [B, n] int64; -1, which no draft equals, past the record's end."""
    rows = []
    for turn in decoding:
        ahead = [] if turn is None or turn.reference is None else list(turn.reference[len(turn.output) :][:n])
        rows.append(ahead + [-1] * (n - len(ahead)))
    return torch.tensor(rows, device=device)


def checked(proposal: Proposal, drafter: Drafter, rows: int, k: int, target: Target) -> Proposal:
    """The proposal, if its shapes and dtypes keep the contract (values on a device would cost a sync).

    Raises ContractError naming the clause that is broken.
    """
    if not isinstance(proposal, Proposal):
        raise ContractError(
            f"drafter {drafter.spec.name!r}: propose returned {type(proposal).__name__}, not a Proposal"
        )
    for kept, clause in _clauses(proposal, rows, k, target.info.vocab_size):
        if not kept:
            ids = proposal.ids
            raise ContractError(f"drafter {drafter.spec.name!r} proposed ids {tuple(ids.shape)} {ids.dtype}: {clause}")
    return proposal


def _clauses(proposal: Proposal, rows: int, k: int, vocab_size: int) -> Iterator[tuple[bool, str]]:
    """(is it kept, in words) for each clause; a later one may rely on the earlier ones."""
    ids, probs, count = proposal.ids, proposal.probs, proposal.count
    yield ids.dtype == torch.int64, "ids must be int64"
    fits = ids.ndim == 2 and ids.shape[0] == rows and ids.shape[1] <= k
    yield fits, f"ids must be [B, n]: B = {rows} rows, n <= {k} tokens"
    if probs is not None:
        fits = tuple(probs.shape) == (*ids.shape, vocab_size)
        yield fits, "probs must be [B, k, V] like ids and the target's vocabulary"
        exact = probs.dtype in (torch.float32, torch.float64)
        yield exact, "probs must be float32 (or float64): rounded ones are not what was drawn from"
    if count is not None:
        yield tuple(count.shape) == (rows,), f"count must be [{rows}]"
        yield not count.is_floating_point(), "count must be whole numbers"
        if count.device.type == "cpu":
            within = int(count.min()) >= 0 and int(count.max()) <= ids.shape[1]
            yield within, "it counts tokens that are not among its ids"


def trimmed(proposal: Proposal, live: Sequence[bool]) -> tuple[Tensor, Tensor | None, Tensor]:
    """(ids [B, k], probs [B, k, V] or None, count [B]) without the columns no live row counts, if the host knows them.

    Verifying padding costs target time; asking a device for its counts would cost a sync. Ids that do not count become
    0: whatever a drafter leaves there, idle rows included, the target must be able to run.
    """
    ids, probs, count = proposal.ids, proposal.probs, proposal.count
    if count is None:
        count = torch.full((len(ids),), ids.shape[1])
    if count.device.type == "cpu":
        count = count * torch.tensor(live)
        width = int(count.max())
        ids, probs = ids[:, :width], None if probs is None else probs[:, :width]
        count = count.to(ids.device)
    else:
        count = count.clamp(0, ids.shape[1]) * torch.tensor(live, device=ids.device)
    counted = torch.arange(ids.shape[1], device=ids.device) < count[:, None]
    return ids.masked_fill(~counted, 0), probs, count


def in_vocabulary(drafts: Tensor, drafter: Drafter, target: Target) -> None:
    """Raise ContractError if a draft that counts is no token of the target; checked on a CPU only, see `checked`."""
    if drafts.device.type != "cpu" or not drafts.numel():
        return
    low, high = (int(end) for end in drafts.aminmax())
    if low < 0 or high >= target.info.vocab_size:
        worst = low if low < 0 else high
        raise ContractError(
            f"drafter {drafter.spec.name!r} proposed token {worst}: ids must be in the target's vocabulary, "
            f"0..{target.info.vocab_size - 1}"
        )


def span_of(
    drafter: Drafter,
    rows: Collection[int],
    start: Sequence[int],
    count: Sequence[int],
    input_ids: Tensor,
    next_ids: Tensor,
    evaluated: Evaluated,
) -> Span:
    """What a drafter gets to see of one evaluation: the counts, and the states its spec asks for.

    input_ids, next_ids [B, n]; rows, start, count: B values each.
    """
    device = input_ids.device
    counts = torch.tensor(count, device=device)
    hidden = None
    if drafter.spec.hidden_scope != "none":
        states = [evaluated.states[layer] for layer in drafter.spec.hidden_layers]
        if drafter.spec.hidden_scope == "last":
            row, last = torch.arange(len(count), device=device), (counts - 1).clamp_min(0)
            states = [state[row, last][:, None] for state in states]
        hidden = torch.stack(states, dim=2)
    return Span(
        rows=torch.tensor(list(rows), device=device),
        start=torch.tensor(start, device=device),
        count=counts,
        input_ids=input_ids,
        next_ids=next_ids,
        hidden=hidden,
    )
