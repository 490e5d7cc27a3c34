"""One task at work, whoever decodes: what a target says goes in, what it is asked next comes out.

A call that cannot be read, is too large, or that the environment does not carry out is answered in words, as real
agents do, and the session goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentbench_spec.config import LiveConfig
from agentbench_spec.errors import AgentBenchError
from agentbench_spec.results.rows import Ended
from agentbench_spec.rollout import Message, Rollout, ToolCall
from agentbench_spec.rollouts.environments import results
from agentbench_spec.rollouts.toolcalls.spoken import Spoken
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge, same_calls
from agentbench_spec.runs.live.sandbox import EnvironmentFault, Sandbox, Task
from agentbench_spec.runs.replay import Renders


@dataclass(frozen=True, slots=True)
class Room:
    """What tasks are walked with."""

    renderer: Renders
    judge: CallJudge
    sandbox: Sandbox
    limits: LiveConfig
    workload: str
    target: str
    """Its name, under which the session keeps what it emitted."""


@dataclass(frozen=True, slots=True)
class Step:
    """What came of one message of the target."""

    spoken: Spoken
    env_s: float
    """Seconds that the environment took."""
    env_error: str | None
    """What it did not carry out, and why."""
    ended: Ended | None
    """How the session ended with it; None: it goes on."""
    solved: bool | None
    """Once it ended."""


class TaskWalk:
    """A session from its start to its end; `taken` is what was taken of it so far, None before the first message."""

    def __init__(self, room: Room, task: Task) -> None:
        """Raises ContractError if the task cannot be started at all."""
        self._room = room
        tools, begun = room.sandbox.start(task.id)
        self._so_far = Rollout(
            id=task.id,
            workload=room.workload,
            source={**task.source, "live": {"target": room.target, "output_ids": {}}},
            tools=tuple(tools),
            messages=tuple(begun),
            labels=task.labels,
            notes=(f"live session of {room.target}: calls are its own, results those of the environment",),
        )
        self.asked = _with(self._so_far, Message(role="assistant"))
        """The session so far, and the message that is asked for."""
        self.expected: list[int] = []
        """Prompt and output of the turn before: what the next prompt should begin with."""
        self.taken: Rollout | None = None
        self.turn = 0
        self._tokens = self._alike = 0
        self._last: Spoken | None = None

    @property
    def message(self) -> int:
        """Index of the message that is asked for."""
        return len(self.asked.messages) - 1

    def say(self, prompt: Sequence[int], output: Sequence[int]) -> Step:
        """Take the target's output to `prompt` as the message that was asked for, and go on to the next turn.

        Raises ContractError if the environment cannot be made again, or cannot tell what came of the task.
        """
        room = self._room
        spoken = room.judge.family.spoken(room.judge.text(output), self.asked.tools_at(self.message))
        spoken = replace(spoken, calls=_numbered(spoken.calls, self.turn))
        self.asked.source["live"]["output_ids"][str(self.message)] = list(output)
        self.taken = said = self._said(spoken, output)
        self.expected, self._tokens = [*prompt, *output], self._tokens + len(output)
        started = time.perf_counter()
        follows, fault = self._follows(spoken)
        spent_s = time.perf_counter() - started
        ended = "done" if follows is None else self._limit(spoken)
        if ended is not None:
            return Step(spoken, spent_s, fault, ended, self.solved())
        self._so_far = _with(said, *follows or ())
        self.asked = _with(self._so_far, Message(role="assistant"))
        self.turn += 1
        return Step(spoken, spent_s, fault, None, None)

    def solved(self) -> bool:
        """Whether the task is solved as things stand. Raises ContractError if the environment cannot tell."""
        score = self._room.sandbox.score()
        if self.taken is not None and isinstance(score.get("submission"), str):
            self.taken.source["submission"] = score["submission"]
        return bool(score["solved"])

    def _said(self, spoken: Spoken, output: Sequence[int]) -> Rollout:
        """The session with what was said: its calls as calls if the template gives the same tokens back, else as text.

        So the next prompt begins with what was decoded, and a forced replay of the record emits the same tokens.
        """
        verbatim = Message(role="assistant", content=self._room.judge.text(output))
        forms = [_with(self._so_far, message) for message in (spoken.message(), verbatim)]
        same = (form for form in forms if self._gives(form, output))
        return next(same, forms[0] if spoken.calls else forms[1])

    def _gives(self, said: Rollout, output: Sequence[int]) -> bool:
        try:
            return self._room.renderer.reply(said, self.message)[: len(output)] == list(output)
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
            follows = self._room.sandbox.step(said)
        except EnvironmentFault as fault:
            why = str(fault)
            apology = results(said, lambda call: f"Error: the call was not carried out: {why}")
            return apology or [Message(role="user", content=f"Error: {why}")], why
        return follows if follows is None else list(map(self._cut, follows)), None

    def _too_much(self, calls: Sequence[ToolCall]) -> str | None:
        limits = self._room.limits
        if len(calls) > limits.calls:
            return f"a message may make {limits.calls} calls, this one makes {len(calls)}"
        size = sum(len(json.dumps(call.arguments, ensure_ascii=False).encode()) for call in calls)
        if size > limits.argument_bytes:
            return f"the arguments of a message may have {limits.argument_bytes:,} bytes, these have {size:,}"
        return None

    def _cut(self, message: Message) -> Message:
        raw, most = message.content.encode(), self._room.limits.result_bytes
        if len(raw) <= most:
            return message
        kept = raw[:most].decode(errors="ignore")
        return message.model_copy(update={"content": f"{kept}\n... cut here: {len(raw):,} bytes in all"})

    def _limit(self, spoken: Spoken) -> Ended | None:
        """The limit that this turn reached."""
        limits = self._room.limits
        self._alike = self._alike + 1 if self._last is not None and _alike(self._last, spoken) else 1
        self._last = spoken
        if spoken.called and self._alike >= limits.repeats:
            return "loop"
        if self._tokens >= limits.tokens:
            return "tokens"
        return "turns" if self.turn + 1 >= limits.turns else None


def _alike(one: Spoken, other: Spoken) -> bool:
    if one.faults or other.faults:
        return bool(one.faults and other.faults)
    return same_calls(one.calls, other.calls)


def _numbered(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """The calls with ids of their own, whatever ids the model made up."""
    return tuple(call.model_copy(update={"id": f"call_{turn}_{i}"}) for i, call in enumerate(calls))


def _with(rollout: Rollout, *messages: Message) -> Rollout:
    return rollout.model_copy(update={"messages": (*rollout.messages, *messages)})
