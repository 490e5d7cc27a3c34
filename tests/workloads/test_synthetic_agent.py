"""Generated sessions: their tools really run, their size is the one asked for, and a stand-in says what it is."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from agentbench_spec_workloads.synthetic.scripted_agent import Shape, build_session, characters
from agentbench_spec_workloads.synthetic.world import TOOLS, World
from agentbench_spec_workloads.synthetic_agent import make
from template_kit import Bytes, assert_renders
from typer.testing import CliRunner

from agentbench_spec.cli import app
from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import available, load_workload
from agentbench_spec.rollout import Rollout, read_rollouts


def world() -> World:
    return World(random.Random("w"), files=4, lines=20, rows=50)


def session(shape: Shape, seed: int = 0) -> Rollout:
    return build_session(shape, name="s", workload="w", seed=seed, source={})


def test_calls_change_the_world() -> None:
    """Fails if a tool only pretends: an edit must be found by the next search, a stored key read back, SQL counted."""
    place = world()
    (old, path) = place.functions[0], next(iter(place.files))
    assert place.run("replace_text", {"path": path, "old": old, "new": "renamed_function"}) == f"{path}: 1 replaced"
    assert place.run("search", {"text": "renamed_function"}).startswith("1 matches")
    assert place.run("search", {"text": old}).startswith("0 matches")
    place.run("set_key", {"key": "a", "value": "7"})
    assert place.run("get_key", {"key": "a"}) == "7"
    place.run("query", {"sql": "DELETE FROM sales WHERE id > 10"})
    assert place.run("query", {"sql": "SELECT COUNT(*) AS n FROM sales"}) == "n\n10"


def test_a_bad_call_is_a_result_not_a_crash() -> None:
    """Fails if an error of a tool ends the session instead of being read by the agent."""
    place = world()
    assert "no tool" in place.run("format_disk", {})
    assert "KeyError" in place.run("get_key", {"key": "absent"})
    assert "Error" in place.run("query", {"sql": "SELECT FROM"})


def test_results_in_a_session_come_from_running_its_calls() -> None:
    """Fails if a recorded result is not what a fresh world gives for the same calls in the same order."""
    made = session(Shape(turns=24))
    agent_world = World(random.Random("0:s"), files=12, lines=2 * 1200 // 58 + 20, rows=6 * (2400 // 36) + 600)
    results = iter([m.content for m in made.messages if m.role == "tool"])
    calls = [call for m in made.messages for call in m.tool_calls]
    assert [agent_world.run(call.name, call.arguments) for call in calls] == list(results)
    assert {call.name for call in calls} <= {tool["function"]["name"] for tool in TOOLS}


def test_turns_and_context_are_what_was_asked_for() -> None:
    """Fails if the context is exceeded, or stays under nine tenths of what was asked for, or a turn is missing."""
    only_context = session(Shape(turns=None, context_characters=60_000))
    assert 54_000 < characters(only_context) <= 60_000
    both = session(Shape(turns=40, context_characters=100_000))
    assert len(both.decode_points()) == 40
    assert 85_000 < characters(both) <= 100_000
    assert len(session(Shape(turns=7)).decode_points()) == 7


def test_repetition_repeats_observations() -> None:
    """Fails if the share of repeated reads does not reach the texts: all, or none, of the later reads are repeats."""

    def distinct(repetition: float) -> int:
        made = session(Shape(turns=60, repetition=repetition))
        return len({c.arguments["path"] for m in made.messages for c in m.tool_calls if c.name == "read_file"})

    assert distinct(1.0) == 1
    assert distinct(0.0) > 8


def test_longer_observations_are_longer() -> None:
    """Fails if the length of a result does not follow the option."""

    def mean(length: int) -> float:
        sizes = [len(m.content) for m in session(Shape(turns=60, observation_characters=length)).messages]
        return sum(sizes) / len(sizes)

    assert mean(6000) > 2.5 * mean(600)


def test_same_seed_same_bytes_in_another_process() -> None:
    """Fails if the order of a set or the process's hash seed reaches a session."""
    code = (
        "from agentbench_spec_workloads.synthetic_agent import make\n"
        "print(*[r.model_dump_json() for r in make(turns=20).rollouts(limit=2, seed=3)])"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": n}, capture_output=True, check=True).stdout
        for n in ("1", "2")
    }
    assert len(outputs) == 1
    ours = " ".join(r.model_dump_json() for r in make(turns=20).rollouts(limit=2, seed=3))
    assert outputs == {ours.encode() + b"\n"}
    assert next(iter(make(turns=20).rollouts(seed=4))) != next(iter(make(turns=20).rollouts(seed=3)))


