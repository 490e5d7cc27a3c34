"""The distribution law: at temperature > 0 the emitted tokens follow the target's own distribution exactly.

Two rounds are decoded after one fixed prefix, many times over. The joint counts of the first two tokens are held
against their exact probabilities by a chi-square test; the tokens emitted at each place of the block against the
target's probabilities there; and the drafts at each place, accepted or not, against those the drafter gave with them.
A wrong verifier, or a drafter that misreports what it drew from, is seen at whichever place it errs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import chisquare
from torch import Tensor

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.drive import Broken, NotApplicable, Seat
from agentbench_spec.conformance.score import Score
from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, Span, TargetInfo
from agentbench_spec.engine.loop import Turn, step
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import Sampling, pick, probabilities
from agentbench_spec.engine.spans import span_of
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import raise_interrupt
from agentbench_spec.testing import row_sampler

DRAWS = 20_480
"""Rounds."""
ALPHA = 1e-4
"""A p-value below this breaks the law. Seeds are fixed, so a drafter passes always or never."""
_LEAST_EXPECTED = 5.0
_PREFIX_TOKENS = 10
_ENOUGH = 200
_SUPPORT = 8
"""Likeliest tokens kept where the vocabulary is larger (top-k sampling, the same for target and drafter)."""

Pair = tuple[int, int]


@dataclass(slots=True)
class Sampled:
    """What many repetitions of one turn gave."""

    counts: Counter[Pair]
    """How often each pair of tokens was emitted first."""
    exact: Mapping[Pair, float]
    """Their probabilities under the target."""
    emitted: list[Score]
    """Tokens emitted at each place of a round's block, against the target after the very tokens before."""
    drafted: list[Score]
    """Drafts at each place of the block, accepted or not, against the probabilities proposed with them."""
    matched: int = 0
    proposed: int = 0


def chi_square(counts: Mapping[Pair, int], exact: Mapping[Pair, float]) -> float:
    """p-value of the counts under the exact probabilities; 0 where something impossible was drawn.

    Cells with fewer than five expected draws are pooled.
    """
    draws = sum(counts.values())
    if any(exact.get(cell, 0.0) <= 0 for cell in counts):
        return 0.0
    observed, expected, rare = [], [], [0.0, 0.0]
    for cell, probability in exact.items():
        if probability * draws >= _LEAST_EXPECTED:
            observed.append(float(counts.get(cell, 0)))
            expected.append(probability * draws)
        else:
            rare = [rare[0] + counts.get(cell, 0), rare[1] + probability * draws]
    if rare[1] >= _LEAST_EXPECTED:
        observed.append(rare[0])
        expected.append(rare[1])
    scale = sum(observed) / sum(expected)  # pooled cells that stay too rare are left out of both sides
    return float(chisquare(observed, [e * scale for e in expected]).pvalue)


def distribution(bench: Bench) -> str:
    """At temperature 1 the emitted tokens follow the target, and drafts the probabilities given, in the whole block."""
    target = bench.sampling_target
    if target is None:
        raise NotApplicable(f"{DRAWS} draws from this target would take too long; give a small sampling_target")
    sampling = Sampling(temperature=1.0, top_k=0 if target.info.vocab_size <= _SUPPORT else _SUPPORT)
    drafter = _Noting(bench.make())
    seat = Seat(drafter, target, target.rows)
    k = seat.asked(max(bench.ks))
    if k == 0:
        raise NotApplicable("the drafter never proposes anything")
    prefix = [token % target.info.vocab_size for token in bench.prompts[0][-_PREFIX_TOKENS:]]
    sampled = sample(seat, drafter, prefix, k, sampling)
    if sampled.proposed == 0:
        raise NotApplicable("the drafter proposed nothing after the test's prefix")
    control = chi_square(unverified(sampled.exact), sampled.exact)
    if control >= ALPHA:
        raise Broken(f"the negative control passes (p = {control:.2g}), so this test says nothing")
    p_value = _judge(sampled, k)
    reached = max(place for place, score in enumerate(sampled.emitted, 1) if score.draws >= _ENOUGH)
    return (
        f"p = {p_value:.2g} over {DRAWS} draws, k {k}, {sampled.matched} of {sampled.proposed} drafts accepted, "
        f"{reached} tokens of a block reached {_ENOUGH} times; always-accept control p = {control:.2g}"
    )


def _judge(sampled: Sampled, k: int) -> float:
    """The least p-value of all tests, corrected for their number; Broken where it is below ALPHA."""
    pairs = chi_square(sampled.counts, sampled.exact)
    facts = f"{DRAWS} draws, {sampled.matched} of {sampled.proposed} drafts accepted"
    tests = [(pairs, f"emitted tokens do not follow the target (the first two after the anchor; {facts})")]
    for place, score in enumerate(sampled.emitted, 1):
        what = f"emitted tokens do not follow the target at token {place} of the block"
        tests.append((score.p_value, f"{what}: {score.worst()} in {score.draws} draws"))
    for place, score in enumerate(sampled.drafted, 1):
        what = f"draft {place} of the block is not drawn from the probabilities given with it"
        tests.append((score.p_value, f"{what}: {score.worst()} in {score.draws} draws"))
    for p_value, what in tests:
        if p_value * len(tests) < ALPHA:
            raise Broken(f"k {k}, p = {p_value:.2g}: {what}")
    return min(1.0, len(tests) * min(p_value for p_value, _ in tests))


