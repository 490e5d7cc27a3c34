"""A rollout, turn by turn: one prefill, many decoders.

For each turn the prompt is rendered anew, only what earlier turns left undone is prefilled, and from that one state
every decoder runs in balanced order, the baseline among them. So all see the same context, the same anchor and the same
minute of the machine, and a turn's speed-up is a paired measurement. While something else disturbs the clocks of one,
the turn is decoded again by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.adaptive import AdaptiveK, RoundCost
from agentbench_spec.engine.ceiling import mean_maximum
from agentbench_spec.engine.lossless import TIE_TOLERANCE, Comparison, compare
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import RowSampler, choose, generator
from agentbench_spec.engine.session import Choose, Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ConfigError, raise_interrupt
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import RoundRow, Status, TurnRow
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge
from agentbench_spec.runs.attempts import Told, TurnDecoder, best
from agentbench_spec.runs.fill import (
    Conditions,
    DraftLimit,
    TurnState,
    describe,
    fill_calls,
    fill_comparison,
    fill_counts,
    fill_noise,
    fill_prefill,
    fill_times,
    identity,
    round_rows,
    said_ids,
    status_of,
)
from agentbench_spec.runs.order import balanced_order
from agentbench_spec.runs.round_costs import measure_round_costs


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn, all drafters: what goes into the run folder."""

    rows: list[TurnRow]
    rounds: list[RoundRow]


def rehearsal_tokens(limits: Limits) -> int:
    """Tokens `Replayer.rehearse` decodes at most: two full rounds, and never more than a turn may have."""
    return min(2 * (limits.k + 1), limits.max_new_tokens)


