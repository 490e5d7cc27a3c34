"""SWE-bench: runs in the formats people publish, cut to a token window by the stated rule; and the long-prompt form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentbench_spec_workloads.token_window import cut_to_window
from template_kit import Bytes, assert_renders

from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Message, Rollout, ToolCall, write_rollouts
from agentbench_spec.runs.source import open_workload


def messages(steps: int, width: int = 300) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "Fix #1"}]
    for n in range(steps):
        function = {"name": "bash", "arguments": json.dumps({"command": f"cat f{n}.py"})}
        call = {"id": f"t{n}", "type": "function", "function": function}
        said.append({"role": "assistant", "content": f"Step {n}.", "tool_calls": [call]})
        said.append({"role": "tool", "tool_call_id": f"t{n}", "content": f"{n}:" + "x" * width + "\r\n"})
    return [*said, {"role": "assistant", "content": "Fixed."}]


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load(path: Path, name: str = "swe_bench", limit: int | None = None, **options: Any) -> list[Rollout]:
    return list(load_workload(name, data=path, **{"tokenizer": Bytes(), **options}).rollouts(limit=limit))


SMITH = {
    "instance_id": "a__b-1",
    "traj_id": "r1",
    "messages": json.dumps(messages(3)),
    "resolved": True,
    "patch": "diff",
}
NEBIUS = {
    "instance_id": "a__b-2",
    "trajectory": [
        {"role": "system", "text": None, "system_prompt": "You fix.", "mask": False, "cutoff_date": None},
        {"role": "user", "text": "Fix #2", "system_prompt": None, "mask": False, "cutoff_date": None},
        {"role": "ai", "text": "I look.\n```\nls\n```", "system_prompt": None, "mask": True, "cutoff_date": None},
    ],
}
OPENHANDS = {
    "instance_id": "a__b-3",
    "trajectory_id": "o1",
    "repo": "a/b",
    "trajectory": messages(2),
    "exit_status": "submit",
}
GYM = {"instance_id": "a__b-4", "messages": messages(1), "tools": [{"type": "function", "function": {"name": "bash"}}]}


@pytest.mark.parametrize("parquet", [False, True])
def test_the_formats_of_the_hub_sets(tmp_path: Path, parquet: bool) -> None:
    """Fails if a published set's row form loses a turn, its tools or its labels, as lines or padded parquet."""
    turns = {}
    for row in (SMITH, NEBIUS, OPENHANDS, GYM):
        path = tmp_path / f"{row['instance_id']}.{'parquet' if parquet else 'jsonl'}"
        if parquet:
            pq.write_table(pa.Table.from_pylist([row]), path)
        else:
            lines(path, row)
        (made,) = load(path)
        turns[row["instance_id"]] = len(made.decode_points())
        assert made.labels["instance_id"] == row["instance_id"] and made.workload == "swe_bench"
        assert_renders(made)
    assert turns == {"a__b-1": 4, "a__b-2": 1, "a__b-3": 3, "a__b-4": 2}


def test_a_run_is_cut_at_a_message_boundary(tmp_path: Path) -> None:
    """Fails if a kept prompt exceeds the window, a longer one would have fitted, or a message is shortened."""
    path = lines(tmp_path / "a.jsonl", {**SMITH, "messages": messages(30)})
    (whole,) = load(path, window_tokens=0, tokenizer=None)
    (made,) = load(path, window_tokens=6000, reserve_tokens=1000)
    last = made.decode_points()[-1]
    assert made.messages == whole.messages[: len(made.messages)]
    assert Bytes().prompt(made, last) == made.labels["last_prompt_tokens"] <= 5000
    following = whole.decode_points()[len(made.decode_points())]
    assert Bytes().prompt(whole, following) > 5000
    assert made.messages[-1].role == "tool" and made.messages[-2].tool_calls, "the last call keeps its result"
    dropped = len(whole.decode_points()) - len(made.decode_points())
    assert made.labels["dropped_turns"] == dropped and f"{dropped} of 31 decode points dropped" in made.notes[-1]


def test_runs_that_do_not_fit_or_are_too_short_are_left_out(tmp_path: Path) -> None:
    """Fails if a run whose first prompt exceeds the window, or whose last is under min_tokens, is used."""
    long_start = [{"role": "user", "content": "y" * 9000}, {"role": "assistant", "content": "?"}]
    rows = [
        {**SMITH, "traj_id": n, "messages": m}
        for n, m in (("long", long_start), ("short", messages(1)), ("ok", messages(20)))
    ]
    path = lines(tmp_path / "a.jsonl", *rows)
    options = {"window_tokens": 6000, "reserve_tokens": 500, "min_tokens": 3000}
    assert [r.id for r in load(path, **options)] == ["a__b-1/ok"]
    assert [r.id for r in load(path, limit=1, **options)] == ["a__b-1/ok"]


