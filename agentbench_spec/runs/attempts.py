"""One turn by every decoder from one state, and again for all of them while something else disturbs the clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from agentbench_spec.engine.adaptive import AsBefore
from agentbench_spec.engine.loop import Turn
from agentbench_spec.engine.rounds import Chooser, Limits
from agentbench_spec.engine.sampling import RowSampler
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.timing import Clock, clocks
from agentbench_spec.errors import MeasurementError, NotFinite, raise_interrupt
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.runs.contention import Noise
from agentbench_spec.runs.fill import Conditions, Decoded
from agentbench_spec.runs.stalls import Stalls

Told = Callable[[str, float], None]
"""Hears what is about to be done, and which share of the turn's decodings is over."""

Attempt = dict[str, Decoded]
"""Every drafter's decoding of one turn, in the order in which they ran."""


class Patience:
    """Whether a disturbed turn is worth decoding again: after three turns in a row that were no less disturbed by it,
    only each eighth one is, for a machine that is busy throughout would take three times as long for nothing."""

    def __init__(self) -> None:
        self._in_vain = 0

    def allows(self) -> bool:
        """Whether the turn at hand may be decoded again."""
        return self._in_vain < 3 or (self._in_vain - 3) % 8 == 7

    def learn(self, first: int, least: int) -> None:
        """Take note of a turn: how many drafters were disturbed at first, and in the best of its attempts."""
        self._in_vain = self._in_vain + 1 if first and least == first else 0


class TurnDecoder:
    """Decodes the turns of a run; what it learns of their rounds tells it which ones were disturbed."""

    def __init__(self, conditions: Conditions, device: torch.device) -> None:
        self._conditions, self._device, self._stalls = conditions, device, Stalls()
        self._patience = Patience()
        self.told: Told = lambda doing, share: None
        self.choosers: dict[str, Chooser] = {}
        """What decides the draft tokens of a round, by drafter; the others always draft `k_of`."""
        self.ks: dict[str, int] = {}
        """Draft tokens of a round, of those drafters whose number is not `limits.k`."""

    def k_of(self, name: str) -> int:
        """Draft tokens of a round; at most, where they are chosen."""
        return self.ks.get(name, self._conditions.limits.k)

    def decode(
        self,
        session: Session,
        order: Sequence[str],
        sampler: Callable[[str], RowSampler],
        reference: Sequence[int] | None,
        failed: dict[str, Exception],
    ) -> list[Attempt]:
        """The attempts at the turn that `session` has prefilled: one, and more while one is disturbed.

        order: the drafters, in the order in which they run; sampler: its random numbers, begun anew each time. A
        drafter that raises is dropped from the session; one that met logits that are not finite, which is the target's
        fault, is put into `failed` and goes on with the next turn. All but the clocks is that of the first attempt: a
        later one that fails, or says something else, is none, and the last. On a machine where repeats did not help
        lately they are made now and then only. Raises what the baseline raises.
        """
        attempts = [self._attempt(session, order, sampler, reference, {}, failed)]
        self._stalls.judge(attempts[0])
        most = self._conditions.repeats if self._patience.allows() else 0
        while len(attempts) <= most and _disturbed(attempts[-1]):
            try:
                attempts.append(self._attempt(session, list(attempts[0]), sampler, reference, attempts[0], {}))
            except (Exception, SystemExit) as error:
                raise_interrupt(error)
                break
            self._stalls.judge(attempts[-1])
        chosen = attempts[best(attempts)]
        self._patience.learn(_disturbed(attempts[0]), _disturbed(chosen))
        self._stalls.learn(chosen)
        return attempts

    def _attempt(
        self,
        session: Session,
        order: Sequence[str],
        sampler: Callable[[str], RowSampler],
        reference: Sequence[int] | None,
        first: Attempt,
        failed: dict[str, Exception],
    ) -> Attempt:
        """Raises what the baseline raises; in a repeat, which `first` is not empty in, what any drafter does."""
        attempt: Attempt = {}
        for place, name in enumerate(order):
            if name not in session.taking_part:  # it failed a moment ago, under another of its names
                continue
            self.told(f"decode with {name}{', again' if first else ''}", 1.0 if first else place / len(order))
            try:
                attempt[name] = self._decode(session, name, place, sampler, reference, first.get(name))
            except (Exception, SystemExit) as error:
                raise_interrupt(error)
                if isinstance(error, NotFinite):
                    failed[name] = error
                elif name != BASELINE and not (first and isinstance(error, MeasurementError)):
                    session.drop(name, error)
                if name == BASELINE or first:
                    raise
        return attempt

    def _decode(
        self,
        session: Session,
        name: str,
        order: int,
        sampler: Callable[[str], RowSampler],
        reference: Sequence[int] | None,
        earlier: Decoded | None,
    ) -> Decoded:
        decoded = earlier
        for wall, pass_clock in clocks(self._conditions.clock, self._device):
            clock: Clock = pass_clock(self._device)
            limits = self._limits(name, decoded)
            with Noise(self._device) as noise:
                turn, times, state_bytes = session.decode(name, limits, sampler(name), clock, reference)
            _check_same(decoded, turn)
            if decoded is None or decoded is earlier:
                decoded = Decoded(turn, order, state_bytes)
            if wall:
                decoded.wall, decoded.noise = times, noise.fields
            if times.phases_s is not None:
                decoded.attributed = times
        assert decoded is not None and decoded is not earlier  # there is at least one pass
        return decoded

    def _limits(self, name: str, before: Decoded | None) -> Limits:
        """Those of the run; a turn that was decoded before is drafted as it was then."""
        chooser = self.choosers.get(name)
        if chooser is not None and before is not None:
            chooser = AsBefore([each.asked or 0 for each in before.turn.rounds])
        return replace(self._conditions.limits, k=self.k_of(name), chooser=chooser)


def best(attempts: Sequence[Attempt]) -> int:
    """The attempt whose clocks count: the fewest drafters were disturbed in it, and those the least."""
    return min(range(len(attempts)), key=lambda i: (_disturbed(attempts[i]), _lost_s(attempts[i])))


def _disturbed(attempt: Attempt) -> int:
    return sum(decoded.disturbed for decoded in attempt.values())


def _lost_s(attempt: Attempt) -> float:
    return sum(decoded.lost_s for decoded in attempt.values())


def _check_same(before: Decoded | None, turn: Turn) -> None:
    """Raise MeasurementError if a turn decoded again is not the same again: its clocks would be another's."""
    if before is not None and (before.turn.output, before.turn.rounds) != (turn.output, turn.rounds):
        raise MeasurementError(
            f"two passes over one turn differ: {len(before.turn.rounds)} rounds, then {len(turn.rounds)}; the drafter "
            "does not answer the same when asked again"
        )