class Renders(Protocol):
    """Turns messages into the target's token ids; see `agentbench_spec.rollouts.render.Renderer`."""

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        """Ids of everything before message `index`, with the header that asks for it."""
        ...

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        """Ids of message `index` as the target would have to emit them."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """What was said, without the stop token."""
        ...


class Replayer:
    """Replays rollouts on one engine row of a target, for a set of open drafters."""

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter],
        renderer: Renders,
        conditions: Conditions,
        workload: str,
        judge: CallJudge | None = None,
    ):
        """judge: of the calls in outputs; None: nobody judges them.

        Raises ConfigError if the baseline is missing or the conditions contradict each other.
        """
        if BASELINE not in drafters:
            raise ConfigError(f"the baseline {BASELINE!r} must be among the drafters: every speed-up is against it")
        if conditions.decode_mode == "forced" and not conditions.sampling.greedy:
            raise ConfigError("decode_mode=forced has no target choice to sample: set temperature to 0")
        if conditions.decode_mode == "forced" and conditions.history_mode == "self":
            raise ConfigError("decode_mode=forced emits the record, so history_mode must be recorded")
        self.target, self.drafters, self.renderer = target, dict(drafters), renderer
        self.conditions, self.workload, self.judge = conditions, workload, judge
        self._told: Told = lambda doing, share: None
        self._decoder = TurnDecoder(conditions, target.info.device)
        self.choosers = self._decoder.choosers
        """By drafter, what decides the draft tokens of each round; the others always draft as `ks` or limits say."""
        self.ks = self._decoder.ks

    def tell(self, told: Told) -> None:
        """Have `told` called with what is about to be done, outside every clock; for a progress bar."""
        self._told = self._decoder.told = told

    def replay(self, rollout: Rollout, first: int = 0) -> Iterator[Measured]:
        """Each turn's rows, all drafters together; first: turns of the run before this rollout, which set the order.

        A fault of the target or the text ends this rollout, one of a drafter that drafter's part in it: the rows from
        there on carry the error, those of turns that were not reached say which turn it was.
        """
        session = Session(self.target, self.drafters, chunk_tokens=self.conditions.chunk_tokens)
        said: Rollout = rollout
        expected: list[int] = []
        points = rollout.decode_points()[: self.conditions.max_turns]
        for index, message in enumerate(points):
            state = TurnState(index, message, first + index)
            try:
                prompt = self.renderer.prompt(said, message)
                reply = said_ids(rollout, message, self.target.info.name) or self.renderer.reply(said, message)
                done = self.decode(session, state, rollout, prompt, reply, expected)
            except Exception as error:  # one bad rollout never ends a run; the row carries what happened
                raise_interrupt(error)
                yield self.unmeasured(rollout, state, "error", describe(error))
                yield from self._not_reached(rollout, points, index, describe(error))
                return
            yield done
            if state.decoded and self.conditions.history_mode == "self":
                output = state.decoded[BASELINE].turn.output
                said, expected = self._say(said, message, output), [*prompt, *output]
            else:
                expected = [*prompt, *reply]

    def decode(
        self,
        session: Session,
        state: TurnState,
        rollout: Rollout,
        prompt: list[int],
        reply: list[int],
        expected: Sequence[int],
    ) -> Measured:
        """One turn by every drafter; `state` then holds what each decoded, nothing if the turn cannot be measured.

        reply: what is emitted in forced mode; expected: what the prompt should begin with. Raises what the target does.
        """
        if problem := self._refusal(rollout, state.message, prompt):
            return self.unmeasured(rollout, state, *problem)
        state.drift_tokens = len(expected) - common_prefix(expected, prompt)
        self._measure(session, state, rollout, prompt, reply)
        return self._measured(session, rollout, state)

    def rehearse(self, session: Session, rollout: Rollout, name: str, prompt: Sequence[int]) -> None:
        """Decode a few tokens with one drafter, at the shapes of the run; the session keeps the prompt, no row is made.

        Nothing stops the decoding early: a turn that ended on its first token would leave the drafter cold. Raises
        what the drafter raises.
        """
        session.prefill(prompt, lambda logits: int(logits.argmax()))
        for why in session.failed.values():
            raise why
        tokens = rehearsal_tokens(self.conditions.limits)
        k = self._decoder.k_of(name)
        few = replace(self.conditions.limits, k=k, max_new_tokens=tokens, stop_ids=frozenset())
        session.decode(name, few, self._sampler(rollout, -1, name), Clock(self.target.info.device))

    def adapt(self, rollout: Rollout, name: str, prompt: Sequence[int]) -> dict[int, RoundCost]:
        """Have the draft tokens of one drafter chosen round by round; returns what rounds cost when warm, by K.

        Raises what the drafter raises.
        """
        drafter, sampler = self.drafters[name], partial(self._sampler, rollout, -1, name)
        costs = measure_round_costs(self.target, drafter, self.conditions.limits, prompt, sampler)
        if len(costs) > 1:
            self.choosers[name] = AdaptiveK(costs, f"{self.conditions.seed} {name}")
        return costs

    def _refusal(self, rollout: Rollout, message: int, prompt: Sequence[int]) -> tuple[Status, str] | None:
        """(status, why) if the turn cannot be measured at all."""
        need, window = len(prompt) + self.conditions.limits.max_new_tokens, self.target.info.max_positions
        flagged = self.conditions.beyond_window == "flag"
        if need > (self.target.capacity if flagged else min(window, self.target.capacity)):
            return "oversized", (
                f"{len(prompt)} prompt tokens + {self.conditions.limits.max_new_tokens} new ones exceed the target's "
                f"window of {window} (engine capacity {self.target.capacity})"
            )
        if self.conditions.decode_mode == "forced" and rollout.messages[message].synthetic:
            return "no_reference", "the recorded reply is a placeholder, not a record"
        return None

    def _measure(
        self, session: Session, state: TurnState, rollout: Rollout, prompt: list[int], reply: list[int]
    ) -> None:
        """Prefill once, then run every decoder that can take this turn, in balanced order."""
        forced = self.conditions.decode_mode == "forced"
        if self.conditions.prefix_mode == "cold":
            session.reset()
        need = len(prompt) + self.conditions.limits.max_new_tokens
        for name in session.taking_part:
            limit = self.drafters[name].spec.max_positions
            if limit is not None and need > limit:
                session.drop(name, DraftLimit(f"{need} positions needed, the drafter supports {limit}"))
        chooser = self._chooser(rollout, state.index, reply[0] if forced else None)
        self._told(f"prefill to {len(prompt):,} tokens", 0.0)
        state.prefill = session.prefill(prompt, chooser)
        if BASELINE in session.failed:
            raise session.failed[BASELINE]
        order = balanced_order(list(self.drafters), state.number, self.conditions.seed)
        order = [name for name in order if name in session.taking_part]
        sampler = partial(self._sampler, rollout, state.index)
        state.attempts = self._decoder.decode(session, order, sampler, reply if forced else None, state.failed)
        state.attempt = best(state.attempts)

    def _sampler(self, rollout: Rollout, turn: int, drafter: str) -> RowSampler:
        device = self.target.info.device
        parts = [(self.conditions.seed, rollout.id, turn, drafter, row) for row in range(self.target.rows)]
        return RowSampler(self.conditions.sampling, [generator(device, *part) for part in parts])

    def _chooser(self, rollout: Rollout, turn: int, recorded: int | None) -> Choose:
        """How the turn's first token is chosen from the prompt's last logits."""

        if recorded is not None:
            return lambda logits: recorded
        parts = (self.conditions.seed, rollout.id, turn, "target")
        return lambda logits: choose(logits, self.conditions.sampling, *parts)

    def _say(self, said: Rollout, message: int, output: Sequence[int]) -> Rollout:
        """The rollout with message `message` replaced by what the target itself said."""
        spoken = Message(role="assistant", content=self.renderer.text(output), synthetic=True)
        return said.model_copy(update={"messages": (*said.messages[:message], spoken, *said.messages[message + 1 :])})

    def unmeasured(self, rollout: Rollout, state: TurnState, status: Status, why: str) -> Measured:
        """The rows of a turn of which nothing was measured, and why."""
        rows = [self._row(rollout, state, name, status=status, error=why) for name in self.drafters]
        return Measured(rows, [])

    def _not_reached(self, rollout: Rollout, points: Sequence[int], ended: int, why: str) -> Iterator[Measured]:
        for index, message in list(enumerate(points))[ended + 1 :]:
            state = TurnState(index, message)
            yield self.unmeasured(rollout, state, "not_reached", f"turn {ended} ended the rollout: {why}")

    def _measured(self, session: Session, rollout: Rollout, state: TurnState) -> Measured:
        """One row per drafter, compared with the baseline of this turn."""
        rows, rounds = {}, []
        for name, drafter in self.drafters.items():
            row = rows[name] = self._row(rollout, state, name)
            if name in state.decoded:
                decoded = state.decoded[name]
                row.order, row.draft_state_bytes = decoded.order, decoded.state_bytes
                fill_counts(row, decoded.turn)
                fill_times(row, decoded, fused_ingest=drafter.spec.fused_ingest)
                fill_noise(row, state)
                if self.judge is not None:
                    plain = state.decoded[BASELINE].turn.output if self.conditions.history_mode == "live" else None
                    fill_calls(row, self.judge.of_ids(rollout, state.message, decoded.turn.output, plain))
                rounds += round_rows(row, decoded)
            else:
                why_out = state.failed.get(name) or session.failed[name]
                row.status, row.error = status_of(why_out), describe(why_out)
        ceilings: dict[tuple[int, ...], float | None] = {}
        for name, decoded in state.decoded.items():
            fill_comparison(rows[name], rows[BASELINE], self._compare(state, name))
            if self.conditions.ceiling:
                output = tuple(decoded.turn.output)
                if output not in ceilings:
                    ceilings[output] = mean_maximum(self.target, 0, self.target.lengths[0], output)
                rows[name].ceiling = ceilings[output]
        return Measured(list(rows.values()), rounds)

    def _row(self, rollout: Rollout, state: TurnState, name: str, **fields: Any) -> TurnRow:
        shared = identity(self.target.info.name, self.workload, self.conditions, rollout, state)
        shared["k"] = self._decoder.k_of(name)
        row = TurnRow(**shared, drafter=name, k_policy="auto" if name in self.choosers else "fixed", **fields)
        fill_prefill(row, state, self.target.cache.bytes_per_token)
        if (row.context_tokens or 0) + self.conditions.limits.max_new_tokens > self.target.info.max_positions:
            row.labels["beyond_window"] = "yes"
        return row

    def _compare(self, state: TurnState, name: str) -> Comparison | None:
        """Losslessness; None where outputs are drawn at random and need not agree."""
        if not self.conditions.sampling.greedy:
            return None
        tolerance = self.conditions.tie_tolerance
        if tolerance is None:
            tolerance = TIE_TOLERANCE[self.target.info.dtype]
        turn, baseline = state.decoded[name].turn, state.decoded[BASELINE].turn
        start = turn.position - len(turn.output) + 1
        return compare(self.target, 0, start, turn.output, baseline.output, tolerance)
