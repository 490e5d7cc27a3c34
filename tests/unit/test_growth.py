"""Turn sizes: what survives of the previous turn, on templates that keep it and templates that do not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from localmodel import save_model, save_rollouts
from localmodel import session as local
from runkit import call

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout, ToolCall, View, write_rollouts
from agentbench_spec.rollouts.growth import measure_rollouts, plot_turns, summarize_turns, turn_sizes
from agentbench_spec.rollouts.sizes import rewrite, rollout_sizes, validate_rollouts


class Words:
    """One token a word; a reply ends in a stop token, which the next prompt keeps. `forgets` drops old results."""

    def __init__(self, forgets: bool = False) -> None:
        self._forgets, self._ids = forgets, {"<stop>": 0}

    def _encode(self, text: str) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in text.split()]

    def _show(self, message: Message) -> str:
        calls = " ".join(f"call:{call.name}" for call in message.tool_calls)
        return f"{message.content} {calls} " + ("<stop>" if message.role == "assistant" else "")

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        shown = list(rollout.context_at(index))
        if self._forgets:
            old = shown[:-1]
            shown = [m.model_copy(update={"content": "gone"}) if m.role == "tool" else m for m in old] + shown[-1:]
        return self._encode(" ".join(map(self._show, shown)))

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        return self._encode(self._show(rollout.messages[index]))


def session() -> Rollout:
    def call(number: int) -> Message:
        return Message(role="assistant", tool_calls=(ToolCall(name="ls", arguments={}, id=str(number)),))

    return Rollout(
        id="r",
        workload="w",
        labels={"category": "c"},
        messages=(
            Message(role="user", content="list the files"),
            call(1),
            Message(role="tool", content="a b c d"),
            call(2),
            Message(role="tool", content="e f"),
            Message(role="assistant", content="placeholder", synthetic=True),
        ),
    )


def test_an_append_only_template_loses_nothing() -> None:
    """Fails if kept, new or lost tokens are miscounted where the prompt simply grows."""
    first, second, third = turn_sizes(session(), Words())
    assert (first["prompt_tokens"], first["reply_tokens"]) == (3, 2)
    assert first["kept_tokens"] is None and first["reuse"] is None, "nothing came before the first turn"
    assert (second["prompt_tokens"], second["kept_tokens"], second["new_tokens"]) == (9, 5, 4)
    assert second["lost_tokens"] == third["lost_tokens"] == 0
    assert (third["prompt_tokens"], third["kept_tokens"]) == (13, 11)
    assert third["reply_tokens"] is None, "a placeholder is no recorded reply"


def test_a_template_that_rewrites_history_is_seen() -> None:
    """Fails if tokens that the next prompt does not begin with still count as reusable."""
    *_, third = turn_sizes(session(), Words(forgets=True))
    assert third["kept_tokens"] == 5, "up to the first result, which is gone"
    assert third["lost_tokens"] == 11 - 5
    assert third["new_tokens"] == third["prompt_tokens"] - 5


def test_summary_counts_windows_and_survival() -> None:
    """Fails if a window is counted where it is only reached, or shares are taken over turns without a predecessor."""
    stable = summarize_turns(_turns(Words()), windows=(9, 12)).loc["c"]
    assert (stable["turns"], stable["over_9"], stable["over_12"], stable["rollouts_over_9"]) == (3, 1, 1, 1)
    assert stable["append_only"] == 1.0
    assert stable["reuse"] == pytest.approx((5 + 11) / (9 + 13))
    forgetful = summarize_turns(_turns(Words(forgets=True))).loc["c"]
    assert forgetful["append_only"] == 0.5 and forgetful["lost_tokens_max"] == 6


def _turns(renderer: Words):  # type: ignore[no-untyped-def]
    return measure_rollouts([session()], renderer).turns


def test_without_a_target_nothing_is_called_a_token() -> None:
    """Fails if token columns are filled by a guess."""
    found = measure_rollouts([session()])
    assert found.turns is None and found.rollouts["max_prompt_tokens"].isna().all()
    assert measure_rollouts([session()], Words()).rollouts["max_prompt_tokens"].tolist() == [13]


def test_a_plot_is_written(tmp_path: Path) -> None:
    """Fails if no image comes out, or an unknown ending is not named."""
    turns = _turns(Words(forgets=True))
    path = plot_turns(turns, tmp_path / "new" / "plot.png", windows=(10,))
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
    with pytest.raises(ConfigError, match=r"plot\.xyz.*\.png"):
        plot_turns(turns, tmp_path / "plot.xyz")


def test_the_command_shows_growth_and_windows(tmp_path: Path) -> None:
    """Fails if `rollouts stats --target` shows no survival, miscounts a window, or its CSV has not a line a turn."""
    model, data = save_model(tmp_path / "model"), save_rollouts(tmp_path / "a.jsonl", local("a", 3), local("b", 2))
    plot = tmp_path / "growth.svg"
    stats = ("rollouts", "stats", data, "--target", model)
    done = call(*stats, "--windows", "1,99999", "--plot", plot)
    (group,) = done.last["turns"].values()
    assert (group["rollouts"], group["turns"], group["over_1"], group["over_99999"]) == (2, 5, 5, 0)
    assert 0 < group["reuse"] < 1 and plot.read_text().lstrip().startswith("<?xml")
    lines = call(*stats, "--output", "turns").out.splitlines()
    assert len(lines) == 6 and lines[0].split(",")[5:] == [
        *("prompt_tokens", "reply_tokens", "kept_tokens", "lost_tokens", "new_tokens", "reuse", "rewritten")
    ]


def test_tokens_without_a_target_are_refused(tmp_path: Path) -> None:
    """Fails if windows are counted in anything but a target's tokens, or a number that is none passes."""
    data = save_rollouts(tmp_path / "a.jsonl", local("a", 1))
    refused = call("rollouts", "stats", data, "--windows", "8192")
    assert refused.code == 2 and "--target" in refused.error
    wrong = call("rollouts", "stats", data, "--target", "x", "--windows", "8k")
    assert wrong.code == 2 and "found '8k'" in wrong.error


