"""Live sessions in figures: tasks are counted once, timed whole, compared task by task, and told on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from reportkit import timed, two_rollouts, write_run

from agentbench_spec.report.live_grids import live_grids
from agentbench_spec.report.page import build_report
from agentbench_spec.results.derived.tasks import DrafterTasks, task_lines, tasks_by_drafter
from agentbench_spec.results.rows import TurnRow

PLAIN_S, NGRAM_S, ENV_S = 0.12, 0.084, 0.36
"""Seconds of a turn: 0.06 of prefill and ingest, and 6 rounds of 10 ms or 2 of 12 ms; the environment's."""


def live_turn(task: str, turn: int, *, last: str | None = None, solved: bool | None = None) -> list[TurnRow]:
    more: dict[str, Any] = {"history_mode": "live", "env_s": ENV_S, "ended": last, "solved": solved, "call_valid": True}
    return [
        timed(task, turn, "none", [0] * 6, (0.0, 9.0, 0.5, 0.0, 0.5), **more),
        timed(task, turn, "ngram", [2, 2], (1.0, 10.0, 0.5, 0.25, 0.25), k=3, **more),
    ]


def three_tasks() -> list[TurnRow]:
    """One solved in two turns, one that loops after three, one that the window ends: its last turn was not decoded."""
    rows = [*live_turn("a", 0), *live_turn("a", 1, last="done", solved=True)]
    rows += [*live_turn("b", 0), *live_turn("b", 1), *live_turn("b", 2, last="loop", solved=False)]
    rows += live_turn("c", 0)
    for row in live_turn("c", 1, last="context", solved=False):
        kept = (
            "rollout",
            "turn",
            "message",
            "drafter",
            "k",
            "history_mode",
            "ended",
            "solved",
            "workload",
            "temperature",
        )
        conditions = ("decode_mode", "prefix_mode", "thinking", "clock")
        fields = {name: getattr(row, name) for name in (*kept, *conditions)}
        rows.append(TurnRow(**fields, status="oversized", error="too long"))
    return rows


def of(rows: list[TurnRow], drafter: str) -> DrafterTasks:
    return next(own for own in tasks_by_drafter(rows) if own.drafter == drafter)


def test_tasks_are_counted_and_timed_whole() -> None:
    """Fails if a task counts by its turns, a turn nobody took counts, or the environment's time is in the model's."""
    own = of(three_tasks(), "ngram")
    assert [(task.name, task.turns, task.solved, task.ended) for task in own.tasks] == [
        ("a", 2, True, "done"),
        ("b", 3, False, "loop"),
        ("c", 1, False, "context"),
    ]
    assert [task.wall_s for task in own.tasks] == pytest.approx([2 * NGRAM_S, 3 * NGRAM_S, NGRAM_S])
    assert [task.env_s for task in own.tasks] == pytest.approx([2 * ENV_S, 3 * ENV_S, ENV_S])
    assert (own.solved, own.turns, own.calls) == ((1, 3), 2.0, (6, 6))
    assert own.wall_s == pytest.approx(2 * NGRAM_S) and own.env_s == pytest.approx(2 * ENV_S)
    assert task_lines(tasks_by_drafter(three_tasks())) == [
        "tasks solved: 1 of 3, in 2.0 turns on average (1 done, 1 loop, 1 context); the environment took 0.72 s a task"
    ]


def test_a_task_is_one_cluster() -> None:
    """Fails if turns of one task count as independent, or a user's wait is without the environment's time."""
    own = of(three_tasks(), "ngram")
    assert own.alone.ratio == pytest.approx(PLAIN_S / NGRAM_S)
    assert own.with_environment.ratio == pytest.approx((PLAIN_S + ENV_S) / (NGRAM_S + ENV_S))
    assert own.alone.interval is not None and own.alone.interval.clusters == 3 == own.alone.tasks
    plain = of(three_tasks(), "none")
    assert plain.alone.ratio is None and plain.with_environment.interval is None


def test_a_task_that_was_not_timed_to_its_end_is_compared_with_nothing() -> None:
    """Fails if a drafter that failed in a turn gets the shorter time of the turns before it."""
    rows = three_tasks()
    failed = next(row for row in rows if (row.rollout, row.turn, row.drafter) == ("b", 1, "ngram"))
    failed.status, failed.decode_s = "error", None
    own = of(rows, "ngram")
    assert [task.wall_s is None for task in own.tasks] == [False, True, False]
    assert own.alone.tasks == 2 and own.alone.ratio == pytest.approx(PLAIN_S / NGRAM_S)


def test_the_page_tells_of_live_sessions_and_of_no_others(tmp_path: Path) -> None:
    """Fails if the section is missing, holds other numbers than the rows, or stands on the page of a replay."""
    page = re.sub(r"<[^>]+>", " ", build_report([write_run(tmp_path / "live", three_tasks())]))
    text = " ".join(page.split())
    assert "Live sessions Tasks by drafter" in text
    assert "none 1 of 3 (33 %) 2.0" in text and "1.43 [1.43, 1.43]" in text
    assert "how tasks ended: done 1, loop 1, context 1." in text
    assert "same as plain decoding" in text and "same as the record" not in text
    assert "Live sessions" not in build_report([write_run(tmp_path / "replay", two_rollouts())])


def test_tau_is_told_by_live_turn() -> None:
    """Fails if τ of a turn is not that of the tasks that came so far."""
    *_, turns = live_grids(three_tasks())
    assert turns.columns == ("turn, from 1", "tasks", "context tokens", "τ none", "τ ngram")
    assert [[cell.text for cell in line] for line in turns.rows] == [
        ["1", "3", "600", "1.00", "3.00"],
        ["2", "2", "1,200", "1.00", "3.00"],
        ["3", "1", "1,800", "1.00", "3.00"],
    ]


def test_sessions_that_nobody_judged_are_not_failures(tmp_path: Path) -> None:
    """Fails if the requests of a client, or a run that was killed, count as tasks that were not solved."""
    served = [row for row in (*live_turn("a", 0), *live_turn("b", 0)) if row.drafter == "ngram"]
    assert of(served, "ngram").solved == (0, 0)
    tasks, each, _ = live_grids(served)
    assert tasks.rows[0][1].text == each.rows[0][2].text == "–"
    assert "who alone knows whether it was solved" in tasks.notes[0]
    served[-1].ended = "error"
    assert of(served, "ngram").solved == (0, 1)
