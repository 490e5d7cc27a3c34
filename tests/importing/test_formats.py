"""Every format: message count, roles, calls, order, exact prompts, and the notes that say what was repaired."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from traces import DATA, calls, imported, noted, one, roles, write

from agentbench_spec.rollout import Message, Rollout

TWO_BASH = [("t1", "bash"), ("t2", "bash"), ("t3", "bash"), ("t4", "bash")]
ONE_FILE: dict[str, tuple[str, str, list[tuple[str, str]], list[str]]] = {
    "sweagent_v0.traj": ("swe_agent", "suuauau", [], ["last observation stands in the trajectory only"]),
    "sweagent_v1.traj": ("swe_agent", "suatatatat", TWO_BASH, ["prompts are the recorded queries", "list of parts"]),
    "sweagent_v1_elided.traj": ("swe_agent", "suatatatat", TWO_BASH, ["prompts are the recorded queries"]),
    "sweagent_v1_no_query.traj": ("swe_agent", "suatatatat", TWO_BASH, ["rewrote its history (last_n_observations)"]),
    "sweagent_v1_requery.traj": ("swe_agent", "suauata", [("t1", "bash"), ("t4", "bash")], ["recorded queries"]),
    "sweagent_v1_exit_cost.traj": (
        "swe_agent",
        "suatat",
        TWO_BASH[:2],
        ["the model was not asked", "recorded queries"],
    ),
    "sweagent_history_only.traj": ("swe_agent", "suauuau", [], ["demonstration: marked synthetic"]),
    "mini_v1.traj.json": ("mini_swe_agent", "suauauua", [], ["closing user message without text"]),
    "mini_v2_text.traj.json": ("mini_swe_agent", "uaua", [], ["role 'exit'"]),
    "mini_v2_tool.traj.json": (
        "mini_swe_agent",
        "suatatta",
        [("c1", "bash"), ("c2", "bash"), ("c3", "bash"), ("c4", "bash")],
        ["content is null", "put in call order (message 5)", "a call has no result (message 7)", "role 'exit'"],
    ),
    "mini_bare.traj.json": ("openai_chat", "suaua", [], []),
    "openhands_flat.jsonl": (
        "openhands",
        "suatattua",
        [("t1", "execute_bash"), ("t2", "execute_bash"), ("t3", "execute_bash"), ("t4", "finish")],
        ["kind 'recall'", "kind 'agent_state_changed'", "content is null", "a call has no result (message 8)"],
    ),
    "openhands_pairs.jsonl": (
        "openhands",
        "uata",
        [("event_1", "run"), ("event_3", "finish")],
        ["rebuilt from its action as a call (messages 1, 3)", "kind 'null'"],
    ),
    "openhands_old.jsonl": ("openhands", "uata", [("event_1", "run")], ["rebuilt from its action"]),
    "openhands_condensed.jsonl": (
        "openhands",
        "suatatatata",
        [("k1", "execute_bash"), ("k2", "execute_bash"), ("k3", "execute_bash"), ("k4", "execute_bash")],
        ["condensed: 2 earlier events", "kind 'condensation_request'", "condensed: 1 earlier events"],
    ),
    "openhands_orphan.jsonl": (
        "openhands",
        "utata",
        [("k1", "execute_bash"), ("k9", "execute_bash")],
        ["a result without an open call: kept (message 1)", "a call has no result (message 4)"],
    ),
    "swe_gym.jsonl": (
        "openai_chat",
        "suatatat",
        [("c", "execute_bash"), ("c#2", "execute_bash"), ("c#3", "str_replace")],
        ["used again: renamed (messages 4, 6)", "no object: kept as text", "not declared: str_replace"],
    ),
    "agent_memory.json": ("openai_chat", "uat", [("call_1", "bash_action")], ["reward item without a role"]),
    "agent_long_bench.jsonl": ("openai_chat", "uat", [("c1", "query")], ["declares no tools"]),
    "anthropic_blocks.json": (
        "openai_chat",
        "suattua",
        [("u1", "bash"), ("u2", "bash")],
        ["system prompt stood beside", "flat form"],
    ),
    "turns.jsonl": ("turns", "uaua", [], ["prompts only"]),
}


@pytest.mark.parametrize("name", ONE_FILE)
def test_file_with_one_rollout(name: str) -> None:
    """Fails if the format is mistaken, a message or call is lost, added or moved, or a repair is not noted."""
    format, expected_roles, expected_calls, notes = ONE_FILE[name]
    rollout = one(DATA / name)
    assert rollout.source["format"] == format
    assert roles(rollout) == expected_roles
    assert calls(rollout) == expected_calls
    assert [text for text in notes if not noted(rollout, text)] == []
    assert (rollout.notes == ()) == (notes == [])


def test_no_fixture_is_forgotten() -> None:
    """Fails if a fixture file is in no test of this module."""
    others = {"nebius_rows.json", "nebius_openhands_rows.json", "swe_smith.jsonl", "tau_bench.json"}
    others |= {"openai_chat.jsonl", "sharegpt.jsonl", "openhands_run"}
    assert {path.name for path in DATA.iterdir()} == set(ONE_FILE) | others


SEVERAL = {
    "swe_smith.jsonl": [
        ("swe_smith/lib__x.1.tool", "suatat", [("t1", "bash"), ("t4", "bash")]),
        ("swe_smith/lib__x.1.xml", "suaua", []),
        ("swe_smith/lib__x.1.ticks", "suaua", []),
    ],
    "tau_bench.json": [("tau_bench/0-0", "suatau", [("z1", "find")]), ("tau_bench/0-1", "ua", [])],
    "openai_chat.jsonl": [
        ("openai_chat/one", "uata", [("c1", "bash")]),
        ("openai_chat/two", "sua", []),
        ("openai_chat/3", "uata", [("call_1_0", "bash")]),
    ],
    "sharegpt.jsonl": [("sharegpt/sg1", "sua", []), ("sharegpt/sg2", "suata", [("call_2_0", "bash")])],
    "nebius_rows.json": [("nebius_rows/acme__lib-1", "suaua", []), ("nebius_rows/acme__lib-1#2", "sua", [])],
    "nebius_openhands_rows.json": [
        (
            "nebius_openhands_rows/traj-7",
            "suattaua",
            [("x1", "execute_bash"), ("x2", "execute_bash"), ("x3", "finish")],
        )
    ],
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("store", ["as it is", "gzip", "parquet"])
def test_file_with_rows(name: str, store: str, tmp_path: Path) -> None:
    """Fails if rows get lost, or are read otherwise from gzip (under a plain name) or parquet (with its nulls)."""
    path = DATA / name
    if store == "gzip":
        path = tmp_path / name
        path.write_bytes(gzip.compress((DATA / name).read_bytes()))
    elif store == "parquet":
        path = as_parquet(DATA / name, tmp_path / f"{name.partition('.')[0]}.parquet")
    rollouts, bad = imported(path)
    assert [(r.id, roles(r), calls(r)) for r in rollouts] == SEVERAL[name]
    assert [line.line for line in bad] == ([2] if name == "tau_bench.json" else [])


def as_parquet(source: Path, path: Path) -> Path:
    """The rows of a JSON or JSON-lines file as parquet; what arrow cannot hold as structs goes in as JSON text."""
    text = source.read_text("utf-8")
    rows = json.loads(text) if source.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    for row in rows:
        for key in {"tools", "functions", "info", "conversations"} & row.keys():
            row[key] = json.dumps(row[key]) if row[key] else None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_rows_keep_what_they_are_grouped_by() -> None:
    """Fails if labels, source or recorded argument text are lost."""
    rollout = imported(DATA / "nebius_rows.json")[0][1]
    assert rollout.labels == {
        "instance_id": "acme__lib-1",
        "model_name": "m-70b",
        "target": True,
        "exit_status": "submitted",
    }
    assert rollout.source["file"] == "nebius_rows.json" and rollout.source["row"] == 2
    assert len(rollout.source["sha256"]) == 64
    assert noted(rollout, "was taken: renamed 'nebius_rows/acme__lib-1#2'")
    call = imported(DATA / "swe_smith.jsonl")[0][0].messages[2].tool_calls[0]
    assert (call.arguments, call.raw_arguments) == ({"command": "ls"}, '{"command": "ls"}')


def test_thinking_blocks_beside_the_content_are_reasoning() -> None:
    """Fails if recorded thinking is left out because it stands in a field of its own."""
    assert one(DATA / "sweagent_v1_exit_cost.traj").messages[2].reasoning == "ls first"


def contents(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


def text_of(raw: dict[str, Any]) -> str:
    content = raw["content"]
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def test_prompts_equal_the_recorded_queries() -> None:
    """Fails if any prompt differs from what the file says the model saw: elided observations, failed attempts."""
    for name in ("sweagent_v1.traj", "sweagent_v1_elided.traj", "sweagent_v1_requery.traj"):
        raw = json.loads((DATA / name).read_text("utf-8"))
        rollout = one(DATA / name)
        queries = [[(m["role"], text_of(m)) for m in step["query"]] for step in raw["trajectory"]]
        points = rollout.decode_points()[-len(queries) :]
        assert [contents(rollout.context_at(i)) for i in points] == queries
        assert [rollout.messages[i].content for i in points] == [step["response"] for step in raw["trajectory"]]


def test_logged_completions_are_preferred_to_events() -> None:
    """Fails if exact prompts beside an output file are not used, used twice, or out of order (10 sorts before 2)."""
    rollouts, bad = imported(DATA / "openhands_run")
    assert bad == []
    assert [(r.id, r.source["format"], roles(r)) for r in rollouts] == [
        ("output/a__b-1", "llm_completions", "suatata"),
        ("output/c__d-2", "openhands", "suat"),
    ]
    exact = rollouts[0]
    folder = DATA / "openhands_run" / "llm_completions" / "a__b-1"
    for index, number in zip(exact.decode_points(), (1, 2, 10), strict=True):
        logged = json.loads((folder / f"model-{number}.json").read_text("utf-8"))
        assert contents(exact.context_at(index)) == [(m["role"], text_of(m)) for m in logged["messages"]]
    assert noted(exact, "1 logged calls that open with another message")
    assert [tool["function"]["name"] for tool in exact.tools] == ["execute_bash", "finish"]


@pytest.mark.parametrize("given", ["llm_completions", "llm_completions/a__b-1"])
def test_logged_completions_alone(given: str) -> None:
    """Fails if a folder of logged calls is read as one rollout per call."""
    rollouts, bad = imported(DATA / "openhands_run" / given)
    assert bad == [] and [(r.id, roles(r)) for r in rollouts] == [("a__b-1", "suatata")]


def test_condensation_is_replayed_as_it_was() -> None:
    """Fails if forgotten events stay in the prompt, the summary stands elsewhere, or the log itself loses them."""
    rollout = one(DATA / "openhands_condensed.jsonl")
    assert [m.content for m in rollout.messages] == [
        *("You are OpenHands.", "Fix", "Step 1.", "one", "Step 2.", "two", "Step 3.", "three", "Step 4.", "four"),
        "Done.",
    ]
    seen = [[m.content for m in rollout.context_at(i)] for i in rollout.decode_points()]
    opening = ["You are OpenHands.", "Fix"]
    assert seen == [
        opening,
        [*opening, "Step 1.", "one"],
        [*opening, "Looked around once.", "Step 2.", "two"],
        [*opening, "Looked around twice.", "two", "Step 3.", "three"],
        [*opening, "Looked around twice.", "two", "Step 3.", "three", "Step 4.", "four"],
    ]


def test_parallel_calls_of_one_response_are_one_turn() -> None:
    """Fails if events that share a response become several assistant messages."""
    turn = one(DATA / "openhands_flat.jsonl").messages[4]
    assert turn.content == "Two at once." and [call.id for call in turn.tool_calls] == ["t2", "t3"]


def test_results_between_parts_of_a_content() -> None:
    """Fails if calls, results or thinking in Anthropic's content blocks are lost."""
    rollout = one(DATA / "anthropic_blocks.json")
    assert rollout.messages[2].reasoning == "ls it is" and rollout.messages[2].content == "Looking."
    assert [(m.role, m.content, m.tool_call_id) for m in rollout.messages[3:6]] == [
        ("tool", "a.py", "u1"),
        ("tool", "/r", "u2"),
        ("user", "Go on.", None),
    ]
    assert rollout.tools[0]["function"]["parameters"]["type"] == "object"


