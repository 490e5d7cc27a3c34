"""The call columns of rows: filled in replay and from a server's answers, null where nothing was judged, reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from localmodel import session
from rowkit import make_row
from runkit import replay, rows_of

from agentbench_spec.report.grids import calls_grid
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import call_shares, summarise
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.toolcalls.families import family
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge
from agentbench_spec.serving.served_calls import judge_answer
from agentbench_spec.serving.stream import Answer, add_chat

COLUMNS = ("call_valid", "call_known", "call_args_valid", "call_same")


def said_of(row: TurnRow) -> tuple[bool | None, ...]:
    return tuple(getattr(row, name) for name in COLUMNS)


def test_the_record_is_judged_as_itself(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Forced decoding emits the record: fails if template, stop token, parser or comparison change one call of it."""
    done = replay(tiny, rollouts, tmp_path / "run", "--mode", "forced", "--max-new-tokens", 120)
    assert done.code == 0, done.err
    rows = rows_of(tmp_path / "run")
    assert {row.drafter for row in rows} == {"none", "ngram", "suffix"}
    assert {said_of(row) for row in rows} == {(True, True, True, True)}
    assert done.last["drafters"][0]["calls"] == {name: [9, 9] for name in COLUMNS}


def test_a_call_that_the_cap_cuts_is_not_valid(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """The planted offence: fails if half a call counts as one, or as none."""
    done = replay(tiny, rollouts, tmp_path / "run", "--mode", "forced", "--max-new-tokens", 10, "--drafter", "ngram")
    assert done.code == 0, done.err
    assert {said_of(row) for row in rows_of(tmp_path / "run")} == {(False, None, None, False)}


def chat(*deltas: dict[str, Any]) -> Answer:
    answer = Answer(sent_at=0.0)
    for delta in deltas:
        add_chat(answer, {"choices": [{"delta": delta}]}, at=1.0)
    return answer


def part(index: int | None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (chat(part(0, "ls"), part(0, None, '{"fol'), part(0, None, 'der": "d0"}')), (True, True, True, True)),
        (chat(part(None, "ls", '{"folder":'), part(None, None, ' "d0"}')), (True, True, True, True)),
        (chat(part(0, "ls", '{"folder": "d0"}'), part(1, "ls", "{}")), (True, True, True, False)),
        (chat(part(0, "rm", "{}")), (True, False, None, False)),
        (chat(part(0, "ls", '{"folder": ')), (False, None, None, False)),
        (chat({"content": "Done."}), (None, None, None, None)),
    ],
)
def test_calls_that_a_server_found(answer: Answer, expected: tuple[bool | None, ...]) -> None:
    """Fails if parts of a call are lost, two calls become one, or silence of a server is taken for no call."""
    row = make_row(drafter="none")
    judge_answer(row, answer, session("a"), 1, None)
    assert said_of(row) == expected


def test_calls_in_the_ids_of_a_server() -> None:
    """On the native route the text is ours to read; fails if it is not, or a void row is judged."""
    texts = {7: '<tool_call>{"name": "ls", "arguments": {"folder": "d0"}}</tool_call>', 8: "Done."}
    judge = CallJudge(family("hermes"), lambda ids: texts[ids[0]])
    found = []
    for first, status in ((7, "ok"), (8, "ok"), (7, "invalid")):
        row = make_row(drafter="none", status=status)
        judge_answer(row, Answer(sent_at=0.0, output_ids=[first]), session("a"), 1, judge)
        found.append(said_of(row))
    assert found == [(True,) * 4, (None, None, None, False), (None,) * 4]


def rows_of_calls() -> list[TurnRow]:
    judged: list[dict[str, Any]] = [
        dict.fromkeys(COLUMNS, True),
        {"call_valid": False, "call_same": False},
        {},
        {"call_valid": True, "call_known": True, "call_args_valid": False, "call_same": False},
        {"call_valid": True, "status": "error", "error": "x"},
    ]
    return [make_row(turn=turn, drafter="none", matched=[0], **fields) for turn, fields in enumerate(judged)]


def test_shares_count_what_was_judged() -> None:
    """Fails if turns without a call weigh in a share, or turns that do not count do."""
    shares = call_shares(rows_of_calls())
    assert shares is not None
    assert (shares.call_valid, shares.call_args_valid, shares.call_same) == ((2, 3), (1, 2), (1, 3))
    assert call_shares([make_row(drafter="none", matched=[0])]) is None


def test_the_report_says_them() -> None:
    """Fails if the page has no word on calls that were judged, or a table about calls of a run without any."""
    grid = calls_grid(summarise(rows_of_calls()))
    assert grid is not None
    assert [cell.text for cell in grid.rows[0]] == [
        "none",
        "3",
        "2 of 3 (67 %)",
        "2 of 2 (100 %)",
        "1 of 2 (50 %)",
        "1 of 3 (33 %)",
    ]
    assert calls_grid(summarise([make_row(drafter="none", matched=[0])])) is None


def test_a_rollout_without_tools_has_no_verdict() -> None:
    """Fails if a plain chat session is reported with tool calls."""
    plain: Rollout = session("a").model_copy(update={"tools": ()})
    row = make_row(drafter="none")
    judge_answer(row, chat(part(0, "ls", "{}")), plain, 1, None)
    assert said_of(row) == (None,) * 4
