"""What a run shows while it goes on: a bar that moves inside a turn, and a line a turn where there are few."""

from __future__ import annotations

import pytest
from rowkit import make_row

from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.runs.progress import Progress, TurnTable


def rows(turn: int, **decode_s: float) -> list[TurnRow]:
    """Rows of one turn of 1,500 tokens of context and 10 emitted, by these seconds."""
    return [
        make_row(turn=turn, drafter=name, matched=[9], emitted=10, decode_s=spent, context_tokens=1500)
        for name, spent in decode_s.items()
    ]


def test_a_line_says_how_fast_each_method_was() -> None:
    """Fails if columns are mixed up, a speed-up is upside down, or what was not measured is a number."""
    table = TurnTable([BASELINE, "ngram", "dflash", "a_long_name"])
    assert table.header.split() == ["turn", "context", "none", "ms", "ngram", "dflash", "a_long_name"]
    line = table.line(3, rows(0, none=0.5, ngram=0.25, dflash=1.0))
    assert line.split() == ["3", "1,500", "50.0", "2.00", "0.50", "-"] and len(line) == len(table.header)
    failed = [
        make_row(drafter=name, status="error", decode_s=None, context_tokens=None) for name in (BASELINE, "ngram")
    ]
    assert table.line(4, failed).split() == ["4", "-", "-", "-", "-", "-"]


def test_few_turns_have_a_line_each_and_many_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if nothing is to be read for minutes of a short run, or a long run's log has a line a turn."""
    for turns, lines in ((2, 3), (100, 0)):
        with Progress({"a": turns}) as progress, progress.rollout("a"):
            for turn in range(2):
                progress.turn(rows(turn, none=0.5, ngram=0.25))
        said = [line for line in capsys.readouterr().err.splitlines() if "ngram" in line or "2.00" in line]
        assert len(said) == lines
    with Progress({"a": 2}, tell=lambda line: None) as progress, progress.rollout("a"):
        progress.turn(rows(0, none=0.5, ngram=0.25))
    assert not capsys.readouterr().err, "somebody else is told"


def test_the_bar_moves_inside_a_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if the bar stands still for the minute a turn takes, or counts a turn's parts and the turn itself."""
    with Progress({"a": 3, "b": 2}, done=["b"]) as progress:
        with progress.rollout("a"):
            seen = []
            for turn in range(2):
                for share in (0.0, 0.5):
                    progress.doing("decode with ngram", share)
                    seen.append(progress.done)
                progress.turn(rows(turn, none=0.5))
                seen.append(progress.done)
        assert seen == [2.0, 2.5, 3.0, 3.0, 3.5, 4.0] and progress.done == 5.0, "a turn that was not reached is over"
    assert "5/5" in capsys.readouterr().err.splitlines()[-1]