def test_demonstration_replies_are_no_references() -> None:
    """Fails if the assistant messages of a demonstration pass for the run's own."""
    rollout = one(DATA / "sweagent_history_only.traj")
    assert [rollout.messages[i].synthetic for i in rollout.decode_points()] == [True, False]


def test_named_format_overrides_detection(tmp_path: Path) -> None:
    """Fails if --format is ignored, or a row of another format passes under it in silence."""
    both = {
        "id": "x",
        "messages": [],
        "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
    }
    path = write(tmp_path / "both.jsonl", both)
    assert "messages and conversations could each be" in str(imported(path)[1][0])
    write(path, {**both, "messages": None})
    assert roles(one(path, format="sharegpt")) == "ua"
    assert "unknown role None" in str(imported(path, format="openai_chat")[1][0])


def everything() -> list[Rollout]:
    return imported(DATA)[0]


def test_importing_a_folder_gives_every_rollout_an_id_of_its_own() -> None:
    """Fails if a folder's files are skipped or ids collide."""
    rollouts = everything()
    assert len({r.id for r in rollouts}) == len(rollouts) == 36


@pytest.mark.parametrize("name", ["once.jsonl", "once.jsonl.gz"])
def test_importing_its_own_output_changes_nothing(name: str, tmp_path: Path) -> None:
    """Fails if the importer is not idempotent: ids, notes, source, views, tools and text must all come back."""
    from agentbench_spec.rollout import write_rollouts

    first = everything()
    write_rollouts(tmp_path / name, first)
    again, bad = imported(tmp_path / name)
    assert bad == [] and again == first
    write_rollouts(tmp_path / f"again-{name}", again)
    assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()
