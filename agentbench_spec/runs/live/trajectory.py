"""One live session: the baseline says what is done, the environment what comes of it, and every drafter decodes along.

Each turn is decoded by all drafters from one state, as in replay; the baseline's output is then the assistant message.
A call that cannot be read, is too large, or that the environment does not carry out is answered in words, as real
agents do, and the session goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from agentbench_spec.config import LiveConfig
from agentbench_spec.engine.session import Session
from agentbench_spec.errors import AgentBenchError, raise_interrupt
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import Ended
from agentbench_spec.rollout import Message, Rollout, ToolCall
from agentbench_spec.rollouts.environments import results
from agentbench_spec.rollouts.toolcalls.spoken import Spoken
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge, same_calls
from agentbench_spec.runs.fill import TurnState, describe
from agentbench_spec.runs.live.sandbox import EnvironmentFault, Sandbox, Task
from agentbench_spec.runs.replay import Measured, Replayer

Script = Callable[[Rollout, int], list[int]]
"""(session so far, index of the message asked for) -> ids that the target is made to say, in forced mode."""


@dataclass(slots=True)
class _Walk:
    """Where a session stands."""

    rollout: Rollout
    expected: list[int]
    """Prompt and output of the turn before: what the next prompt should begin with."""
    tokens: int = 0
    last: Spoken | None = None
    alike: int = 0
    """Messages in a row that did the same as the last one."""


class LiveReplayer:
    """Walks tasks; `taken` is the session of the last one, in which each message is what the target said."""

    def __init__(
        self, replayer: Replayer, judge: CallJudge, sandbox: Sandbox, limits: LiveConfig, script: Script | None = None
    ) -> None:
        """replayer: over the target, its history mode `live`; script: what the target says, in place of its own."""
        self.replayer, self.judge, self.sandbox, self.limits = replayer, judge, sandbox, limits
        self._script = script
        self.taken: Rollout | None = None

    def replay(self, task: Task, first: int = 0) -> Iterator[Measured]:
        """The rows of each turn, all drafters together; those of the last say how the session ended.

        first: turns of the run before this session. Raises ContractError if the task cannot be started at all.
        """
        self.taken = None
        tools, begun = self.sandbox.start(task.id)
        walk = _Walk(self._begun(task, tools, begun), [])
        session = Session(
            self.replayer.target, self.replayer.drafters, chunk_tokens=self.replayer.conditions.chunk_tokens
        )
        for turn in range(self.limits.turns):
            index = len(walk.rollout.messages)
            asked = _with(walk.rollout, Message(role="assistant"))
            state = TurnState(turn, index, first + turn)
            try:
                done, ended = self._turn(session, state, asked, walk)
            except Exception as error:  # one bad session never ends a run; the rows carry what happened
                raise_interrupt(error)
                yield _ended(self.replayer.unmeasured(asked, state, "error", describe(error)), "error", None)
                return
            yield done
            if ended is not None:
                return

    def _begun(self, task: Task, tools: Sequence[dict[str, object]], messages: Sequence[Message]) -> Rollout:
        target = self.replayer.target.info.name
        return Rollout(
            id=task.id,
            workload=self.replayer.workload,
            source={**task.source, "live": {"target": target, "output_ids": {}}},
            tools=tuple(tools),
            messages=tuple(messages),
            labels=task.labels,
            notes=(f"live session of {target}: calls are its own, results those of the environment",),
        )

    def _turn(self, session: Session, state: TurnState, asked: Rollout, walk: _Walk) -> tuple[Measured, Ended | None]:
        """One turn measured, said and answered; how the session ended with it, None: it goes on."""
        prompt = self.replayer.renderer.prompt(asked, state.message)
        reply = self._script(asked, state.message) if self._script else []
        done = self.replayer.decode(session, state, asked, prompt, reply, walk.expected)
        if not state.decoded:
            return _ended(done, "context", self._solved()), "context"
        output = state.decoded[BASELINE].turn.output
        spoken = self.judge.family.spoken(self.judge.text(output), asked.tools_at(state.message))
        spoken = replace(spoken, calls=_numbered(spoken.calls, state.index))
        asked.source["live"]["output_ids"][str(state.message)] = list(output)
        walk.rollout = self._said(asked, state.message, spoken, output)
        walk.expected, walk.tokens = [*prompt, *output], walk.tokens + len(output)
        self.taken = walk.rollout
        started = time.perf_counter()
        follows, fault = self._follows(spoken)
        spent_s = time.perf_counter() - started
        for row in done.rows:
            row.env_s, row.env_error = spent_s, fault
        ended = "done" if follows is None else self._limit(walk, spoken, state.index)
        if ended is not None:
            return _ended(done, ended, self._solved()), ended
        walk.rollout = _with(walk.rollout, *follows or ())
        return done, None

    def _said(self, asked: Rollout, index: int, spoken: Spoken, output: Sequence[int]) -> Rollout:
        """The session with what was said: its calls as calls if the template gives the same tokens back, else as text.

        So the next prompt begins with what was decoded, and a forced replay of the record emits the same tokens.
        """
        verbatim = Message(role="assistant", content=self.judge.text(output))
        forms = [_put(asked, index, message) for message in (spoken.message(), verbatim)]
        same = (form for form in forms if self._gives(form, index, output))
        return next(same, forms[0] if spoken.calls else forms[1])

    def _gives(self, said: Rollout, index: int, output: Sequence[int]) -> bool:
        try:
            return self.replayer.renderer.reply(said, index)[: len(output)] == list(output)
        except AgentBenchError:
            return False

    def _follows(self, spoken: Spoken) -> tuple[list[Message] | None, str | None]:
        """(what comes next, None at the end; what the environment did not carry out, and why)."""
        said = spoken.message()
        if spoken.faults:
            return [Message(role="user", content=f"Error: no call was made. {'; '.join(spoken.faults)}")], None
        if problem := self._too_much(spoken.calls):
            return results(said, lambda call: f"Error: {problem}"), problem
        try:
            follows = self.sandbox.step(said)
        except EnvironmentFault as fault:
            why = str(fault)
            apology = results(said, lambda call: f"Error: the call was not carried out: {why}")
            return apology or [Message(role="user", content=f"Error: {why}")], why
        return follows if follows is None else list(map(self._cut, follows)), None

    def _too_much(self, calls: Sequence[ToolCall]) -> str | None:
        if len(calls) > self.limits.calls:
            return f"a message may make {self.limits.calls} calls, this one makes {len(calls)}"
        size = sum(len(json.dumps(call.arguments, ensure_ascii=False).encode()) for call in calls)
        if size > self.limits.argument_bytes:
            return f"the arguments of a message may have {self.limits.argument_bytes:,} bytes, these have {size:,}"
        return None

    def _cut(self, message: Message) -> Message:
        raw, most = message.content.encode(), self.limits.result_bytes
        if len(raw) <= most:
            return message
        kept = raw[:most].decode(errors="ignore")
        return message.model_copy(update={"content": f"{kept}\n... cut here: {len(raw):,} bytes in all"})

    def _limit(self, walk: _Walk, spoken: Spoken, turn: int) -> Ended | None:
        """The limit that this turn reached."""
        walk.alike = walk.alike + 1 if walk.last is not None and _alike(walk.last, spoken) else 1
        walk.last = spoken
        if spoken.called and walk.alike >= self.limits.repeats:
            return "loop"
        if walk.tokens >= self.limits.tokens:
            return "tokens"
        return "turns" if turn + 1 >= self.limits.turns else None

    def _solved(self) -> bool:
        score = self.sandbox.score()
        if self.taken is not None and isinstance(score.get("submission"), str):
            self.taken.source["submission"] = score["submission"]
        return bool(score["solved"])


def _alike(one: Spoken, other: Spoken) -> bool:
    if one.faults or other.faults:
        return bool(one.faults and other.faults)
    return same_calls(one.calls, other.calls)


def _numbered(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """The calls with ids of their own, whatever ids the model made up."""
    return tuple(call.model_copy(update={"id": f"call_{turn}_{i}"}) for i, call in enumerate(calls))


def _with(rollout: Rollout, *messages: Message) -> Rollout:
    return rollout.model_copy(update={"messages": (*rollout.messages, *messages)})


def _put(rollout: Rollout, index: int, message: Message) -> Rollout:
    return rollout.model_copy(update={"messages": (*rollout.messages[:index], message)})


def _ended(done: Measured, how: Ended, solved: bool | None) -> Measured:
    for row in done.rows:
        row.ended, row.solved = how, solved
    return done
