"""Views in rollout files: written, read back, and refused where they cannot be applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentbench_spec_workloads.token_window import cut_to_window
from traces import write

from agentbench_spec.errors import ContractError
from agentbench_spec.rollout import Message, Rollout, View, read_rollouts, write_rollouts

STUB = Message(role="user", content="stub")


def rollout(*views: View) -> Rollout:
    """User and assistant in turn, five of each: m0 ... m9."""
    messages = tuple(Message(role="assistant" if i % 2 else "user", content=f"m{i}") for i in range(10))
    return Rollout(id="r", workload="w", messages=messages, views=views)


def seen(made: Rollout, index: int) -> str:
    return " ".join(message.content for message in made.context_at(index))


def test_views_apply_from_their_decode_point_on() -> None:
    """Fails if a view counts too early, too late, or a later one does not take the place of those inside it."""
    made = rollout(
        View(at=3, start=0, stop=1, show=(STUB,)),
        View(at=5, start=2, stop=4),
        View(at=7, start=0, stop=4, show=(STUB, 3)),
        View(at=9, start=0, stop=4, show=(0, 1, 2, 3)),
    )
    assert [seen(made, i) for i in (1, 3, 5, 7, 9)] == [
        "m0",
        "stub m1 m2",
        "stub m1 m4",
        "stub m3 m4 m5 m6",
        "m0 m1 m2 m3 m4 m5 m6 m7 m8",
    ]


def test_without_views_the_context_is_what_came_before() -> None:
    """Fails if an append-only rollout is changed by the view logic."""
    made = rollout()
    assert made.context_at(5) == made.messages[:5]


def test_only_lines_with_views_are_of_the_new_schema(tmp_path: Path) -> None:
    """Fails if old readers would misread a rewritten history, or are locked out of plain rollouts."""
    viewed = rollout(View(at=5, start=2, stop=4, show=(STUB, 2)))
    plain = rollout().model_copy(update={"id": "plain"})
    write_rollouts(tmp_path / "t.jsonl", [viewed, plain])
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text("utf-8").splitlines()]
    assert [line["schema"] for line in lines] == [2, 1] and "views" not in lines[1]
    assert list(read_rollouts(tmp_path / "t.jsonl")) == [viewed, plain]


FAULTS: list[tuple[list[View], str, str]] = [
    ([View(at=4, start=0, stop=1)], "views[0].at", "expected a decode point"),
    ([View(at=99, start=0, stop=1)], "views[0].at", "expected a decode point"),
    ([View(at=5, start=0, stop=1), View(at=3, start=0, stop=1)], "views[1].at", "comes after 5"),
    ([View(at=5, start=3, stop=3)], "views[0].start", "0 <= start < stop <= at"),
    ([View(at=5, start=3, stop=6)], "views[0].start", "0 <= start < stop <= at"),
    ([View(at=5, start=-1, stop=2)], "views[0].start", "0 <= start < stop <= at"),
    ([View(at=5, start=0, stop=1, show=(5,))], "views[0].show", "outside 0..4"),
    ([View(at=5, start=0, stop=3), View(at=7, start=2, stop=4)], "views[1].start", "in two; cover all of it"),
    ([View(at=5, start=0, stop=5)], "views[0].show", "leaves no message"),
]


@pytest.mark.parametrize(("views", "field", "reason"), FAULTS)
def test_views_that_cannot_be_applied_are_refused(views: list[View], field: str, reason: str, tmp_path: Path) -> None:
    """Fails if a bad view is written, or read without naming its field."""
    made = rollout(*views)
    with pytest.raises(ContractError, match="'r': views"):
        write_rollouts(tmp_path / "t.jsonl", [made])
    bad: list[Any] = []
    path = write(tmp_path / "t.jsonl", {"schema": 2, **made.model_dump(exclude_defaults=True)})
    assert list(read_rollouts(path, on_bad=bad.append)) == []
    assert bad[0].field == field and reason in bad[0].reason


def test_a_rollout_cut_short_keeps_the_views_of_what_is_left(tmp_path: Path) -> None:
    """Fails if a cut leaves views of dropped turns behind, which no reader takes, or drops those still in force."""
    made = rollout(View(at=3, start=0, stop=1, show=(STUB,)), View(at=7, start=2, stop=4)).until(6)
    assert seen(made, 5) == "stub m1 m2 m3 m4" and len(made.messages) == 6
    write_rollouts(tmp_path / "t.jsonl", [made])
    assert list(read_rollouts(tmp_path / "t.jsonl")) == [made]


def test_window_of_a_history_that_shrinks() -> None:
    """Fails if a prompt beyond the window is kept because a later, condensed one fits."""
    made = rollout(View(at=7, start=0, stop=6, show=(STUB,)))
    cut = cut_to_window(made, lambda r, i: len(r.context_at(i)), window_tokens=4, reserve_tokens=0)
    assert cut is not None and cut.labels["last_prompt_tokens"] == 3
    assert [len(cut.context_at(i)) for i in cut.decode_points()] == [1, 3] and cut.views == ()


def test_unknown_field_of_a_view_suggests_the_near_one(tmp_path: Path) -> None:
    """Fails if a misspelt field of a view is compared with those of a message."""
    row = rollout().model_dump(exclude_defaults=True) | {"views": [{"at": 5, "start": 0, "stop": 1, "shows": []}]}
    bad: list[Any] = []
    list(read_rollouts(write(tmp_path / "t.jsonl", row), on_bad=bad.append))
    assert "is not a field of View; did you mean 'show'?" in str(bad[0])
