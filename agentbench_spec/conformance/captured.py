"""The law of capture: what a CUDA graph would replay of a drafter's rounds is right at any position.

No GPU is needed: the operations of a round are noted once and run again on the same memory, without the drafter's
Python, beside a second drafter whose rounds are run anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentbench_spec.conformance.bench import Bench, same_tensor
from agentbench_spec.conformance.drive import Broken, NotApplicable, Seat
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.loop import Turn, step
from agentbench_spec.engine.rounds import Limits, Round
from agentbench_spec.engine.sampling import GREEDY, RowSampler
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.spans import Board
from agentbench_spec.engine.steps.capturing import capture
from agentbench_spec.engine.steps.graphs import Graphs
from agentbench_spec.engine.steps.recorded import recorded
from agentbench_spec.engine.steps.round_attention import RoundAttention
from agentbench_spec.engine.steps.static_target import Static
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ContractError, raise_interrupt

_GREEDY = RowSampler(GREEDY, [])


def captured_rounds(bench: Bench) -> str:
    """A drafter that says `static` can be captured: rounds replayed without its Python say what fresh ones say."""
    drafter = bench.make()
    if drafter.host_only:
        raise NotApplicable("the drafter works on the host: its rounds have nothing to capture")
    if not drafter.static:
        raise NotApplicable("the drafter does not say that its rounds can be captured: runs with it replay none")
    fresh, replayed = (
        _Place.made(bench, each, again=again) for each, again in ((bench.make(), False), (drafter, True))
    )
    limits = Limits(k=bench.k, max_new_tokens=4 * bench.k)
    try:
        capture(replayed.seat.target, drafter, limits, lambda: _GREEDY, rows=1, forced=True)
    except (Exception, SystemExit) as error:
        raise_interrupt(error)
        raise Broken(f"its rounds cannot be captured: {type(error).__name__}: {error}") from error
    rounds = 0
    for turn, prompt in enumerate(bench.prompts):
        anchor, _ = fresh.begin(prompt), replayed.begin(prompt)
        text = [*prompt, anchor]
        for number, wanted in enumerate((bench.k, 0, bench.k // 2, 1)):
            where = f"turn {turn}, round {number} (at most {wanted} drafts kept)"
            text += _same_round(bench, fresh, replayed, text, wanted, limits, where)
            rounds += 1
    return f"{rounds} rounds replayed as fresh ones"


@dataclass(frozen=True, slots=True)
class _Place:
    """A drafter at a target of its own, in static rounds."""

    seat: Seat
    session: Session

    @classmethod
    def made(cls, bench: Bench, drafter: Drafter, *, again: bool) -> _Place:
        """again: rounds are noted and run again."""
        model, info = bench.target.model, bench.target.info
        static = Static(RoundAttention("masked"), Graphs(recorded if again else None), Board(info.device))
        target = Target(model, name=info.name, capacity=bench.target.capacity, static=static)
        return cls(Seat(drafter, target, 1), Session(target, {"": drafter}, chunk_tokens=7))

    def begin(self, prompt: Sequence[int]) -> int:
        """Bring the row to the end of a prompt; returns what follows it."""
        anchor = self.session.prefill(prompt, lambda logits: logits.argmax()).anchor
        for error in self.session.failed.values():
            raise Broken(f"prefill: {type(error).__name__}: {error}") from error
        return anchor

    def round(self, text: Sequence[int], record: Sequence[int], limits: Limits) -> tuple[Round, list[int]]:
        """One round in which the target says `record`: what it did, and the tokens that it added."""
        turn = Turn(len(text) - 1, [text[-1]], [text[-1], *record])
        step(self.seat.target, self.seat.drafter, [turn], limits, _GREEDY, Clock(self.seat.target.info.device))
        return turn.rounds[0], turn.output[1:]


def _same_round(
    bench: Bench, fresh: _Place, replayed: _Place, text: list[int], wanted: int, limits: Limits, where: str
) -> list[int]:
    """The tokens of one round of both, or Broken if they differ; `wanted` of the fresh one's drafts are kept."""
    guess = _asked(fresh, text, limits)
    kept, vocab = guess[:wanted], bench.target.info.vocab_size
    refused = guess[len(kept)] if len(kept) < len(guess) else text[-1]
    record = [*kept, *[(refused + 1) % vocab] * (limits.k + 2)]
    try:
        (ours, said), (theirs, _) = (place.round(text, record, limits) for place in (replayed, fresh))
    except ContractError as error:
        raise Broken(f"{where}: {error}") from error
    if ours != theirs:
        raise Broken(
            f"{where}: replayed, {ours.proposed} drafts and {ours.matched} kept; fresh, {theirs.proposed} "
            f"and {theirs.matched}. What a round depends on must be in tensors that are written in place"
        )
    states = [place.seat.snapshot(0) for place in (replayed, fresh)]
    replayed.seat.where = where
    for name in sorted({*states[0], *states[1]}):
        same_tensor(replayed.seat, name, states[0].get(name), states[1].get(name), bench.tolerance)
    return said


def _asked(place: _Place, text: Sequence[int], limits: Limits) -> list[int]:
    """What the drafter guesses after `text`, outside any round."""
    drafter, device = place.seat.drafter, place.seat.target.info.device
    anchor, position = (torch.tensor([value], device=device) for value in (text[-1], len(text) - 1))
    drafter.sampler = _GREEDY
    with torch.inference_mode():
        proposal = drafter.propose(anchor, position, limits.asked(drafter.spec.max_tokens))
    ids: Tensor = proposal.ids[0]
    count = len(ids) if proposal.count is None else int(proposal.count[0])
    guess: list[int] = ids[:count].tolist()
    return guess
