"""One turn of the loop: clipping, counting, contracts, forced records, seeded sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from agentbench_spec.conformance.distribution import chi_square
from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, SequenceDrafter, Span, TargetInfo
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.proposals import checked
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler, Sampling, generator, probabilities
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ContractError, MeasurementError
from agentbench_spec.testing import (
    PlainDrafter,
    ScriptedDrafter,
    every,
    greedy_text,
    row_sampler,
    toy_target,
    toy_turns,
)

PROMPT = toy_turns()[0]
AT = len(PROMPT)
"""Text position of the anchor."""
DRAWN = Sampling(temperature=1.0)


@pytest.fixture(scope="module")
def text() -> list[int]:
    """PROMPT and its greedy continuation."""
    return greedy_text(toy_target(), PROMPT, 40)


def begin(target: Target, rows: Sequence[int] = (0,), prompt: Sequence[int] = PROMPT) -> int:
    """Prefill `rows`; returns the anchor."""
    anchor = -1
    for row in rows:
        logits = target.evaluate(row, [0], torch.tensor([list(prompt)]), keep=1).logits
        target.commit(row, len(prompt))
        anchor = int(logits[0, -1].argmax())
    return anchor


def run(
    drafter: Drafter, limits: Limits, *, reference: Sequence[int] | None = None, sampling: Sampling = GREEDY
) -> Turn:
    """One turn after PROMPT on a fresh toy target."""
    target = toy_target()
    drafter.open(target.info, rows=1, capacity=target.capacity)
    anchor = begin(target)
    turn = Turn(AT, [anchor if reference is None else reference[0]], reference)
    decode(target, drafter, [turn], limits, row_sampler(target, sampling, "loop"), Clock(target.info.device))
    assert target.lengths == [turn.position]
    assert turn.position == AT + len(turn.output) - 1
    return turn


def first_use(text: Sequence[int], index: int) -> bool:
    """True if the output token at `index` occurs nowhere before it in the output."""
    output = text[AT:]
    return output[index] not in output[:index]


def test_stop_inside_the_block(text: list[int]) -> None:
    """Field case 1: fails if tokens after a stop token are emitted, or if the raw count is clipped with them."""
    assert first_use(text, 3)
    turn = run(ScriptedDrafter([text]), Limits(5, 30, frozenset([text[AT + 3]])))
    assert turn.output == text[AT : AT + 4]
    assert [done[:3] for done in turn.rounds] == [(5, 5, 3)]  # emitted 3, raw 5 + 1
    assert turn.stop_reason == "stop"


def test_cap_inside_the_block(text: list[int]) -> None:
    """Field case 2: fails if the output passes its cap, or if clipped and raw counts are one number."""
    turn = run(ScriptedDrafter([text]), Limits(7, 10))
    assert turn.output == text[AT : AT + 10]
    assert sum(done.emitted for done in turn.rounds) == 9
    assert sum(done.matched + 1 for done in turn.rounds) == 16
    assert turn.stop_reason == "length"


@pytest.mark.parametrize("limits", [Limits(5, 30, frozenset([-1])), Limits(5, 1)])
def test_a_turn_may_end_on_its_first_token(limits: Limits, text: list[int]) -> None:
    """Field case 3: fails if a turn whose prefill token ends it is given a round, or never ends."""
    stop = frozenset([text[AT]]) if limits.stop_ids else frozenset()
    turn = run(ScriptedDrafter([text]), Limits(5, limits.max_new_tokens, stop))
    assert (turn.output, turn.rounds) == ([text[AT]], [])
    assert turn.stop_reason == ("stop" if stop else "length")


def test_stop_as_the_targets_own_token(text: list[int]) -> None:
    """Fails if only drafts are searched for stop tokens: here a correction, then a bonus token, is the stop."""
    wrong_at = AT + 3
    for drafter, k in (
        (ScriptedDrafter([text], errs=lambda position: position == wrong_at), 5),
        (ScriptedDrafter([text]), 2),
    ):
        turn = run(drafter, Limits(k, 30, frozenset([text[wrong_at]])))
        assert turn.output == text[AT : wrong_at + 1]
        assert [(done.matched, done.emitted) for done in turn.rounds] == [(2, 3)]
        assert turn.stop_reason == "stop"


def test_a_stop_token_on_the_cap_counts_as_a_stop(text: list[int]) -> None:
    """Fails if a turn that ended by itself is reported as cut off."""
    assert first_use(text, 3)
    assert run(ScriptedDrafter([text]), Limits(5, 4, frozenset([text[AT + 3]]))).stop_reason == "stop"


@pytest.mark.parametrize("k", [0, 1, 4])
def test_k_bounds_the_rounds(k: int, text: list[int]) -> None:
    """Fails if k = 0 is not plain decoding, or if a round proposes more than was asked."""
    turn = run(ScriptedDrafter([text]), Limits(k, 12))
    assert turn.output == text[AT : AT + 12]
    assert {done.proposed for done in turn.rounds} == {k}
    assert len(turn.rounds) == -(-11 // (k + 1))


class Scheduled(ScriptedDrafter):
    """Proposes blocks of scheduled lengths; what does not count is filled with `junk`."""

    def __init__(self, texts: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], junk: int = -1):
        super().__init__(texts)
        self._lengths, self._junk, self.asked = lengths, junk, 0
        self.spans: list[Span] = []

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        count = torch.tensor([lengths[self.asked % len(lengths)] for lengths in self._lengths])
        self.asked += 1
        ids = super().propose(anchor, position, k).ids
        return Proposal(ids.masked_fill(torch.arange(k) >= count[:, None], self._junk), count=count)

    def observe(self, span: Span) -> None:
        self.spans.append(span)


def test_variable_counts_are_trimmed_and_counted(text: list[int]) -> None:
    """Fails if padding is verified, counted as proposed, or must be a token: -1 fills what does not count."""
    drafter = Scheduled([text], [[3, 0, 1]])
    turn = run(drafter, Limits(6, 9))
    assert turn.output == text[AT : AT + 9]
    assert [done[:3] for done in turn.rounds] == [(3, 3, 4), (0, 0, 1), (1, 1, 2), (3, 3, 1)]
    assert [span.input_ids.shape[1] for span in drafter.spans] == [4, 1, 2, 4]


def test_spans_tell_what_was_kept(text: list[int]) -> None:
    """Fails if a drafter is told of clipped or rejected tokens as committed, or if the anchor is another one."""

    class Watching(ScriptedDrafter):
        def observe(self, span: Span) -> None:
            told.append((int(span.start[0]), int(span.count[0]), span.input_ids[0].tolist(), span.next_ids[0].tolist()))

    told: list[tuple[int, int, list[int], list[int]]] = []
    run(Watching([text], errs=lambda position: position == AT + 3), Limits(4, 7))
    starts = [AT, *accumulate((count for _, count, _, _ in told), initial=AT)][1:-1]
    assert [start for start, *_ in told] == starts == [AT, AT + 3]
    assert [count for _, count, _, _ in told] == [3, 3]  # then 5 matched, clipped by the cap
    for start, count, fed, following in told:
        assert fed[:count] == text[start : start + count]
        assert following[:count] == text[start + 1 : start + count + 1]


class Faulty(Drafter):
    """Proposes whatever `make(rows, k)` makes."""

    spec = DrafterSpec(name="faulty")

    def __init__(self, make: Callable[[int, int], Proposal]):
        self._make = make

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        return self._make(len(anchor), k)


def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (lambda rows, k: Proposal(zeros(rows, k + 1)), r"ids must be \[B, n\]: B = 1 rows, n <= 3 tokens"),
        (lambda rows, k: Proposal(zeros(rows + 1, k)), r"ids must be \[B, n\]: B = 1 rows, n <= 3 tokens"),
        (lambda rows, k: Proposal(zeros(k)), r"ids must be \[B, n\]: B = 1 rows, n <= 3 tokens"),
        (lambda rows, k: Proposal(zeros(rows, k, dtype=torch.int32)), "int64"),
        (lambda rows, k: Proposal(zeros(rows, k), zeros(rows, k, 63, dtype=torch.float32)), "probs must be"),
        (lambda rows, k: Proposal(zeros(rows, k), zeros(rows, k - 1, 64, dtype=torch.float32)), "probs must be"),
        (lambda rows, k: Proposal(zeros(rows, k), zeros(rows, k, 64, dtype=torch.bfloat16)), "float32"),
        (lambda rows, k: Proposal(zeros(rows, k), count=zeros(rows + 1)), "count must be"),
        (lambda rows, k: Proposal(zeros(rows, k), count=torch.tensor([k + 1])), "counts tokens"),
        (lambda rows, k: Proposal(zeros(rows, k), count=torch.tensor([-1])), "counts tokens"),
        (lambda rows, k: Proposal(zeros(rows, k) + 64), r"token 64: .*0..63"),
        (lambda rows, k: Proposal(zeros(rows, k) - 1), r"token -1: .*0..63"),
    ],
)
def test_broken_proposals_name_the_clause(make: Callable[[int, int], Proposal], clause: str) -> None:
    """Fails if a malformed proposal is verified anyway, or dies as an index error that names nobody."""
    with pytest.raises(ContractError, match=rf"'faulty'.*{clause}"):
        run(Faulty(make), Limits(3, 8))


def test_forced_turns_emit_the_record_exactly(text: list[int]) -> None:
    """Fails if the record's end, drafts beyond it, or disagreement with the target change what is emitted."""
    record = [*text[AT : AT + 4], 11, 12, 13, text[AT + 7]]
    agrees = ScriptedDrafter([[*PROMPT, *record, 5, 5, 5, 5, 5, 5]])
    turn = run(agrees, Limits(5, 30), reference=record)
    assert (turn.output, turn.stop_reason) == (record, "end_of_record")
    assert [done[:3] for done in turn.rounds] == [(5, 5, 6), (5, 1, 1)]  # the second block runs past the record
    plain = run(PlainDrafter(), Limits(0, 30), reference=record)
    assert plain.output == record and len(plain.rounds) == 7


