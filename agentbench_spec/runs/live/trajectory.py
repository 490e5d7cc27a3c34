"""One live session: the baseline says what is done, the environment what comes of it, and every drafter decodes along.

Each turn is decoded by all drafters from one state, as in replay; the baseline's output is then the assistant message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentbench_spec.config import LiveConfig
from agentbench_spec.engine.session import Session
from agentbench_spec.errors import raise_interrupt
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import Ended
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge
from agentbench_spec.runs.fill import TurnState, describe
from agentbench_spec.runs.live.sandbox import Sandbox, Task
from agentbench_spec.runs.live.task_walk import Room, TaskWalk
from agentbench_spec.runs.replay import Measured, Replayer

Script = Callable[[Rollout, int], list[int]]
"""(session so far, index of the message asked for) -> ids that the target is made to say, in forced mode."""


class LiveReplayer:
    """Walks tasks, each turn decoded by all drafters."""

    def __init__(
        self, replayer: Replayer, judge: CallJudge, sandbox: Sandbox, limits: LiveConfig, script: Script | None = None
    ) -> None:
        """replayer: over the target, its history mode `live`; script: what the target says, in place of its own."""
        self.replayer, self._script = replayer, script
        self._room = Room(
            replayer.renderer, judge, sandbox, limits, replayer.workload, target=replayer.target.info.name
        )
        self._walk: TaskWalk | None = None

    @property
    def taken(self) -> Rollout | None:
        """The session of the last task, in which each message is what the target said; None: it said nothing."""
        return None if self._walk is None else self._walk.taken

    def replay(self, task: Task, first: int = 0) -> Iterator[Measured]:
        """The rows of each turn, all drafters together; those of the last say how the session ended.

        first: turns of the run before this session. Raises ContractError if the task cannot be started at all.
        """
        self._walk = None
        walk = self._walk = TaskWalk(self._room, task)
        session = Session(
            self.replayer.target, self.replayer.drafters, chunk_tokens=self.replayer.conditions.chunk_tokens
        )
        ended: Ended | None = None
        while ended is None:
            asked, state = walk.asked, TurnState(walk.turn, walk.message, first + walk.turn)
            try:
                done, ended = self._turn(session, state, walk)
            except Exception as error:  # one bad session never ends a run; the rows carry what happened
                raise_interrupt(error)
                done = self.replayer.unmeasured(asked, state, "error", describe(error))
                ended = _ended(done, "error", None)
            yield done

    def _turn(self, session: Session, state: TurnState, walk: TaskWalk) -> tuple[Measured, Ended | None]:
        """One turn measured, said and answered; how the session ended with it, None: it goes on."""
        asked = walk.asked
        prompt = self.replayer.renderer.prompt(asked, state.message)
        reply = self._script(asked, state.message) if self._script else []
        done = self.replayer.decode(session, state, asked, prompt, reply, walk.expected)
        if not state.decoded:
            return done, _ended(done, "context", walk.solved())
        step = walk.say(prompt, state.decoded[BASELINE].turn.output)
        for row in done.rows:
            row.env_s, row.env_error = step.env_s, step.env_error
        return done, None if step.ended is None else _ended(done, step.ended, step.solved)


def _ended(done: Measured, how: Ended, solved: bool | None) -> Ended:
    for row in done.rows:
        row.ended, row.solved = how, solved
    return how
