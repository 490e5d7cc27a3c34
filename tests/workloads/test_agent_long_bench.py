"""AgentLongBench: every assistant message is a decode point, and what the path says is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from template_kit import assert_renders

from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Rollout


def call(number: int) -> dict[str, Any]:
    function = {"name": "query", "arguments": json.dumps({"attr": f"attr_{number}"})}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def row(**more: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Guess the item."},
        {"role": "user", "content": "Is it Item_3?"},
    ]
    for n in range(3):
        messages += [call(n), {"role": "tool", "tool_call_id": f"c{n}", "content": f'["Item_{n}", "Item_9"]'}]
    return {
        "id": "kf-c_64k_7",
        "sample_id": "7",
        "question_type": "Count Frequency(Env)",
        "messages": [*messages, {"role": "assistant", "content": "It is Item_9."}],
        "question": "How often was attr_2 wrong?",
        "answer": 4,
        **more,
    }


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def layout(root: Path, kind: str = "kf-c", length: str = "64k") -> Path:
    return root / "benchmark" / kind / length / "env_response" / "count_frequency_env.jsonl"


def load(path: Path, **options: Any) -> list[Rollout]:
    return list(load_workload("agent_long_bench", data=path, **options).rollouts())


def test_every_assistant_message_and_the_question_are_decode_points(tmp_path: Path) -> None:
    """Fails if a turn of the recorded rollout is lost, a call loses its result, or the question is not last."""
    (made,) = load(write(layout(tmp_path), row()))
    assert len(made.decode_points()) == 5
    assert [m.role for m in made.messages[-2:]] == ["user", "assistant"]
    assert made.messages[-2].content == "How often was attr_2 wrong?"
    assert made.messages[-1].content == "<answer>4</answer>"
    calls = [c for m in made.messages for c in m.tool_calls]
    results = [m for m in made.messages if m.role == "tool"]
    assert [c.id for c in calls] == [m.tool_call_id for m in results] == ["c0", "c1", "c2"]
    assert calls[2].arguments == {"attr": "attr_2"}
    assert_renders(made)


def test_the_path_labels_are_kept_and_their_absence_is_said(tmp_path: Path) -> None:
    """Fails if two slices can no longer be told apart, or a copied file pretends to know its slice."""
    (made,) = load(write(layout(tmp_path), row()))
    expected = {"names": "kf", "rounds": "c", "length": "64k", "part": "env_response", "slice": "kf-c/64k/env_response"}
    assert expected.items() <= made.labels.items()
    assert made.labels["category"] == "Count Frequency(Env)"
    assert made.id == "kf-c/64k/env_response/count_frequency_env/kf-c_64k_7"
    (copied,) = load(write(tmp_path / "copy" / "count_frequency_env.jsonl", row()))
    assert "slice" not in copied.labels and any("not known" in note for note in copied.notes)


def test_kinds_and_lengths_choose_files(tmp_path: Path) -> None:
    """Fails if files of another length are mixed in unasked."""
    for kind, length in (("kf-c", "64k"), ("ki-v", "64k"), ("kf-c", "1M")):
        write(layout(tmp_path, kind, length), row(id=f"{kind}_{length}"))
    assert {r.labels["length"] for r in load(tmp_path)} == {"64k"}
    assert [r.labels["slice"] for r in load(tmp_path, lengths="1M", kinds="kf-c")] == ["kf-c/1M/env_response"]
    with pytest.raises(ConfigError, match=r"holds kf-c/1M/env_response, .* only; choose them by kinds, lengths"):
        load(tmp_path, lengths="2M")
    with pytest.raises(ConfigError, match="lengths: unknown '65k'"):
        load(tmp_path, lengths="65k")


def test_the_older_function_form_is_not_lost(tmp_path: Path) -> None:
    """Fails if observations of role "function", which some templates render as nothing, vanish from the prompt."""
    old = row(messages=[*row()["messages"][:3], {"role": "function", "name": "query", "content": "Item_77 seen"}])
    (made,) = load(write(layout(tmp_path), old))
    assert made.messages[3].role == "tool" and made.messages[3].content == "Item_77 seen"
    assert any("role 'function'" in note for note in made.notes)
    assert_renders(made)


def test_a_system_prompt_replaces_the_recorded_one(tmp_path: Path) -> None:
    """Fails if the official runner's way, its own system message first, gives two system messages or none."""
    (made,) = load(write(layout(tmp_path), row()), system_prompt="Answer in a tag.")
    assert [m.content for m in made.messages if m.role == "system"] == ["Answer in a tag."]


def test_bad_rows_name_their_field(tmp_path: Path) -> None:
    """Fails if a row without question or messages passes."""
    for broken, field in (
        (row(question=None), "question"),
        (row(messages=[]), "messages"),
        (row(messages=[3]), "messages"),
    ):
        with pytest.raises(ConfigError, match=rf"count_frequency_env\.jsonl:1: {field}"):
            load(write(layout(tmp_path), broken))
