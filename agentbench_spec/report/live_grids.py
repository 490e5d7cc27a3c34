"""The tables of live sessions: what came of the tasks, each task by every drafter, and τ turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

from agentbench_spec.report.grids import MOST_TURNS, NOTHING, Cell, Grid, number, of_judged, with_interval, word
from agentbench_spec.results.by_turn import tau_by_turn
from agentbench_spec.results.derived.tasks import DrafterTasks, Task, tasks_by_drafter
from agentbench_spec.results.metrics import BASELINE, by_drafter
from agentbench_spec.results.rows import TurnRow


def live_grids(rows: Sequence[TurnRow]) -> tuple[Grid, ...]:
    """The tables of a run's live sessions; none for a replay."""
    found = tasks_by_drafter(rows)
    if not found:
        return ()
    return _tasks_grid(found, greedy=rows[0].greedy), _each_task_grid(found), _turns_grid(rows)


def _tasks_grid(found: Sequence[DrafterTasks], *, greedy: bool) -> Grid:
    columns = (
        *("drafter", "solved", "turns a task", "tokens a task", "readable calls", "model, s a task"),
        *("environment, s a task", "speed-up of a task [95\u00a0%]", "environment included [95\u00a0%]"),
    )
    lines = tuple(
        (
            word(own.drafter),
            of_judged(own.solved),
            number(own.turns, 1),
            number(own.tokens, 0),
            of_judged(own.calls),
            number(own.wall_s),
            number(own.env_s),
            with_interval(own.alone.ratio, own.alone.interval),
            with_interval(own.with_environment.ratio, own.with_environment.interval),
        )
        for own in found
    )
    apart, plain = found[0].apart, any(own.drafter == BASELINE for own in found)
    notes = [_OF_EACH_ITS_OWN if apart else _OF_ONE_TRAJECTORY if plain else _OF_CLIENTS]
    notes += [] if greedy else ["Outputs are drawn at random, so seconds of a task differ by what was said, too."]
    notes += [f"{own.drafter}: {_ends(own)}." for own in found if apart or own.drafter == BASELINE]
    return Grid("Tasks by drafter", columns, lines, tuple(notes))


_OF_TASKS = (
    "Speed-up: seconds of plain decoding over the drafter's, prefill and ingest included, summed over the tasks that "
    "both were timed in; intervals leave one task out at a time."
)
_OF_ONE_TRAJECTORY = (
    "The calls of plain decoding are carried out, and every drafter decodes each turn from the same state: tasks, "
    f"turns and what was solved are those of one trajectory. {_OF_TASKS}"
)
_OF_EACH_ITS_OWN = (
    "The calls of every drafter are carried out: from the first output on that differs, a task is another trajectory, "
    f"of other turns, and is compared as a whole. {_OF_TASKS} Turns are paired where the prompt is the same."
)
_OF_CLIENTS = "A task is a session of a client, who alone knows whether it was solved, and what its tools took."


def _ends(own: DrafterTasks) -> str:
    return "how tasks ended: " + ", ".join(f"{how} {count}" for how, count in own.ends.items())


def _each_task_grid(found: Sequence[DrafterTasks]) -> Grid:
    """One line a task: what came of it, by drafter where trajectories part, and the seconds of every drafter."""
    first = next((own for own in found if own.drafter == BASELINE), found[0])
    by_name = {own.drafter: {task.name: task for task in own.tasks} for own in found}
    listed = first.tasks[:MOST_TURNS]
    told = list(by_name) if first.apart else [first.drafter]
    whose = [f"{name}: " if first.apart else "" for name in told]
    columns = ("task", *(who + what for who in whose for what in _CAME), *(f"{name}, s" for name in by_name))
    lines = tuple(
        (
            word(task.name),
            *(cell for name in told for cell in _what_came(by_name[name].get(task.name))),
            *(_wall(tasks.get(task.name)) for tasks in by_name.values()),
        )
        for task in listed
    )
    more = len(first.tasks) - len(listed)
    notes = (f"The first {MOST_TURNS} of {len(first.tasks)} are listed.",) if more else ()
    return Grid("Seconds of the model, task by task", columns, lines, notes)


_CAME = ("ended", "solved", "turns", "tokens", "environment, s")


def _what_came(task: Task | None) -> tuple[Cell, ...]:
    if task is None:
        return (Cell(NOTHING),) * len(_CAME)
    return (
        word(task.ended, "bad" if task.ended == "error" else ""),
        _verdict(task.solved),
        number(task.turns, 0),
        number(task.tokens, 0),
        number(task.env_s),
    )


def _verdict(solved: bool | None) -> Cell:
    return word(None if solved is None else "yes" if solved else "no", "good" if solved else "")


def _wall(task: Task | None) -> Cell:
    return Cell(NOTHING) if task is None else number(task.wall_s)


def _turns_grid(rows: Sequence[TurnRow]) -> Grid:
    """τ of every drafter at each live turn."""
    by_turn = {drafter: {own.turn: own for own in tau_by_turn(part)} for drafter, part in by_drafter(rows).items()}
    turns = sorted({turn for own in by_turn.values() for turn in own})
    lines = []
    for turn in turns:
        there = [own[turn] for own in by_turn.values() if turn in own]
        lines.append(
            (
                number(turn + 1, 0),
                number(max(own.rollouts for own in there), 0),
                number(there[0].context_tokens, 0),
                *(number(own[turn].tau if turn in own else None) for own in by_turn.values()),
            )
        )
    meaning = "Pooled over the tasks that came so far; repetition loops and turns without a round are left out."
    columns = ("turn, from 1", "tasks", "context tokens", *(f"τ {drafter}" for drafter in by_turn))
    return Grid("τ by live turn", columns, tuple(lines), (meaning,))
