"""One thread that decodes requests one after the other, and writes a row for each.

A client that leaves ends its own request after the round at work; its row says so, and the next request finds the
engine as if nothing had been. The text of the last request stays on the engine's row, so a session that goes on is
prefilled from where it parts from that text only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Self

from torch import Tensor

from agentbench_spec.engine.rounds import Turn
from agentbench_spec.engine.sampling import RowSampler, choose, generator
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.timing import ClockMode, clocks
from agentbench_spec.errors import AgentBenchError, ConfigError
from agentbench_spec.results.rows import RoundRow, TurnRow
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.rollouts.toolcalls.families import family_of
from agentbench_spec.rollouts.toolcalls.verdicts import judge
from agentbench_spec.runs.contention import Noise
from agentbench_spec.runs.execute import Bench
from agentbench_spec.runs.fill import (
    Decoded,
    TurnState,
    describe,
    fill_calls,
    fill_counts,
    fill_prefill,
    fill_times,
    identity,
    round_rows,
)
from agentbench_spec.serving.bridge.chat_answer import Answer, Head, message_of, usage_of
from agentbench_spec.serving.bridge.chat_request import ChatRequest, Refused, read_message
from agentbench_spec.serving.bridge.conversations import Asked, Conversations

Script = Callable[[Rollout, int], list[int]]
"""(session so far, index of the message asked for) -> ids that the target is made to say, in forced mode."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The request is decoded from now on."""

    head: Head


@dataclass(frozen=True, slots=True)
class Said:
    """The output so far."""

    ids: list[int]


News = Begun | Said | Answer | Refused
"""What is told of a request; an answer, or that it was refused, comes last."""


@dataclass(slots=True)
class Job:
    """A request on its way."""

    request: ChatRequest
    tell: Callable[[News], None]
    """Takes the news, from another thread."""
    gone: Event = field(default_factory=Event)
    """Set when nobody waits for the answer any more."""


class Left(AgentBenchError):
    """The client is gone."""


GONE = 499
"""What nginx logs for a client that did not wait; nobody receives it."""


def _failed(error: Exception | SystemExit) -> Refused:
    status, code = (GONE, "left") if isinstance(error, Left) else (500, "server_error")
    return Refused(f"the engine failed: {describe(error)}", status=status, code=code)


