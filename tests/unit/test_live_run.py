"""Live sessions: scripted calls reach the goal, faults cost their own turn, the record replays to the same tau."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from adding_world import TRAPS
from runkit import call, replay, rows_of

from agentbench_spec.config import LiveConfig, RunConfig, load_config
from agentbench_spec.errors import ConfigError, ContractError
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import Message, Rollout, ToolCall, read_rollouts
from agentbench_spec.runs.execute import Bench
from agentbench_spec.runs.fill import Conditions
from agentbench_spec.runs.live.sandbox import EnvironmentFault, Sandbox
from agentbench_spec.runs.live.trajectory import LiveReplayer
from agentbench_spec.runs.replay import Replayer

NAME = "adding_world:Sums"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(NAME, {}, limit=None, seed=0, step_s=1.0) as made:
        yield made


def adding(n: int) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name="add", arguments={"n": n}, id="c"),))


@pytest.mark.parametrize("trap", TRAPS, ids=lambda n: TRAPS[n].__name__)
def test_a_trap_costs_its_own_step(sandbox: Sandbox, trap: int, tmp_path: Path) -> None:
    """Fails if a step that hangs, raises, exits, eats memory or reaches out ends the session or leaves a trace."""
    sandbox.start("adding/0")
    assert sandbox.step(adding(4)) is not None
    with pytest.raises(EnvironmentFault, match=r"answer within|broken|exit|status|Memory|may not"):
        sandbox.step(adding(trap))
    found = sandbox.step(adding(6))
    assert found is not None and found[0].content == "10", "the world is not what it was before the trap"
    assert sandbox.score() == {"solved": True}
    assert not Path("escaped.txt").exists() and not Path("/tmp/agentbench-spec-escaped").exists()


def test_what_cannot_be_listed_is_said() -> None:
    """Fails if a misspelt name or option is told as a broken pipe."""
    with pytest.raises(ConfigError, match="did you mean 'bfcl_v3'"):
        Sandbox("bfcl_v2", {}, limit=None, seed=0, step_s=1.0)
    with pytest.raises(ConfigError, match="no option 'sizes'"):
        Sandbox(NAME, {"sizes": 1}, limit=None, seed=0, step_s=1.0)
    with (
        pytest.raises(ContractError, match="cannot be started"),
        Sandbox(NAME, {}, limit=1, seed=0, step_s=1.0) as sandbox,
    ):
        sandbox.start("adding/1")


def settings(tiny: Path, **more: Any) -> RunConfig:
    tree = {
        "target.source": str(tiny),
        "target.fast_linears": False,
        "drafters": ("ngram", "suffix"),
        "decode.max_new_tokens": 100,
        "workload.name": NAME,
        **more,
    }
    return load_config(flags=tree)


def said(n: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"n": {n}}}}}\n</tool_call>'


def live(tiny: Path, sandbox: Sandbox, texts: Sequence[str], **limits: Any) -> tuple[list[TurnRow], Rollout]:
    """Rows and record of a session in which the target is made to say `texts`, then "Done."."""
    bench = Bench.open(settings(tiny), workload="sums")
    tokenizer = bench.renderer._tokenizer
    plain = bench.replayer
    fields = {name: getattr(plain.conditions, name) for name in Conditions.__slots__}
    forced = Conditions(**{**fields, "decode_mode": "forced", "history_mode": "live"})
    replayer = Replayer(plain.target, plain.drafters, plain.renderer, forced, "sums", plain.judge)
    left = iter(texts)

    def script(rollout: Rollout, index: int) -> list[int]:
        return [*tokenizer.encode(next(left, "Done."), add_special_tokens=False), tokenizer.eos_token_id]

    assert plain.judge is not None
    walker = LiveReplayer(replayer, plain.judge, sandbox, LiveConfig(**limits), script)
    rows = [row for turn in walker.replay(sandbox.tasks[0]) for row in turn.rows]
    assert walker.taken is not None
    return rows, walker.taken


def baseline(rows: Sequence[TurnRow]) -> list[TurnRow]:
    return [row for row in rows if row.drafter == "none"]


def test_scripted_calls_reach_the_goal(tiny: Path, sandbox: Sandbox) -> None:
    """Fails if a call does not reach the world, a result the model, or the end the rows."""
    rows, taken = live(tiny, sandbox, [said(4), said(6)])
    own = baseline(rows)
    assert [(row.call_valid, row.call_same, row.ended, row.solved) for row in own] == [
        (True, True, None, None),
        (True, True, None, None),
        (None, None, "done", True),
    ]
    assert {row.drafter for row in rows} == {"none", "ngram", "suffix"}
    assert all(row.history_mode == "live" and row.env_s is not None and row.env_error is None for row in rows)
    assert [m.content for m in taken.messages if m.role == "tool"] == ["4", "10"]
    assert [len(m.tool_calls) for m in taken.messages if m.role == "assistant"] == [1, 1, 0]
    assert all(row.drift_tokens == 0 for row in own)


def test_what_a_session_hands_in_is_kept(tiny: Path) -> None:
    """Fails if the submission of a live session is lost: nobody could grade it."""
    with Sandbox("adding_world:Submissions", {}, limit=1, seed=0, step_s=1.0) as handing_in:
        _, taken = live(tiny, handing_in, [said(4)])
    assert taken.source["submission"] == "the sum is 4"


def heard(taken: Rollout) -> list[str]:
    """What the model is told after its first prompt."""
    return [message.content for message in taken.messages if message.role in ("user", "tool")][1:]


def test_faults_cost_their_own_turn(tiny: Path, sandbox: Sandbox) -> None:
    """Fails if a call that cannot be read, or breaks the world, ends the session or is not told."""
    rows, taken = live(tiny, sandbox, [said(4)[:-25], said(101), said(10)])
    own = baseline(rows)
    assert [row.call_valid for row in own] == [False, True, True, None]
    faults = [row.env_error for row in own]
    assert faults[1] is not None and "the world is broken" in faults[1]
    assert [fault for i, fault in enumerate(faults) if i != 1] == [None] * 3
    assert heard(taken)[0].startswith("Error: no call was made. not JSON")
    assert heard(taken)[1].startswith("Error: the call was not carried out") and heard(taken)[2] == "10"
    assert (own[-1].ended, own[-1].solved) == ("done", True)


def test_sizes_are_bounded(tiny: Path, sandbox: Sandbox) -> None:
    """Fails if arguments or results of any size pass, or a model is not told that they did not."""
    big = f'<tool_call>\n{{"name": "add", "arguments": {{"n": 1, "p": "{"x" * 20}"}}}}\n</tool_call>'
    rows, taken = live(tiny, sandbox, [big, said(7), said(3)], argument_bytes=30, result_bytes=20)
    assert (baseline(rows)[0].env_error or "").startswith("the arguments of a message may have 30 bytes, these have 3")
    assert heard(taken)[0].startswith("Error: the arguments of a message may have 30 bytes")
    assert heard(taken)[1] == "x" * 20 + "\n... cut here: 200 bytes in all" and heard(taken)[2] == "10"


@pytest.mark.parametrize(
    ("texts", "limits", "ended", "turns"),
    [
        ([said(1)] * 9, {"repeats": 3}, "loop", 3),
        (["<tool_call>{</tool_call>", "<tool_call>[</tool_call>"] * 4, {"repeats": 4}, "loop", 4),
        ([said(1), said(2)] * 9, {"turns": 5}, "turns", 5),
        ([said(1), said(2)] * 9, {"tokens": 150}, "tokens", 4),
    ],
)
def test_a_session_that_does_not_end_is_ended(
    tiny: Path, sandbox: Sandbox, texts: list[str], limits: dict[str, int], ended: str, turns: int
) -> None:
    """Fails if a model that calls for ever is let, or the row does not say what ended it."""
    rows, _ = live(tiny, sandbox, texts, **limits)
    own = baseline(rows)
    assert (own[-1].ended, own[-1].solved, len(own)) == (ended, False, turns)


def test_a_live_run_and_its_forced_replay(tiny: Path, tmp_path: Path) -> None:
    """Fails if the session that is written is not the one that was taken: tau of its forced replay must be the same."""
    done = replay(tiny, NAME, tmp_path / "live", "--live", "--set", "live.turns=3")
    assert done.code == 0, done.err
    assert "tasks solved: 0 of 2, in " in done.err
    assert call("report", tmp_path / "live").code == 0
    rows = rows_of(tmp_path / "live")
    assert {row.rollout for row in rows} == {"adding/0", "adding/1"} and {row.workload for row in rows} == {"sums"}
    assert all(row.history_mode == "live" and row.status == "ok" for row in rows)
    again = replay(tiny, tmp_path / "live" / "live.jsonl", tmp_path / "forced", "--mode", "forced")
    assert again.code == 0, again.err
    key = ("rollout", "turn", "drafter", "tau", "tau_raw", "output_ids", "context_tokens")
    assert [[getattr(row, name) for name in key] for row in rows_of(tmp_path / "forced")] == [
        [getattr(row, name) for name in key] for row in rows
    ]


def test_a_live_run_is_resumed_by_whole_sessions(tiny: Path, tmp_path: Path) -> None:
    """Fails if a killed run loses a session that was whole, or keeps half of one."""
    folder = tmp_path / "run"
    assert replay(tiny, NAME, folder, "--live", "--set", "live.turns=2").code == 0
    whole = [(row.rollout, row.turn, row.drafter, row.output_ids) for row in rows_of(folder)]
    sessions = [rollout.model_dump() for rollout in read_rollouts(folder / "live.jsonl")]
    lines = (folder / "rollouts.jsonl").read_text().splitlines(keepends=True)
    (folder / "rollouts.jsonl").write_text(lines[0])
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["finished"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done = call("run", "--resume", "--out", folder)
    assert done.code == 0, done.err
    assert [(row.rollout, row.turn, row.drafter, row.output_ids) for row in rows_of(folder)] == whole
    assert [rollout.model_dump() for rollout in read_rollouts(folder / "live.jsonl")] == sessions


def test_what_contradicts_a_live_run_is_refused(tiny: Path) -> None:
    """Fails if a setting that a live run cannot keep is passed over in silence."""
    with pytest.raises(ConfigError, match="no record to emit"):
        settings(tiny, **{"replay.history": "live", "decode.mode": "forced"})
