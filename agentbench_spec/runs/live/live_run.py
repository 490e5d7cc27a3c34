"""A live run from settings to a finished folder: tasks of an environment, each walked by the target's own calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentbench_spec.config import LiveConfig, RunConfig
from agentbench_spec.errors import ContractError, MeasurementError
from agentbench_spec.results.folder import completed_rollouts
from agentbench_spec.results.writer import RunWriter, refuse_early
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.runs.execute import Bench, Outcome, measure
from agentbench_spec.runs.live.sandbox import Sandbox, Task
from agentbench_spec.runs.live.taken_sessions import TakenSessions
from agentbench_spec.runs.live.trajectory import LiveReplayer
from agentbench_spec.runs.setup import Tell


def run_live(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    argv: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
) -> Outcome:
    """Walk the configured tasks and write the run folder, with the sessions taken in `live.jsonl`.

    Raises ConfigError for anything in the settings, the data or the folder that cannot be used, ContractError for a
    broken environment.
    """
    refuse_early(folder, config.model_dump(mode="json"), resume=resume)
    tell(f"listing the tasks of {config.workload.name}")
    with open_sandbox(config) as sandbox:
        bench = Bench.open(config, tell, workload=sandbox.name)
        judge = bench.replayer.judge
        if judge is None:
            raise MeasurementError("a live run needs a judge of calls")
        replayer = LiveReplayer(bench.replayer, judge, sandbox, limits_of(config))
        first = [_opening(sandbox, sandbox.tasks[0])]
        rounds = config.measure.rounds
        return measure(
            config,
            folder,
            bench,
            first,
            task_facts(sandbox),
            lambda writer: _walk_all(writer, replayer, sandbox.tasks, tell, rounds=rounds),
            resume=resume,
            argv=argv,
            tell=tell,
        )


def open_sandbox(config: RunConfig) -> Sandbox:
    """The configured tasks in a process of their own. Raises what `Sandbox` does."""
    given, live = config.workload, config.live
    return Sandbox(
        given.name,
        given.options,
        limit=given.limit,
        seed=config.measure.seed,
        step_s=live.step_s,
        memory_bytes=live.memory_bytes,
    )


def limits_of(config: RunConfig) -> LiveConfig:
    """Where the sessions of a run end that do not end by themselves."""
    return config.live.model_copy(update={"turns": config.replay.max_turns or config.live.turns})


def _opening(sandbox: Sandbox, task: Task) -> Rollout:
    """How a task begins, for the warm-up."""
    tools, messages = sandbox.start(task.id)
    asked = (*messages, Message(role="assistant"))
    return Rollout(id=task.id, workload=sandbox.name, tools=tuple(tools), messages=asked)


def task_facts(sandbox: Sandbox) -> dict[str, Any]:
    """What the manifest says about the tasks."""
    listed = json.dumps([asdict(task) for task in sandbox.tasks], sort_keys=True, default=str)
    sources = {json.dumps({k: task.source.get(k) for k in ("name", "version")}): task for task in sandbox.tasks}
    return {
        "rollouts": len(sandbox.tasks),
        "sha256": hashlib.sha256(listed.encode()).hexdigest(),
        "sources": [json.loads(name) for name in sources],
        "left_out": sandbox.left_out,
    }


def _walk_all(writer: RunWriter, replayer: LiveReplayer, tasks: Sequence[Task], tell: Tell, *, rounds: bool) -> None:
    taken = TakenSessions(writer.folder, writer.completed)
    turns = completed_rollouts(writer.folder)
    first = 0
    for number, task in enumerate(tasks, 1):
        if task.id not in writer.completed:
            tell(f"task {number}/{len(tasks)}: {task.id}")
            turns[task.id] = _walk_into(writer, replayer, task, first, taken, rounds=rounds)
        first += turns.get(task.id, 0)


def _walk_into(
    writer: RunWriter, replayer: LiveReplayer, task: Task, first: int, taken: TakenSessions, *, rounds: bool
) -> int:
    """Walk one task and declare it complete, whatever came of it; returns its turns."""
    count = 0
    failure = ended = None
    try:
        for turn in replayer.replay(task, first):
            writer.turn(turn.rows, turn.rounds if rounds else ())
            count += 1
            failure = failure or next((row.error for row in turn.rows if row.status == "error"), None)
            ended = turn.rows[0].ended
    except ContractError as error:  # the task could not be started; the others may
        failure = str(error)
    if replayer.taken is not None:
        taken.keep(replayer.taken)
    writer.rollout_done(task.id, status="error" if failure else str(ended), error=failure)
    return count
