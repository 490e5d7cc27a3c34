"""Live sessions task by task: how many were solved, in how many turns and seconds, and a drafter against the baseline.

A task is a cluster: its turns share a trajectory. Seconds are steady ones (docs/metrics.md), those of the environment
apart from those of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentbench_spec.results.costs import e2e_s, total_of
from agentbench_spec.results.intervals import Interval, cluster_of, ratio_interval
from agentbench_spec.results.metrics import BASELINE, by_drafter, rollout_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied

_Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """One task as one drafter went through it."""

    name: str
    cluster: Hashable
    turns: int
    tokens: int
    """Tokens said, in all turns."""
    wall_s: float | None
    """Prefill, ingest and decoding of all turns, of servers all of their answers; None where one was not timed."""
    env_s: float | None
    """What the environment took; None where a turn does not tell."""
    solved: bool | None
    """False also where the session ended in an error before anybody could tell; None where nobody judged it."""
    ended: str | None


@dataclass(frozen=True, slots=True)
class Versus:
    """Seconds of the baseline over a drafter's, on the tasks that both went through and were timed in."""

    tasks: int
    ratio: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class DrafterTasks:
    """The tasks of one drafter, and what they come to."""

    drafter: str
    tasks: tuple[Task, ...]
    calls: tuple[int, int]
    """(turns whose calls can be read, turns that call)."""
    alone: Versus
    """The model's seconds."""
    with_environment: Versus
    """The model's and the environment's: what a user waits."""
    apart: bool
    """True if each drafter's own calls were carried out, as with servers: trajectories part ways."""

    @property
    def solved(self) -> tuple[int, int]:
        """(tasks that were solved, tasks that were judged)."""
        judged = [task.solved for task in self.tasks if task.solved is not None]
        return sum(judged), len(judged)

    @property
    def turns(self) -> float:
        """Mean turns of a task."""
        return fmean(task.turns for task in self.tasks)

    @property
    def tokens(self) -> float:
        """Mean tokens said in a task."""
        return fmean(task.tokens for task in self.tasks)

    @property
    def wall_s(self) -> float | None:
        """Mean seconds of the model in a task, over the tasks that were timed."""
        return _mean(task.wall_s for task in self.tasks)

    @property
    def env_s(self) -> float | None:
        """Mean seconds of the environment in a task."""
        return _mean(task.env_s for task in self.tasks)

    @property
    def ends(self) -> dict[str, int]:
        """Tasks by how they ended, the most common first; those without a last turn are `unfinished`."""
        return dict(Counter(task.ended or "unfinished" for task in self.tasks).most_common())


def tasks_by_drafter(rows: Iterable[TurnRow]) -> list[DrafterTasks]:
    """The live tasks of each drafter, repetition loops included, for they are what happened; none in a replay."""
    live = [row for row in rows if row.history_mode == "live"]
    drafters = by_drafter(steadied(live))
    tasks = {drafter: _tasks(own) for drafter, own in drafters.items()}
    plain = tasks.get(BASELINE, {})
    return [
        DrafterTasks(
            drafter,
            tuple(tasks[drafter].values()),
            _calls(own),
            _versus(plain, tasks[drafter], environment=False),
            _versus(plain, tasks[drafter], environment=True),
            apart=own[0].backend != "engine",
        )
        for drafter, own in drafters.items()
    ]


def task_lines(found: Sequence[DrafterTasks]) -> list[str]:
    """What came of the tasks, for the screen: of each drafter whose own calls are carried out, else of the baseline."""
    return [_line(own) for own in found if own.apart or own.drafter == BASELINE]


def _line(own: DrafterTasks) -> str:
    ends = ", ".join(f"{count} {how}" for how, count in own.ends.items())
    took = "" if own.env_s is None else f"; the environment took {own.env_s:.2f} s a task"
    who = f"{own.drafter}: " if own.apart else ""
    return f"{who}tasks solved: {own.solved[0]} of {own.solved[1]}, in {own.turns:.1f} turns on average ({ends}){took}"


def _tasks(rows: Iterable[TurnRow]) -> dict[_Name, Task]:
    turns: dict[_Name, list[TurnRow]] = {}
    for row in rows:
        turns.setdefault(rollout_of(row), []).append(row)
    return {name: _task(name, sorted(own, key=lambda row: row.turn)) for name, own in turns.items()}


def _task(name: _Name, rows: Sequence[TurnRow]) -> Task:
    last = rows[-1]
    taken = [row for row in rows if row.status != "oversized"]  # which nobody took: the session ended at the window
    return Task(
        name=name[1],
        cluster=cluster_of(last),
        turns=len(taken),
        tokens=sum(row.output_tokens or 0 for row in taken),
        wall_s=total_of(map(_waited_s, taken)),
        env_s=total_of(row.env_s for row in taken),
        solved=False if last.ended == "error" else last.solved,
        ended=last.ended,
    )


def _waited_s(row: TurnRow) -> float | None:
    """Seconds of a turn; of a server's, from sending to the last chunk where decoding alone was not timed."""
    whole_s = e2e_s(row)
    if whole_s is None and row.ttft_s is not None and row.chunk_gaps_s is not None:
        return row.ttft_s + sum(row.chunk_gaps_s)
    return whole_s


def _calls(rows: Iterable[TurnRow]) -> tuple[int, int]:
    judged = [row.call_valid for row in rows if row.call_valid is not None]
    return sum(judged), len(judged)


def _versus(plain: dict[_Name, Task], own: dict[_Name, Task], *, environment: bool) -> Versus:
    parts = [
        (task.cluster, before_s, after_s)
        for name, task in own.items()
        if name in plain
        and (before_s := _seconds(plain[name], environment=environment))
        and (after_s := _seconds(task, environment=environment))
    ]
    if not parts or own is plain:
        return Versus(len(parts), None, None)
    ratio = sum(before_s for _, before_s, _ in parts) / sum(after_s for *_, after_s in parts)
    return Versus(len(parts), ratio, ratio_interval(parts))


def _seconds(task: Task, *, environment: bool) -> float | None:
    if not environment or task.wall_s is None:
        return task.wall_s
    return None if task.env_s is None else task.wall_s + task.env_s


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