class _Noting(Drafter):
    """Passes everything on to a drafter and keeps its last proposal."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.said = drafter, Proposal(torch.zeros(0, 0, dtype=torch.int64))

    @property
    def spec(self) -> DrafterSpec:  # type: ignore[override]
        return self._drafter.spec

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self._drafter.open(target, rows=rows, capacity=capacity)

    def observe(self, span: Span) -> None:
        self._drafter.observe(span)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self._drafter.sampler = self.sampler
        self.said = self._drafter.propose(anchor, position, k)
        return self.said

    def truncate(self, row: int, length: int) -> int | None:
        return self._drafter.truncate(row, length)


def sample(seat: Seat, drafter: _Noting, prefix: Sequence[int], k: int, sampling: Sampling) -> Sampled:
    """Two rounds after `prefix` + its greedy next token, again and again, on all rows of the seat's target."""
    target = seat.target
    anchor, position = _begin(seat, prefix), len(prefix)
    caps = Limits(k=k, max_new_tokens=2 * k + 9)
    sampler, clock = row_sampler(target, sampling, "distribution"), Clock(target.info.device)
    vocab = target.info.vocab_size
    done = Sampled(
        Counter(),
        _exact(target, position, anchor, sampling),
        [Score(vocab) for _ in range(k + 1)],
        [Score(vocab) for _ in range(k)],
    )
    for _ in range(DRAWS // target.rows // 2):
        turns = [Turn(position=position, output=[anchor]) for _ in range(target.rows)]
        try:
            for _ in range(2):
                step(target, drafter, turns, caps, sampler, clock)
                _note(done, drafter.said, target, turns, sampling)
            for row in range(target.rows):
                drafter.truncate(row, position)
                target.truncate(row, position)
        except (Exception, SystemExit) as error:
            raise_interrupt(error)
            raise Broken(f"after {done.counts.total()} draws: {type(error).__name__}: {error}") from error
        done.counts.update((turn.output[1], turn.output[2]) for turn in turns)
    return done


def _note(done: Sampled, said: Proposal, target: Target, turns: Sequence[Turn], sampling: Sampling) -> None:
    """Count what the round just done drafted and emitted, place by place, against what it should follow."""
    ids, probs = said.ids, said.probs
    count = torch.full((len(ids),), ids.shape[1]) if said.count is None else said.count.to(ids.device)
    for place in range(ids.shape[1] if probs is not None else 0):
        rows = count > place
        if probs is not None and bool(rows.any()):
            done.drafted[place].add(probs[rows, place], ids[rows, place])
    emitted = [turn.rounds[-1].emitted for turn in turns]
    done.matched += sum(turn.rounds[-1].matched for turn in turns)
    done.proposed += sum(turn.rounds[-1].proposed for turn in turns)
    width = max(emitted)
    fed = [turn.output[-many - 1 : -1] + [0] * (width - many) for turn, many in zip(turns, emitted, strict=True)]
    new = [turn.output[-many:] + [0] * (width - many) for turn, many in zip(turns, emitted, strict=True)]
    start = [turn.position - many for turn, many in zip(turns, emitted, strict=True)]
    device = target.info.device
    logits = target.evaluate(0, start, torch.tensor(fed, device=device)).logits.double()
    after, came = torch.tensor(new, device=device), torch.tensor(emitted, device=device)
    for place in range(width):
        rows = came > place
        done.emitted[place].add(probabilities(logits[rows, place], sampling), after[rows, place])


def _begin(seat: Seat, prefix: Sequence[int]) -> int:
    """Bring all rows to the end of `prefix`; returns the anchor."""
    target, rows = seat.target, seat.target.rows
    ids = torch.tensor([list(prefix)] * rows, device=target.info.device)
    for row in range(rows):
        target.truncate(row, 0)
    evaluated = target.evaluate(0, [0] * rows, ids, taps=seat.drafter.spec.hidden_layers)
    anchor = int(evaluated.logits[0, -1].argmax())
    after = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], anchor)], dim=1)
    for row in range(rows):
        target.commit(row, len(prefix))
    seat.observe(span_of(seat.drafter, range(rows), [0] * rows, [len(prefix)] * rows, ids, after, evaluated))
    return anchor


def _exact(target: Target, position: int, anchor: int, sampling: Sampling) -> dict[Pair, float]:
    """Joint probabilities of the two tokens after the anchor."""
    first = _next(target, position, [anchor], sampling)
    exact: dict[Pair, float] = {}
    for token, p in enumerate(first.tolist()):
        if p > 0:
            second = _next(target, position, [anchor, token], sampling)
            exact.update({(token, other): p * q for other, q in enumerate(second.tolist()) if q > 0})
    return exact


def _next(target: Target, position: int, tokens: Sequence[int], sampling: Sampling) -> Tensor:
    ids = torch.tensor([list(tokens)], device=target.info.device)
    return probabilities(target.evaluate(0, [position], ids, keep=1).logits[0, -1].double(), sampling)


def unverified(exact: Mapping[Pair, float], temperature: float = 1.3) -> Counter[Pair]:
    """The negative control: draws of a good drafter, the target itself at another temperature, all accepted."""
    cells = list(exact)
    weights = torch.tensor(list(exact.values()), dtype=torch.float64) ** (1 / temperature)
    uniform = torch.rand(DRAWS, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    drawn = pick(weights.expand(DRAWS, -1), uniform)
    return Counter(cells[i] for i in drawn.tolist())
