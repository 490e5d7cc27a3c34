"""BFCL rows, good and damaged (field case 23): what is built, what is named, what is never done in silence."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agentbench_spec_workloads.bfcl.apis import parse_call
from agentbench_spec_workloads.bfcl.tools import declaration
from agentbench_spec_workloads.bfcl_v3 import make
from bfcl_fixtures import DOCS, needs_bfcl, row, write_folder

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Rollout

pytestmark = needs_bfcl


def build(root: Path, category: str = "base", **options: Any) -> list[Rollout]:
    return list(make(data=root, categories=category, **options).rollouts())


def names(tools: tuple[dict[str, Any], ...]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def test_conversation(tmp_path: Path) -> None:
    """Fails if a call is not executed on the state the calls before it left, or a positional argument gets no name."""
    (built,) = build(write_folder(tmp_path, row()))
    roles = [m.role for m in built.messages]
    assert roles == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    echo, cat = built.messages[5], built.messages[7]
    assert echo.tool_calls[0].arguments == {"content": "hi", "file_name": "a.txt"}
    assert built.messages[8].content == '{"file_content": "hi"}'
    assert built.messages[8].tool_call_id == cat.tool_calls[0].id == "call_3"
    assert [i for i, m in enumerate(built.messages) if m.synthetic] == [3, 9]
    assert built.source["row"] == built.id and len(built.source["sha256"]) == 64
    assert built.source["executor"] == "bfcl-eval 2025.7.9" and built.source["version"] is None


def test_parallel_calls(tmp_path: Path) -> None:
    """Fails if calls of one message are run or answered out of order."""
    (built,) = build(write_folder(tmp_path, row()), parallel_calls=True)
    assert [len(m.tool_calls) for m in built.messages] == [0, 1, 0, 0, 0, 2, 0, 0, 0]
    assert [m.tool_call_id for m in built.messages[6:8]] == [c.id for c in built.messages[5].tool_calls]
    assert built.messages[7].content == '{"file_content": "hi"}'


def test_error_of_an_api_is_a_result(tmp_path: Path) -> None:
    """Fails if an exception inside an API ends the rollout instead of being what the model is shown."""
    (built,) = build(write_folder(tmp_path, row(ground_truth=[["cat(file_name=3, x=1)"], []])))
    assert built.messages[2].content.startswith("Error during execution: ")


def test_tools_are_rebuilt_from_the_classes(tmp_path: Path) -> None:
    """Field case 23: fails if a row without `function` gets no tools, or keeps the benchmark's schema dialect."""
    (built,) = build(write_folder(tmp_path, row()))
    assert names(built.tools) == [d["name"] for d in DOCS]
    assert built.tools[0]["function"]["parameters"]["type"] == "object"
    assert "response" not in built.tools[0]["function"]


def test_own_function_list_wins(tmp_path: Path) -> None:
    """Fails if a row's own `function` list is overridden by the classes' docs."""
    (built,) = build(write_folder(tmp_path, row(function=DOCS[:4]), docs=False))
    assert names(built.tools) == ["touch", "ls", "cat", "echo"]


def test_excluded_functions_are_hidden(tmp_path: Path) -> None:
    """Fails if `excluded_function` is ignored, or hides a function the gold calls need without an error."""
    (built,) = build(write_folder(tmp_path, row(excluded_function=["pwd"])))
    assert "pwd" not in names(built.tools)
    with pytest.raises(ConfigError, match=r"multi_turn_base_900: function: the row needs 'cat'"):
        build(write_folder(tmp_path, row(excluded_function=["cat"])))


def test_missed_function_comes_at_its_turn(tmp_path: Path) -> None:
    """Fails if the tool list changes at the wrong message, or a held-out function is offered from the start."""
    say = [{"role": "user", "content": "Make a.txt."}]
    late = row(
        question=[say, [], say], ground_truth=[[], ["touch('a.txt')"], ["ls()"]], missed_function={"1": ["touch"]}
    )
    (built,) = build(write_folder(tmp_path, late, category="miss_func"), "miss_func", tools="involved", distractors=1)
    adding = next(i for i, m in enumerate(built.messages) if m.tools is not None)
    assert "touch" not in names(built.tools_at(adding))
    assert names(built.tools_at(adding + 1)) == [*names(built.tools), "touch"]
    assert built.messages[adding].role == "user" and built.messages[adding - 1].synthetic
    assert "no function" in built.messages[adding - 1].content
    assert len(built.tools) == 2  # ls and one distractor


def test_involved_tools(tmp_path: Path) -> None:
    """Fails if the compact form lacks a needed function, is not labelled, or smaller forms are no subset."""
    root = write_folder(tmp_path, row())
    offered = [build(root, tools="involved", distractors=n)[0] for n in (0, 1, 2, 9)]
    assert names(offered[0].tools) == ["touch", "cat", "echo"]
    assert all(set(names(a.tools)) < set(names(b.tools)) for a, b in pairwise(offered[:3]))
    assert names(offered[3].tools) == [d["name"] for d in DOCS]
    assert offered[1].labels["tools"] == "involved"
    assert any("cut to the 3 functions the row needs and 1 distractors" in note for note in offered[1].notes)


