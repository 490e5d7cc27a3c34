"""The distribution law: at temperature > 0 the emitted tokens follow the target's own distribution exactly.

Two tokens are decoded after one fixed prefix, many times over, and their joint counts are held against the exact
probabilities by a chi-square test. A wrong verifier or a drafter that misreports what it drew from is seen at once.
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
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import Sampling, pick, probabilities
from agentbench_spec.engine.spans import span_of
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.testing import row_sampler

DRAWS = 20_480
ALPHA = 1e-4
"""A p-value below this breaks the law. Seeds are fixed, so a drafter passes always or never."""
_LEAST_EXPECTED = 5.0
_PREFIX_TOKENS = 10
_SUPPORT = 8
"""Likeliest tokens kept where the vocabulary is larger (top-k sampling, the same for target and drafter)."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What many repetitions of one turn gave."""

    counts: Counter[Pair]
    """How often each pair of tokens was emitted."""
    exact: Mapping[Pair, float]
    """Their probabilities under the target."""
    matched: int
    proposed: int


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
    """At temperature 1 the emitted tokens follow the target's distribution (chi-square, with a negative control)."""
    target = bench.sampling_target
    if target is None:
        raise NotApplicable(f"{DRAWS} draws from this target would take too long; give a small sampling_target")
    sampling = Sampling(temperature=1.0, top_k=0 if target.info.vocab_size <= _SUPPORT else _SUPPORT)
    seat = Seat(bench.make(), target, target.rows)
    if seat.asked(1) == 0:
        raise NotApplicable("the drafter never proposes anything")
    prefix = [token % target.info.vocab_size for token in bench.prompts[0][-_PREFIX_TOKENS:]]
    sampled = sample(seat, prefix, min(2, max(bench.ks)), sampling)
    if sampled.proposed == 0:
        raise NotApplicable("the drafter proposed nothing after the test's prefix")
    control = chi_square(unverified(sampled.exact), sampled.exact)
    if control >= ALPHA:
        raise Broken(f"the negative control passes (p = {control:.2g}), so this test says nothing")
    p_value = chi_square(sampled.counts, sampled.exact)
    facts = f"p = {p_value:.2g} over {DRAWS} draws, {sampled.matched} of {sampled.proposed} drafts accepted"
    if p_value < ALPHA:
        raise Broken(f"emitted tokens do not follow the target: {facts}")
    return f"{facts}; always-accept control p = {control:.2g}"


def sample(seat: Seat, prefix: Sequence[int], k: int, sampling: Sampling) -> Sampled:
    """Decode two tokens after `prefix` + its greedy next token, DRAWS times, on all rows of the seat's target."""
    target, drafter = seat.target, seat.drafter
    anchor = _begin(seat, prefix)
    position, cap = len(prefix), Limits(k=k, max_new_tokens=3)
    sampler, clock = row_sampler(target, sampling, "distribution"), Clock(target.info.device)
    counts: Counter[Pair] = Counter()
    matched = proposed = 0
    for _ in range(DRAWS // target.rows):
        turns = [Turn(position=position, output=[anchor]) for _ in range(target.rows)]
        try:
            decode(target, drafter, turns, cap, sampler, clock)
            for row in range(target.rows):
                drafter.truncate(row, position)
                target.truncate(row, position)
        except (Exception, SystemExit) as error:
            raise Broken(f"after {counts.total()} draws: {type(error).__name__}: {error}") from error
        counts.update((turn.output[1], turn.output[2]) for turn in turns)
        matched += sum(r.matched for turn in turns for r in turn.rounds)
        proposed += sum(r.proposed for turn in turns for r in turn.rounds)
    return Sampled(counts, _exact(target, position, anchor, sampling), matched, proposed)


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