def test_a_cap_or_stop_inside_the_record(text: list[int]) -> None:
    """Fails if a forced turn passes its cap, or emits what the record says after a stop token."""
    record = list(range(20, 32))
    turn = run(ScriptedDrafter([[*PROMPT, *record]]), Limits(4, 8), reference=record)
    assert (turn.output, turn.stop_reason) == (record[:8], "length")
    turn = run(ScriptedDrafter([[*PROMPT, *record]]), Limits(4, 30, frozenset([27])), reference=record)
    assert (turn.output, turn.stop_reason) == (record[:8], "stop")
    turn = run(PlainDrafter(), Limits(0, 30), reference=record[:1])
    assert (turn.output, turn.rounds, turn.stop_reason) == (record[:1], [], "end_of_record")


def test_forced_and_free_turns_do_not_mix() -> None:
    """Fails if a free row beside a forced one is given the record's padding as its text."""
    target = toy_target(rows=2)
    anchor = begin(target, (0, 1))
    turns = [Turn(AT, [anchor], [anchor, 3]), Turn(AT, [anchor])]
    with pytest.raises(MeasurementError, match="cannot share a batch"):
        decode(target, PlainDrafter(), turns, Limits(0, 5), row_sampler(target, GREEDY), Clock(target.info.device))


def test_idle_and_finished_rows_stay_as_they_are(text: list[int]) -> None:
    """Fails if a row without a turn, or past its end, is advanced, told of tokens, or slows the others' text."""
    target = toy_target(rows=3)
    anchor = begin(target, (0, 2))
    begin(target, (1,), [9, 8, 7])
    first, last = Turn(AT, [anchor]), Turn(AT, [anchor])
    drafter = Scheduled([text, [], text], [[2], [6], [2]])
    drafter.open(target.info, rows=3, capacity=512)
    limits = Limits(6, 12, frozenset([text[AT + 11]]))
    assert first_use(text, 11)
    decode(target, drafter, [first, None, last], limits, row_sampler(target, GREEDY), Clock(target.info.device))
    assert first.output == last.output == text[AT : AT + 12]
    assert target.lengths == [AT + 11, 3, AT + 11]
    assert all(int(span.count[1]) == 0 for span in drafter.spans)
    assert {span.input_ids.shape[1] for span in drafter.spans} == {3}  # the idle row's count of 6 costs nothing