FAULTS = [
    (row(id=...), "no id: id", "is missing"),
    (row(question=...), "multi_turn_base_900: question", "missing or empty"),
    (row(question=[]), "multi_turn_base_900: question", "missing or empty"),
    (row(question=["Hi", "Ho"]), "multi_turn_base_900: question[0]", "expected a list"),
    (row(question=[[{"role": "user"}], []]), "multi_turn_base_900: question[0][0]", "text content"),
    (row(question=[row()["question"][0], []]), "multi_turn_base_900: question[1]", "adds no function here"),
    (row(initial_config=...), "multi_turn_base_900: initial_config", "is missing"),
    (row(involved_classes=...), "multi_turn_base_900: involved_classes", "is missing"),
    (row(involved_classes=["Gorilla"]), "multi_turn_base_900: involved_classes", "unknown API class 'Gorilla'"),
    (row(involved_classes=["MathAPI"]), "multi_turn_base_900: function", "math_api.json does not exist"),
    (row(ground_truth=...), "multi_turn_base_900: ground_truth", "has no row with this id"),
    (row(ground_truth=[["ls()"]]), "multi_turn_base_900: question", "has 2 turns"),
    (row(ground_truth=[["ls("], []]), "multi_turn_base_900: ground_truth[0][0]", "is not a Python call"),
    (row(ground_truth=[["ls(a=open('x'))"], []]), "multi_turn_base_900: ground_truth[0][0]", "malformed"),
    (row(ground_truth=[["ls(True, a=False)"], []]), "multi_turn_base_900: ground_truth[0][0]", "given a twice"),
    (
        row(ground_truth=[["pwd()", "touch(1, 2)"], []]),
        "multi_turn_base_900: ground_truth[0][1]",
        "takes 1 arguments, found 2",
    ),
    (row(ground_truth=[["ls()"], ["rm('x')"]]), "multi_turn_base_900: function", "needs 'rm'"),
    (row(missed_function={"1": ["touch"]}), "multi_turn_base_900: question[1]", "must be empty"),
    (row(missed_function={"7": ["touch"]}), "multi_turn_base_900: missed_function.7", "does not exist"),
]


@pytest.mark.parametrize(("bad", "where", "words"), FAULTS)
def test_fault_is_named_and_left_out_when_lenient(tmp_path: Path, bad: dict[str, Any], where: str, words: str) -> None:
    """Field case 23: fails if a damaged row passes, is not named (file, line, id, field), or takes others along."""
    good = row(id="multi_turn_base_901")
    root = write_folder(tmp_path, good, bad)
    path = root / "BFCL_v3_multi_turn_base.json"
    with pytest.raises(ConfigError) as caught:
        build(root)
    assert str(caught.value).startswith(f"{path}:2: {where}: ")
    assert words in str(caught.value)
    workload = make(data=root, categories="base", strict=False)
    kept = list(workload.rollouts())
    assert kept[0].id in (good["id"], bad.get("id")) and all(len(r.messages) > 1 for r in kept)
    assert good["id"] in [r.id for r in kept]
    if "has 2 turns" in words:
        assert any("cut to 1 turns: 2 questions, 1 gold turns" in note for r in kept for note in r.notes)
    else:
        assert len(kept) == 1 and where in str(workload.bad_lines[0])


def test_duplicate_ids(tmp_path: Path) -> None:
    """Fails if two rows with one id become two rollouts whose result rows cannot be told apart."""
    with pytest.raises(ConfigError, match=r":2: multi_turn_base_900: id: stands in this file twice"):
        build(write_folder(tmp_path, row(), row()))


@pytest.mark.parametrize(
    "text", ["f(x) + 1", "a.f(1)", "f(*[1])", "f(**{'a': 1})", "f(x)", "1", "", "f(1); g(2)", "f(a=1, a=2)"]
)
def test_only_calls_of_literals_are_parsed(text: str) -> None:
    """Fails if a gold text can make the builder evaluate or guess anything."""
    with pytest.raises(ValueError):
        parse_call(text)


def test_schema_dialect() -> None:
    """Fails if a nested type keeps its old name, or a property that is called "type" is taken for one."""
    inner = {"type": "array", "items": {"type": "dict", "properties": {"type": {"type": "float"}}}}
    shape = {"type": "dict", "properties": {"type": {"type": "tuple"}, "x": inner, "any": {"type": "any"}}}
    made = declaration({"name": "f", "description": "d", "parameters": shape})["function"]["parameters"]
    assert made["properties"]["type"] == {"type": "array"}
    assert made["properties"]["x"]["items"]["properties"] == {"type": {"type": "number"}}
    assert made["properties"]["any"] == {}
    assert shape["type"] == "dict"
