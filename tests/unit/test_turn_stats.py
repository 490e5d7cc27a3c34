"""Turn sizes: what survives of the previous turn, on templates that keep it and templates that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from localmodel import save_model, save_rollouts
from localmodel import session as local
from runkit import call

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout, ToolCall
from agentbench_spec.turn_stats import measure_rollouts, plot_turns, summarize_turns, turn_sizes


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
        shown = list(rollout.messages[:index])
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
    pytest.importorskip("matplotlib")
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
        *("prompt_tokens", "reply_tokens", "kept_tokens", "lost_tokens", "new_tokens", "reuse")
    ]


def test_tokens_without_a_target_are_refused(tmp_path: Path) -> None:
    """Fails if windows are counted in anything but a target's tokens, or a number that is none passes."""
    data = save_rollouts(tmp_path / "a.jsonl", local("a", 1))
    refused = call("rollouts", "stats", data, "--windows", "8192")
    assert refused.code == 2 and "--target" in refused.error
    wrong = call("rollouts", "stats", data, "--target", "x", "--windows", "8k")
    assert wrong.code == 2 and "found '8k'" in wrong.error