def test_the_papers_count_is_the_default_and_a_limit_wins(tmp_path: Path) -> None:
    """Fails if more than fifty runs are replayed unasked, or a limit is capped."""
    path = lines(tmp_path / "a.jsonl", *({**SMITH, "traj_id": str(n), "messages": messages(1, 5)} for n in range(60)))
    assert len(load(path)) == 50
    assert len(load(path, limit=55)) == 55
    assert len(load(path, count=None, window_tokens=0)) == 60


def test_no_tokens_without_a_tokenizer(tmp_path: Path) -> None:
    """Fails if a window in tokens is judged by characters."""
    with pytest.raises(ConfigError, match="tokenizer: the window of 65536 tokens counts tokens"):
        load(lines(tmp_path / "a.jsonl", SMITH), tokenizer=None)
    with pytest.raises(ConfigError, match="dataset: unknown 'swe'"):
        load_workload("swe_bench", dataset="swe", tokenizer=Bytes())
    with pytest.raises(ConfigError, match="reserve_tokens"):
        load(lines(tmp_path / "a.jsonl", SMITH), window_tokens=100, reserve_tokens=100)


def test_a_run_counts_with_its_own_target(tmp_path: Path) -> None:
    """Fails if a workload that counts tokens must be told the target twice, or an option given is overruled."""
    path = lines(tmp_path / "a.jsonl", SMITH)
    with pytest.raises(ConfigError, match="no such folder"):
        open_workload("swe_bench", {"data": path}, target=f"{tmp_path}/no-model")
    whole = open_workload("swe_bench", {"data": path, "tokenizer": Bytes()}, target=f"{tmp_path}/no-model")
    assert len(list(whole.rollouts())) == 1
    assert len(list(open_workload("gsm8k", {"offline_standin": True}, target="x").rollouts(limit=1))) == 1


def test_a_workload_is_given_a_counter_never_a_name(tmp_path: Path) -> None:
    """Fails if a name in the settings reaches a factory as text, a tokenizer is loaded that nothing counts with, one
    that cannot be had is told only after data was fetched, or a name given in Python is not told the way out."""
    path, nowhere = lines(tmp_path / "a.jsonl", SMITH), f"{tmp_path}/no-model"
    (cut,) = open_workload("swe_bench", {"data": path, "tokenizer": "smollm2-135m"}).rollouts()
    assert cut.labels["last_prompt_tokens"] > 0
    whole = open_workload("swe_bench", {"data": path, "tokenizer": nowhere, "window_tokens": 0})
    assert len(list(whole.rollouts())) == 1
    with pytest.raises(ConfigError, match="no such folder"):
        open_workload("swe_bench", {"data": tmp_path / "no-data", "tokenizer": nowhere})
    for wrong in ("smollm2-135m", 7):
        with pytest.raises(ConfigError, match="tokenizer: expected a TokenCounter"):
            load_workload("swe_bench", data=path, tokenizer=wrong)


def test_an_imported_file_keeps_ids_and_sources(tmp_path: Path) -> None:
    """Fails if a rollouts file written by the importer gets new ids, or loses where it came from."""
    call = ToolCall(name="ls", arguments={}, id="1")
    said = (Message(role="user", content="Fix"), Message(role="assistant", tool_calls=(call,)))
    mine = Rollout(id="mine/1", workload="imported", source={"name": "trace", "row": 4}, messages=said)
    write_rollouts(tmp_path / "mine.jsonl", [mine])
    (made,) = load(tmp_path / "mine.jsonl", window_tokens=0, tokenizer=None)
    assert (made.id, made.source, made.workload) == ("mine/1", mine.source, "swe_bench")


def test_a_window_larger_than_the_run_changes_nothing_but_labels(tmp_path: Path) -> None:
    """Fails if a run that fits is cut."""
    (whole,) = load(lines(tmp_path / "a.jsonl", SMITH), window_tokens=0, tokenizer=None)
    kept = cut_to_window(whole, Bytes().prompt, window_tokens=100_000, reserve_tokens=10)
    assert kept is not None and kept.messages == whole.messages and kept.labels["dropped_turns"] == 0
    assert cut_to_window(whole, Bytes().prompt, window_tokens=30, reserve_tokens=10) is None


def test_the_prompt_form_is_one_unchanged_text(tmp_path: Path) -> None:
    """Fails if the text is changed or cut, a prompt that does not fit is used, or an issue passes for a prompt."""
    rows = [{"instance_id": f"a__b-{n}", "text": "code\r\n" * n, "patch": "diff --git"} for n in (10, 1000)]
    path = lines(tmp_path / "a.jsonl", *rows)
    (made,) = load(path, "swe_bench_prompt", window_tokens=2000, reserve_tokens=500)
    assert made.messages[0].content == "code\r\n" * 10 and made.messages[1].content == "diff --git"
    assert made.workload == "swe_bench_prompt" and len(made.decode_points()) == 1
    assert len(load(path, "swe_bench_prompt", window_tokens=0, tokenizer=None)) == 2
    with pytest.raises(ConfigError, match="text: is missing: an issue alone is a short prompt"):
        load(lines(tmp_path / "b.jsonl", {"instance_id": "x", "problem_statement": "It fails."}), "swe_bench_prompt")