def test_rows_that_end_early_wait(text: list[int]) -> None:
    """Fails if a finished row goes on decoding while its neighbour is not done."""
    target = toy_target(rows=2)
    anchor = begin(target, (0, 1))
    turns = [Turn(AT, [anchor]), Turn(AT, [anchor])]
    drafter = ScriptedDrafter([text, [*text[: AT + 1], *[0] * 40]])  # row 1 is hardly ever right
    drafter.open(target.info, rows=2, capacity=512)
    decode(target, drafter, turns, Limits(5, 12), row_sampler(target, GREEDY), Clock(target.info.device))
    assert [turn.output for turn in turns] == [text[AT : AT + 12]] * 2
    assert len(turns[0].rounds) == 2 < len(turns[1].rounds)
    assert target.lengths == [AT + 11] * 2


class Drawing(Drafter):
    """Draws its guesses from fixed logits; row b proposes lengths[b] of them."""

    spec = DrafterSpec(name="drawing")

    def __init__(self, lengths: Sequence[int]):
        self._lengths = torch.tensor(lengths)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        draw = torch.Generator().manual_seed(5)
        self._logits = torch.randn(target.vocab_size, generator=draw, dtype=torch.float64)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        drawn = [self.sampler.draw(self._logits.expand(len(anchor), -1)) for _ in range(k)]
        probs = torch.stack([q for _, q in drawn if q is not None], 1) if drawn[0][1] is not None else None
        return Proposal(torch.stack([ids for ids, _ in drawn], 1), probs, self._lengths)