class EngineRoom:
    """The engine of a server: `with EngineRoom(...) as room: room.take(job)`."""

    def __init__(
        self,
        bench: Bench,
        drafter: str,
        writer: RunWriter,
        *,
        sessions: int = 256,
        rounds: bool = False,
        script: Script | None = None,
    ) -> None:
        """drafter: its label in `bench`; sessions: that may go on; rounds: write a row a round, too.

        script: what the target says, in place of its own choice.
        """
        replayer = bench.replayer
        device = bench.target.info.device
        mode: ClockMode = "wall" if replayer.conditions.clock == "both" else replayer.conditions.clock
        self._conditions = replace(replayer.conditions, clock=mode, decode_mode="forced" if script else "generate")
        self._target, self._renderer = bench.target, bench.renderer
        self._name, self._drafter = drafter, bench.drafters[drafter]
        self._chooser = replayer.choosers.get(drafter)
        self._family = family_of(bench.renderer.template)
        self._workload, self._writer, self._rounds, self._script = replayer.workload, writer, rounds, script
        self._clocks, self._device = clocks(mode, device)[0], device
        self.sessions: list[Rollout] = []
        """Sessions that are closed."""
        self._talks = Conversations(self._workload, bench.target.info.name, sessions, self._close)
        self._session = self._fresh()
        self.unanswered: Counter[str] = Counter()
        """Requests of which no row tells, by the reason."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._count, self._guard, self._words = 0, Lock(), Lock()
        self._thread = Thread(target=self._work, name="engine", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answer what was taken, close every session, and stop."""
        self._jobs.put(None)
        self._thread.join()
        self._talks.close()

    @property
    def in_flight(self) -> int:
        """Requests that are decoded or wait."""
        return self._count

    def take(self, job: Job, most: int) -> None:
        """Have a request decoded when its turn comes. Raises Refused if `most` are in flight."""
        with self._guard:
            if self._count >= most:
                self.unanswered["too many in flight"] += 1
                raise Refused(f"{most} requests are in flight; try again later", status=429, code="rate_limit_exceeded")
            self._count += 1
        self._jobs.put(job)

    def text(self, ids: list[int]) -> str:
        """What was said with `ids`; may be asked from any thread."""
        with self._words:
            return self._renderer.text(ids)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.tell(self._answer(job))
            except Refused as refused:
                self.unanswered[refused.code or "refused"] += 1
                job.tell(refused)
            except (Exception, SystemExit) as error:  # a fault of one request is not the others'
                self.unanswered["server_error"] += 1
                job.tell(_failed(error))
            finally:
                with self._guard:
                    self._count -= 1

    def _answer(self, job: Job) -> Answer | Refused:
        """The answer, or what is told where it broke off: both have a row. Raises Refused where there is none."""
        if job.gone.is_set():
            raise Refused("the client left before its request was begun", status=GONE, code="left_while_waiting")
        asked = self._talks.place(job.request)
        prompt = self._prompt(asked)
        cap = self._cap(job.request, len(prompt))
        name = f"{asked.rollout.id}-{asked.turn}"
        head = Head(f"chatcmpl-{name}", self._target.info.name, int(time.time()))
        job.tell(Begun(head))
        row, error = self._decode(job, asked, prompt, cap)
        ids = row.output_ids or []
        message = message_of(self._family, self.text(ids), job.request.tools, f"call-{name}")
        asked.answered(read_message(message, "answer"), ids, prompt, whole=error is None)
        self._talks.keep(asked.talk)
        if error is not None:
            return _failed(error)
        ended = "tool_calls" if "tool_calls" in message else "length" if row.stop_reason == "length" else "stop"
        return Answer(head, message, ended, usage_of(row))

    def _prompt(self, asked: Asked) -> list[int]:
        try:
            with self._words:
                return self._renderer.prompt(asked.rollout, asked.index)
        except ConfigError as error:
            raise Refused(str(error), param="messages", code="invalid_messages") from error

    def _cap(self, request: ChatRequest, prompt_tokens: int) -> int:
        """Tokens the answer may have. Raises Refused if prompt and answer are longer than the context."""
        info, conditions = self._target.info, self._conditions
        flagged = conditions.beyond_window == "flag"
        window = self._target.capacity if flagged else min(info.max_positions, self._target.capacity)
        room = window - prompt_tokens
        wanted = request.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            asked = f" and {wanted} to be said" if wanted is not None else ""
            raise Refused(
                f"{prompt_tokens} tokens of messages{asked} are more than the context of {window}",
                param="messages",
                code="context_length_exceeded",
            )
        return min(conditions.limits.max_new_tokens, room) if wanted is None else wanted

    def _decode(
        self, job: Job, asked: Asked, prompt: list[int], cap: int
    ) -> tuple[TurnRow, Exception | SystemExit | None]:
        """Decode a request and write its row; the second: why it broke off."""
        before = asked.talk.text
        state = TurnState(asked.turn, asked.index, drift_tokens=len(before) - common_prefix(before, prompt))
        shared = identity(self._target.info.name, self._workload, self._conditions, asked.rollout, state)
        row = TurnRow(**shared, drafter=self._name, k_policy="auto" if self._chooser else "fixed")
        made: list[Turn] = []
        rounds: list[RoundRow] = []
        failure: Exception | SystemExit | None = None
        try:
            decoded = self._turn(job, asked, state, prompt, cap, made)
        except (Exception, SystemExit) as error:
            failure, row.status, row.error = error, "error", describe(error)
            fill_prefill(row, state, self._target.cache.bytes_per_token)
            if made:
                fill_counts(row, made[0])
            if not isinstance(error, Left):  # whatever failed may hold half of a turn
                self._session = self._fresh()
        else:
            fill_prefill(row, state, self._target.cache.bytes_per_token)
            self._fill(row, decoded, asked)
            rounds = round_rows(row, decoded) if self._rounds else []
        self._writer.turn([row], rounds)
        return row, failure

    def _fill(self, row: TurnRow, decoded: Decoded, asked: Asked) -> None:
        fill_counts(row, decoded.turn)
        fill_times(row, decoded, fused_ingest=self._drafter.spec.fused_ingest)
        row.draft_state_bytes = decoded.state_bytes
        for name, value in decoded.noise.items():
            setattr(row, name, value)
        tools = asked.request.tools
        fill_calls(row, judge(self._family.spoken(self.text(decoded.turn.output), tools), tools, None))

    def _turn(self, job: Job, asked: Asked, state: TurnState, prompt: list[int], cap: int, made: list[Turn]) -> Decoded:
        """Prefill and decode; `made` holds the turn from its first round on. Raises Left if the client is gone."""
        session, name, conditions = self._session, self._name, self._conditions
        if conditions.prefix_mode == "cold":
            session.reset()
        reply = self._script(asked.rollout, asked.index) if self._script else None
        parts = (conditions.seed, asked.rollout.id, state.index)

        def first(logits: Tensor) -> int | Tensor:
            return reply[0] if reply else choose(logits, conditions.sampling, *parts, "target")

        def heard(turn: Turn) -> None:
            made[:] = [turn]
            if job.gone.is_set():
                raise Left(f"the client left after {len(turn.output)} tokens")
            if job.request.stream:
                job.tell(Said(list(turn.output)))

        state.prefill = session.prefill(prompt, first)
        if name in session.failed:
            raise session.failed[name]
        if job.request.stream:
            job.tell(Said([state.prefill.anchor]))
        limits = replace(conditions.limits, max_new_tokens=cap, chooser=self._chooser)
        draws = [generator(self._device, *parts, name, row) for row in range(self._target.rows)]
        wall, kind = self._clocks
        with Noise(self._device) as noise:
            turn, times, state_bytes = session.decode(
                name, limits, RowSampler(conditions.sampling, draws), kind(self._device), reply, heard
            )
        attributed = times if times.phases_s is not None else None
        return Decoded(turn, 0, state_bytes, wall=times if wall else None, attributed=attributed, noise=noise.fields)

    def _fresh(self) -> Session:
        return Session(self._target, {self._name: self._drafter}, chunk_tokens=self._conditions.chunk_tokens)

    def _close(self, rollout: Rollout) -> None:
        self.sessions.append(rollout)
        self._writer.rollout_done(rollout.id, status="done")