def elided() -> Rollout:
    """The session, whose agent cut the first result to a stub before its last turn."""
    stub = Message(role="tool", content="stub")
    return session().model_copy(update={"id": "e", "views": (View(at=5, start=2, stop=3, show=(stub,)),)})


def test_survival_is_counted_on_what_the_model_saw() -> None:
    """Fails if tokens of an elided result still count as the prompt's, or as kept from the turn before."""
    _, second, third = turn_sizes(elided(), Words())
    assert (second["rewritten"], third["rewritten"]) == (None, "history")
    assert third["prompt_tokens"] == 13 - 3, "the stub is one word, the result was four"
    assert (third["kept_tokens"], third["lost_tokens"], third["new_tokens"]) == (5, 6, 5)
    whole = session().model_copy(update={"views": elided().views[:0]})
    assert [row["rewritten"] for row in turn_sizes(whole, Words(forgets=True))] == [None, None, None]


def test_losses_are_told_apart_by_their_reason() -> None:
    """Fails if what the run itself cut is charged to the template, or the other way round."""
    turns = measure_rollouts([elided(), session()], Words()).turns
    assert turns is not None
    row = summarize_turns(turns).loc["c"]
    assert (row["rewritten_turns"], row["append_only"], row["lost_tokens_max"]) == (1, 0.75, 6)
    assert (row["lost_to_history"], row["lost_to_tools"], row["lost_to_template"]) == (6, 0, 0)
    forgetful = summarize_turns(_turns(Words(forgets=True))).loc["c"]
    assert (forgetful["rewritten_turns"], forgetful["lost_to_history"], forgetful["lost_to_template"]) == (0, 0, 6)


def test_sizes_count_views_sections_and_what_is_seen_at_once() -> None:
    """Fails if a rewritten history is sized as if the whole record had been in the prompt."""
    plain, cut = rollout_sizes(session()), rollout_sizes(elided())
    assert [(row["views"], row["rewritten_turns"], row["sections"]) for row in (plain, cut)] == [(0, 0, 1), (1, 1, 2)]
    assert plain["characters"] == cut["characters"]
    assert plain["max_prompt_characters"] - cut["max_prompt_characters"] == len("a b c d") - len("stub")