def sampled(rows: int, row: int, lengths: Sequence[int], seed: int = 0) -> Turn:
    """One sampled turn on `row` of `rows`, the other rows decoding too; every row's luck hangs on its own seed."""
    target = toy_target(rows=rows)
    turns = [Turn(AT, [begin(target, (r,))]) for r in range(rows)]
    drafter = Drawing(lengths)
    drafter.open(target.info, rows=rows, capacity=512)
    luck = [generator(target.info.device, seed, "measured" if r == row else r) for r in range(rows)]
    sampler = RowSampler(DRAWN, luck)
    decode(target, drafter, turns, Limits(4, 16), sampler, Clock(target.info.device))
    return turns[row]


def test_sampled_text_hangs_on_the_seed_alone() -> None:
    """Fails if a sampled turn is not reproducible, or ignores its seed."""
    assert sampled(1, 0, [4]).output == sampled(1, 0, [4]).output
    assert sampled(1, 0, [4]).output != sampled(1, 0, [4], seed=1).output


@pytest.mark.parametrize("neighbours", [[2, 4, 4], [4, 4, 2], [0, 1, 2]])
def test_sampled_text_does_not_hang_on_the_neighbours(neighbours: list[int]) -> None:
    """Fails if a row's random numbers depend on how many drafts its neighbours have.

    It did: a round drew one number more than the longest proposal, so a neighbour's longer one moved the number that
    the next token is drawn with.
    """
    row = neighbours.index(2)
    alone, beside = sampled(1, 0, [2]), sampled(3, row, neighbours)
    assert alone.rounds == beside.rounds and alone.output == beside.output


def test_a_drafters_own_weights_need_no_grad_guard() -> None:
    """Fails if drafters run with autograd on: their state would hold on to the graph of every round.

    They did, and a plain nn.Linear over the target's states died with "Inference tensors cannot be saved".
    """

    class Learned(Drafter):
        spec = DrafterSpec(name="learned", hidden_layers=(3,), hidden_scope="all")

        def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
            self.head = torch.nn.Linear(target.hidden_size, target.vocab_size, dtype=target.dtype)

        def observe(self, span: Span) -> None:
            assert span.hidden is not None
            self.state = self.head(span.hidden[0, -1, 0])

        def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
            guess = self.state if hasattr(self, "state") else self.head.weight.sum(1)
            return Proposal(guess.argmax().expand(1, k))

    drafter = Learned()
    run(drafter, Limits(2, 6))
    assert not drafter.state.requires_grad


