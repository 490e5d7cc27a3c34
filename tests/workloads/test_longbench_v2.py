"""LongBench v2: subsets, the shard by counted tokens, the stated cut, and a prompt that its context cannot damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from template_kit import Bytes, assert_renders

from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Rollout


def row(name: str, characters: int, domain: str = "Code Repository Understanding", **more: Any) -> dict[str, Any]:
    lines = "".join(f"line {n} of $Q$ and {{context}}\n" for n in range(characters // 28 + 1))
    return {
        "_id": name,
        "domain": domain,
        "sub_domain": "s",
        "difficulty": "hard",
        "length": "short",
        "question": "Which $C_A$?",
        "choice_A": "one",
        "choice_B": "two",
        "choice_C": "three",
        "choice_D": "four",
        "answer": "C",
        "context": lines[:characters],
        **more,
    }


def load(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> list[Rollout]:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return list(load_workload("longbench_v2", data=path, **{"tokenizer": Bytes(), **options}).rollouts())


def test_only_the_four_subsets_whatever_their_case(tmp_path: Path) -> None:
    """Fails if a row of another domain is taken, or one is lost for the case of its name."""
    rows = [row("a", 900), row("b", 900, "MULTI-DOCUMENT QA"), row("c", 900, "Single-Document QA")]
    made = load(tmp_path, *rows, max_tokens=0)
    assert {r.id: r.labels["category"] for r in made} == {"longbench_v2-a": "code", "longbench_v2-b": "multi_document"}
    (only,) = load(tmp_path, *rows, max_tokens=0, subsets="multi_document")
    assert only.labels["answer"] == "C" and only.messages[1].synthetic


def test_the_shard_is_counted_not_guessed(tmp_path: Path) -> None:
    """Fails if a prompt outside the window is taken, or one inside is left out, at either end."""
    rows = [row(str(size), size) for size in (500, 1500, 1800, 2500, 40_000)]
    made = load(tmp_path, *rows, min_tokens=1500, max_tokens=2000)
    assert [r.id for r in made] == ["longbench_v2-1500", "longbench_v2-1800"]
    for rollout in made:
        assert rollout.labels["prompt_tokens"] == Bytes().prompt(rollout, 1)
        assert rollout.labels["shard"] == "1500-2000"


def test_a_cut_keeps_both_ends_and_says_so(tmp_path: Path) -> None:
    """Fails if a cut prompt does not fit, loses its question, its ends or whole lines, or does not say so."""
    whole = row("long", 30_000)
    (made,) = load(tmp_path, whole, min_tokens=1000, max_tokens=3000, cut=True)
    asked = made.messages[0].content
    assert 2700 < made.labels["prompt_tokens"] <= 3000
    assert asked.startswith("line 0 of") and asked.endswith("Question: Which $C_A$?")
    kept = asked.removesuffix("\n\nQuestion: Which $C_A$?").split("\n")
    assert set(kept) <= set(whole["context"].split("\n"))
    assert kept[-1] == whole["context"].split("\n")[-1]
    assert "cut from 30000 to" in made.notes[-1]


def test_a_context_cannot_damage_its_prompt(tmp_path: Path) -> None:
    """Fails if a placeholder inside a context is replaced, as chained replacement would do."""
    (made,) = load(tmp_path, row("a", 300), max_tokens=0)
    assert made.messages[0].content.count("$Q$") == row("a", 300)["context"].count("$Q$")
    assert made.messages[0].content == f"{row('a', 300)['context']}\n\nQuestion: Which $C_A$?"
    (chosen,) = load(tmp_path, row("a", 300), max_tokens=0, form="choices")
    assert "(C) three" in chosen.messages[0].content
    assert_renders(made)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Fails if a shard is told without a tokenizer, or a wrong option or field passes."""
    with pytest.raises(ConfigError, match="tokenizer: the shard of 32768 to 65536 tokens"):
        load(tmp_path, row("a", 900), tokenizer=None)
    with pytest.raises(ConfigError, match="subsets: unknown 'poems'"):
        load(tmp_path, row("a", 900), subsets="poems")
    with pytest.raises(ConfigError, match="min_tokens"):
        load(tmp_path, row("a", 900), min_tokens=5, max_tokens=4)
    with pytest.raises(ConfigError, match="context: is missing"):
        load(tmp_path, {k: v for k, v in row("a", 900).items() if k != "context"}, max_tokens=0)
    with pytest.raises(ConfigError, match=r"no row of .* matches"):
        load(tmp_path, row("a", 100))