def test_a_view_that_changes_nothing_is_no_rewrite_and_changed_tools_are() -> None:
    """Fails if views are counted in place of what they do, or a new tool list, which changes the prompt's first block,
    passes for growth."""
    same = session().model_copy(update={"views": (View(at=5, start=2, stop=3, show=(2,)),)})
    assert rewrite(same, 3, 5) is None
    tool = {"type": "function", "function": {"name": "ls"}}
    messages = list(session().messages)
    messages[4] = messages[4].model_copy(update={"tools": (tool,)})
    changed = session().model_copy(update={"messages": tuple(messages)})
    assert (rewrite(changed, 1, 3), rewrite(changed, 3, 5)) == (None, "tools")
    kept = changed.model_copy(update={"tools": (tool,)})
    assert rewrite(kept, 3, 5) is None, "the same list again changes nothing"


def test_validation_counts_sections(tmp_path: Path) -> None:
    """Fails if `rollouts validate` passes over a history that was not append-only."""
    path = tmp_path / "elided.jsonl"
    write_rollouts(path, [elided(), session()])
    report = validate_rollouts(path)
    assert (report.viewed, report.views, report.rewritten_turns, report.sections) == (1, 1, 1, 3)
    done = call("rollouts", "validate", path)
    assert done.code == 0 and "turns that are not append-only: 1 (views: 1, in 1 rollouts" in done.err
    assert {key: done.last[key] for key in ("viewed", "views", "rewritten_turns", "sections")} == {
        "viewed": 1,
        "views": 1,
        "rewritten_turns": 1,
        "sections": 3,
    }


def test_the_command_shows_rewritten_history(tmp_path: Path) -> None:
    """Fails if table, JSON, CSV or plot of `rollouts stats` is silent about a rewritten history."""
    stub = Message(role="tool", content="cut", tool_call_id="c0")
    cut = local("cut", 4).model_copy(update={"views": (View(at=5, start=2, stop=3, show=(stub,)),)})
    model, data = save_model(tmp_path / "model"), save_rollouts(tmp_path / "a.jsonl", cut, local("whole", 4))
    plot = tmp_path / "growth.svg"
    stats = ("rollouts", "stats", data, "--target", model)
    done = call(*stats, "--plot", plot)
    (group,), (turns,) = done.last["groups"].values(), done.last["turns"].values()
    assert (group["views"], group["rewritten_turns"], group["sections"]) == (1, 1, 3)
    assert turns["rewritten_turns"] == 1 and turns["lost_to_history"] > 0 == turns["lost_to_tools"]
    (line,) = (line for line in done.err.splitlines() if "%" in line)
    assert line.split()[-3:] == [f"{turns[f'lost_to_{why}']:,.0f}" for why in ("history", "tools", "template")]
    assert "sections" in done.err
    assert plot.read_text().count('id="rewritten"') == 1
    rows = [line.split(",") for line in call(*stats, "--output", "turns").out.splitlines()]
    assert [(row[0], row[3]) for row in rows if row[-1] == "history"] == [("cut", "2")]


def test_many_rollouts_are_measured_as_few_are() -> None:
    """Fails if rows that are collected in portions lose their order, their types or one another."""
    many = [session().model_copy(update={"id": f"r{i}"}) for i in range(4100)]
    found = measure_rollouts(many)
    assert found.rollouts["id"].tolist() == [rollout.id for rollout in many]
    few = measure_rollouts(many[:3]).rollouts
    assert found.rollouts[:3].equals(few) and (found.rollouts.dtypes == few.dtypes).all()


def test_memory_does_not_grow_with_the_texts() -> None:
    """Fails if `rollouts stats` holds what it has measured: 40 MB of text must leave no trace."""
    small, large = (_peak_bytes(characters) for characters in (10, 100_000))
    assert large - small < 2_000_000


def _peak_bytes(characters: int) -> int:
    """Most memory held while 400 rollouts are measured, whose first message is so long."""
    tracemalloc.start()
    try:
        measure_rollouts(_sessions(characters))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _sessions(characters: int) -> Iterator[Rollout]:
    for i in range(400):
        message = Message(role="user", content=f"{i}" + "x" * characters)
        yield session().model_copy(update={"id": f"r{i}", "messages": (message, *session().messages)})