def test_context_in_tokens_is_not_exceeded() -> None:
    """Fails if a context asked for in tokens is measured in anything but the counter's tokens."""
    (made,) = make(context_tokens=9_000, tokenizer=Bytes(), reserve_tokens=500, sessions=1).rollouts()
    assert 7_500 < made.labels["last_prompt_tokens"] <= 8_500
    assert Bytes().prompt(made, made.decode_points()[-1]) == made.labels["last_prompt_tokens"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"repetition": 1.5}, "repetition"),
        ({"turns": 0}, "turns"),
        ({"context_tokens": 5000}, "tokenizer"),
        ({"context_tokens": 5000, "context_characters": 5000}, "exclude"),
        ({"context_tokens": 200, "tokenizer": Bytes()}, "context_tokens"),
        ({"observation_characters": 3}, "observation_characters"),
        ({"sessions": 0}, "sessions"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, object], named: str) -> None:
    """Fails if a senseless option gives a session, or an error that does not name it."""
    with pytest.raises(ConfigError, match=named):
        list(make(**options).rollouts())  # type: ignore[arg-type]


def test_sessions_render() -> None:
    """Fails if a template loses a call or a result of a generated session."""
    assert_renders(next(iter(make(turns=14).rollouts())))


STANDINS = sorted(set(available("workload")) - {"synthetic_agent"})


@pytest.mark.parametrize("name", STANDINS)
def test_a_standin_says_so_everywhere(name: str) -> None:
    """Fails if generated rollouts could be taken for a paper workload by name, id, label, source or note."""
    workload = load_workload(name, offline_standin=True)
    assert workload.name == f"{name}-standin"
    (made,) = workload.rollouts(limit=1)
    assert made.id.startswith(f"{name}-standin-") and made.workload == f"{name}-standin"
    assert made.labels["standin"] is True and made.labels["stands_in_for"] == name
    assert made.source["stands_in_for"] == name
    assert "stand-in" in made.notes[0] and "none of its data" in made.notes[0]
    assert json.loads(made.model_dump_json())["labels"]["category"] == "standin"


@pytest.mark.parametrize("name", STANDINS)
def test_a_standin_is_never_silent(name: str, tmp_path: Path) -> None:
    """Fails if a workload without data gives rollouts all the same, or takes a stand-in together with data."""
    with pytest.raises(ConfigError, match=r"absent\.jsonl: no such file"):
        list(load_workload(name, data=tmp_path / "absent.jsonl", **_tokens(name)).rollouts())
    with pytest.raises(ConfigError, match="offline_standin"):
        load_workload(name, data="x.jsonl", offline_standin=True)


def _tokens(name: str) -> dict[str, object]:
    return {"tokenizer": Bytes()} if name in ("swe_bench", "swe_bench_prompt", "longbench_v2") else {}


def test_samples_nest() -> None:
    """Fails if a smaller sample of stand-ins or sessions is no beginning of a larger one."""
    for workload in (make(turns=5, sessions=4), load_workload("gsm8k", offline_standin=True)):
        assert list(workload.rollouts(limit=4, seed=2))[:2] == list(workload.rollouts(limit=2, seed=2))


def test_the_flags_of_the_command_line_reach_the_workload(tmp_path: Path) -> None:
    """Fails if --data or --offline-standin is not the option of that name."""
    out = tmp_path / "a.jsonl"
    done = CliRunner().invoke(app, ["rollouts", "build", "alpaca", "--offline-standin", "--limit", "2", "-o", str(out)])
    assert done.exit_code == 0 and [r.labels["stands_in_for"] for r in read_rollouts(out)] == ["alpaca"] * 2
    gone = str(tmp_path / "gone.jsonl")
    missing = CliRunner().invoke(app, ["rollouts", "stats", "alpaca", "--data", gone])
    assert missing.exit_code == 2 and "gone.jsonl: no such file" in missing.stderr.replace("\n", "")