def test_error_patterns_give_known_rounds(text: list[int]) -> None:
    """Fails if a correction is counted as matched: with every third position wrong, a round keeps at most 3."""
    turn = run(ScriptedDrafter([text], errs=every(3)), Limits(6, 13))
    assert turn.output == text[AT : AT + 13]
    ends = list(accumulate((done.emitted for done in turn.rounds), initial=AT))
    assert all(end % 3 == 0 for end in ends[1:-1])
    assert all(done.matched < 3 and done.emitted == done.matched + 1 for done in turn.rounds[:-1])


def sampled_pairs(drafter: Drafter, batches: int) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], float]]:
    """How often each pair of tokens followed the anchor in the loop, and the target's own probabilities of them."""
    rows, vocab = 64, 8
    target = toy_target(rows=rows, vocab=vocab)
    drafter.open(target.info, rows=rows, capacity=512)
    anchor = begin(target, range(rows), [1, 2, 3])
    sampler = row_sampler(target, DRAWN, "pairs")
    counts = dict.fromkeys(((a, b) for a in range(vocab) for b in range(vocab)), 0)
    for _ in range(batches):
        turns = [Turn(3, [anchor]) for _ in range(rows)]
        decode(target, drafter, turns, Limits(2, 3), sampler, Clock(target.info.device))
        for row, turn in enumerate(turns):
            counts[turn.output[1], turn.output[2]] += 1
            target.truncate(row, 3)
    first = probabilities(target.evaluate(0, [3], torch.tensor([[anchor]])).logits[0, 0], DRAWN)
    exact = {}
    for a in range(vocab):
        second = probabilities(target.evaluate(0, [3], torch.tensor([[anchor, a]])).logits[0, 1], DRAWN)
        exact.update({(a, b): float(first[a] * second[b]) for b in range(vocab)})
    return counts, exact


class Misreporting(Drawing):
    """Draws from one distribution and reports another: the negative control."""

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        sound = super().propose(anchor, position, k)
        assert sound.probs is not None
        return Proposal(sound.ids, (sound.probs.log() / 2).softmax(-1), sound.count)


def test_sampled_pairs_follow_the_target_whatever_counts() -> None:
    """Field case 9, through the loop: fails if a short proposal's end is taken for a rejection: a skewed text."""
    lengths = [row % 3 for row in range(64)]
    assert chi_square(*sampled_pairs(Drawing(lengths), 120)) > 1e-3
    assert chi_square(*sampled_pairs(Misreporting(lengths), 120)) < 1e-6


@pytest.mark.parametrize("answer", [None, Proposal(ids=torch.tensor(1), count=torch.tensor([1]))])
def test_what_is_no_proposal_is_the_drafters_error(answer: Proposal) -> None:
    """Fails if None, or ids without axes, end in an error of Python's or torch's own."""

    class Odd(PlainDrafter):
        def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
            return answer

    target = toy_target()
    with pytest.raises(ContractError, match="propose"):
        checked(Odd().propose(torch.tensor([1]), torch.tensor([1]), 1), Odd(), 1, 1, target)


def test_a_guess_of_floats_is_refused() -> None:
    """Fails if 1.5 silently becomes token 1."""

    class Floats(SequenceDrafter):
        spec = DrafterSpec(name="floats")

        def propose_one(self, row: int, text: Sequence[int], k: int) -> Sequence[int]:
            return [1.5] * k  # type: ignore[list-item]

    drafter = Floats()
    drafter.open(toy_target().info, rows=1, capacity=8)
    with pytest.raises(ContractError, match="whole numbers"):
        drafter.propose(torch.tensor([1]), torch.tensor([0]), 2)
