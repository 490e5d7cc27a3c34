"""Tasks through servers: what a server says is done, and what comes of it is what it is asked next.

Each worker carries its task out in a sandbox of its own. A session whose server died is walked anew, whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Self

from agentbench_spec.config import RunConfig
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import Status, TurnRow
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.toolcalls.verdicts import judge
from agentbench_spec.runs.fill import fill_calls
from agentbench_spec.runs.live.live_run import limits_of, open_sandbox, task_facts
from agentbench_spec.runs.live.sandbox import Sandbox, Task
from agentbench_spec.runs.live.task_walk import Room, Step, TaskWalk
from agentbench_spec.runs.setup import Tell
from agentbench_spec.runs.source import Source
from agentbench_spec.serving.server_rows import blank_row
from agentbench_spec.serving.servers import keeps_no_text
from agentbench_spec.serving.stream import RequestFailed
from agentbench_spec.serving.traffic import ServedReplayer, Walk


def read_tasks(config: RunConfig, tell: Tell = lambda line: None) -> Source:
    """The configured tasks as rollouts in which nothing was said yet. Raises what `Sandbox` does."""
    with open_sandbox(config) as sandbox:
        for line in sandbox.left_out:
            tell(f"left out: {line}")
        return Source(sandbox.name, [_unbegun(task, sandbox.name) for task in sandbox.tasks], task_facts(sandbox))


def _unbegun(task: Task, workload: str) -> Rollout:
    asked = (Message(role="assistant"),)
    return Rollout(id=task.id, workload=workload, source=task.source, labels=task.labels, messages=asked)


class Sandboxes:
    """A sandbox for every worker that is at a task, opened as they are needed; use it in a `with` block."""

    def __init__(self, config: RunConfig) -> None:
        self.limits = limits_of(config)
        self.taken: dict[str, Rollout] = {}
        """The session of each task that was walked."""
        self._config, self._lock = config, Lock()
        self._all: list[Sandbox] = []
        self._free: list[Sandbox] = []

    @contextmanager
    def one(self) -> Iterator[Sandbox]:
        """A sandbox that nobody else has. Raises what `Sandbox` does."""
        with self._lock:
            own = self._free.pop() if self._free else None
        if own is None:
            own = open_sandbox(self._config)
            self._all.append(own)
        try:
            yield own
        finally:
            self._free.append(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sandbox in self._all:
            sandbox.close()


class LiveTraffic(ServedReplayer):
    """Walks tasks on one server, each by what this server itself says. Used by several threads at once."""

    def __init__(self, plain: ServedReplayer, sandboxes: Sandboxes, draft: Mapping[str, Any] | None) -> None:
        """plain: how the server is asked; draft: the draft's config.json, whose positions bound a session."""
        super().__init__(plain.client, plain.server, plain.served, plain.ask, plain.renderer, plain.judge)
        self._sandboxes = sandboxes
        limit = None if keeps_no_text(draft) else (draft or {}).get("max_position_embeddings")
        self._draft_limit = limit if plain.server.speculates and isinstance(limit, int) else None

    def replay(self, rollout: Rollout) -> list[TurnRow]:
        """The rows of one session; those of the last turn say how it ended.

        rollout: a task, as `read_tasks` gives it. Raises ServerGone if the server died, or Unauthorised.
        """
        with self._sandboxes.one() as sandbox:
            return self._session(rollout, sandbox)

    def _session(self, task: Rollout, sandbox: Sandbox) -> list[TurnRow]:
        assert self.renderer is not None and self.judge is not None
        room = Room(
            self.renderer, self.judge, sandbox, self._sandboxes.limits, self.served.workload, self.served.target
        )
        rows = [blank_row(self.served, self.server, task, 0, 0)]
        with self.faults_into(rows[0]):
            walk = TaskWalk(room, Task(task.id, task.labels, task.source))
        if rows[0].status == "error":
            rows[0].ended = "error"
            return rows
        seen = Walk(walk.asked)
        rows = []
        while not rows or rows[-1].ended is None:
            row = blank_row(self.served, self.server, walk.asked, walk.turn, walk.message)
            rows.append(row)
            with self.faults_into(row):
                self._live_turn(seen, row, walk)
            if row.status == "error":
                row.ended = "error"
        if walk.taken is not None:
            self._sandboxes.taken[task.id] = walk.taken
        return rows

    def _live_turn(self, seen: Walk, row: TurnRow, walk: TaskWalk) -> None:
        tools = walk.asked.tools_at(walk.message)
        assert self.renderer is not None
        prompt = self.renderer.prompt(walk.asked, walk.message)
        seen.expected = walk.expected
        answer = self.ask_for(seen, row, prompt)
        if answer is None:
            row.ended, row.solved = "context", walk.solved()
            return
        self.heard(row, answer)
        if row.status == "error":
            return
        if answer.output_ids is None:
            raise RequestFailed("a live session needs output ids, and the server sent none")
        step = walk.say(prompt, answer.output_ids)
        _fill_step(row, step)
        if row.status in ("ok", "retracted"):
            own = step.spoken.calls if row.drafter == BASELINE else None
            fill_calls(row, judge(step.spoken, tools, own))

    def refusal(self, prompt: list[int]) -> tuple[Status, str] | None:
        """As for a recorded prompt, and where a session outgrows the draft."""
        need, limit = len(prompt) + self.ask.max_new_tokens, self._draft_limit
        if limit is None or need <= limit:
            return super().refusal(prompt)
        return "oversized", f"{need} positions are needed, the draft was made for {limit} and collapses beyond them"


def _fill_step(row: TurnRow, step: Step) -> None:
    row.env_s, row.env_error = step.env_s, step.env_error
    row.ended, row.solved = step.ended, step.solved
