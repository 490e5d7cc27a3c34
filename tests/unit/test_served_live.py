"""Served live runs: each drafter's servers walk the tasks by their own calls; turns pair where the prompt is one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adding_world import TRAPS
from runkit import call, replay, rows_of
from servedkit import EAGLE3, Behaviour, FakeServer, FakeVLLM, VLLMBehaviour, of, served, settings, timeless
from transformers import PreTrainedTokenizerFast

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.report.live_grids import live_grids
from agentbench_spec.results.costs import paired
from agentbench_spec.results.derived.tasks import task_lines, tasks_by_drafter
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import read_rollouts
from agentbench_spec.runs.presets import ThroughputPreset
from agentbench_spec.serving.sweep import sweep

NAME = "adding_world:Sums"
DONE = "Done."
Script = Callable[[list[int]], list[int]]


def said(n: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"n": {n}}}}}\n</tool_call>'


ANSWERS = {"Add up to ten.": said(4), "4": said(6), "10": DONE}
"""What a server says to the last thing it was told."""


def scripted(model: Path, answers: dict[str, str]) -> Script:
    """Says the answer to the last message, or that it is done."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)

    def script(prompt: list[int]) -> list[int]:
        told = re.split(r"<\|im_start\|>", tokenizer.decode(prompt))[-2]
        heard = re.sub(r"^\w+\n|</?tool_response>|<\|im_end\|>", "", told).strip()
        text = next((said for known, said in answers.items() if heard.startswith(known)), DONE)
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    return script


def speaking(model: Path, answers: dict[str, str] = ANSWERS, **more: Any) -> FakeServer:
    return FakeServer(Behaviour(script=scripted(model, answers), **more))


def live(model: Path, *urls: str, backend: str = "sglang", **more: Any) -> RunConfig:
    own = {"replay__history": "live", "decode__max_new_tokens": 100, "workload__name": NAME}
    return settings(model, Path(NAME), *urls, backend=backend, **(own | more))


def told(rows: list[Any], task: str) -> list[tuple[object, ...]]:
    return [(row.turn, row.call_valid, row.call_same, row.ended, row.solved) for row in rows if row.rollout == task]


SOLVED = [(0, True, True, None, None), (1, True, True, None, None), (2, None, None, "done", True)]


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
def test_every_drafter_walks_the_tasks(model: Path, tmp_path: Path, backend: str) -> None:
    """Fails if calls do not reach the world, rows lack what they say in process, or equal turns are not paired."""
    script = scripted(model, ANSWERS)
    if backend == "sglang":
        plain, spec = FakeServer(Behaviour(script=script)), FakeServer(Behaviour(dict(EAGLE3), script=script))
    else:
        plain = FakeVLLM(VLLMBehaviour(script=script))
        spec = FakeVLLM(VLLMBehaviour(script=script, method="eagle3"))
    with plain, spec:
        done = served(live(model, plain.base_url, spec.base_url, backend=backend), tmp_path / "run")
    assert {row.workload for row in done.rows} == {"sums"}
    for name in ("none", "eagle3"):
        own = of(done, name)
        assert told(own, "adding/0") == SOLVED
        assert all(row.history_mode == "live" and row.status == "ok" and row.env_s is not None for row in own[:3])
        assert all(row.reused_tokens == row.expected_reused_tokens and row.drift_tokens == 0 for row in own[:3])
    assert all(row.identical for row in of(done, "eagle3")[:3]) and len(paired(done.rows, "eagle3")) == 6
    session = next(read_rollouts(tmp_path / "run" / "parts" / "eagle3" / "live.jsonl"))
    assert [message.content for message in session.messages if message.role == "tool"] == ["4", "10"]
    tasks = {own.drafter: own for own in tasks_by_drafter(done.rows)}
    assert tasks["eagle3"].alone.tasks == 2 and tasks["eagle3"].alone.interval is not None
    assert "compared as a whole" in live_grids(done.rows)[0].notes[0]


def test_trajectories_that_part_are_compared_by_task_only(model: Path, tmp_path: Path) -> None:
    """Fails if turns of equal length and other text are taken for one turn: 4 and then 6, or 6 and then 4."""
    other = {"Add up to ten.": said(6), "6": said(4), "10": DONE}
    with speaking(model) as plain, speaking(model, other, args=dict(EAGLE3)) as spec:
        done = served(live(model, plain.base_url, spec.base_url, workload__limit=1), tmp_path / "run")
    own, base = of(done, "eagle3"), of(done, "none")
    assert [row.context_tokens for row in own] == [row.context_tokens for row in base], "the trap is not set"
    assert [(row.identical, row.call_same, row.call_valid) for row in own] == [
        (False, False, True),
        (None, None, True),
        (None, None, None),
    ]
    assert own[0].divergence_margin is not None and own[0].speedup is not None
    assert [row.speedup for row in own[1:]] == [row.speedup_e2e for row in own[1:]] == [None, None]
    assert [row.turn for _, row in paired(done.rows, "eagle3")] == [0]
    tasks = {each.drafter: each for each in tasks_by_drafter(done.rows)}
    assert tasks["eagle3"].alone.tasks == 1 and tasks["eagle3"].alone.ratio is not None
    assert task_lines(list(tasks.values()))[1].startswith("eagle3: tasks solved: 1 of 1, in 3.0 turns")
    _, each, _ = live_grids(done.rows)
    assert each.columns[1:3] == ("none: ended", "none: solved") and "eagle3: turns" in each.columns


def test_words_of_its_own_are_paired_while_they_are_the_same(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if, with its own words as history, a text of equal length passes for the baseline's."""
    one, other = ({"List": text, "a-": "Next.", "b-": "Next.", "c-": "Next."} for text in ("First", "Other"))
    with speaking(model, one) as plain, speaking(model, other, args=dict(EAGLE3)) as spec:
        config = settings(model, rollouts, plain.base_url, spec.base_url, replay__history="self", workload__limit=1)
        done = served(config, tmp_path / "run")
    own = of(done, "eagle3")
    assert [row.context_tokens for row in own] == [row.context_tokens for row in of(done, "none")], "no trap is set"
    assert [row.identical for row in own] == [False, None, None]
    assert [row.turn for _, row in paired(done.rows, "eagle3")] == [0]


def test_a_task_that_cannot_be_started_costs_itself(model: Path, tmp_path: Path) -> None:
    """Fails if a broken task ends the run, or is counted as one that nobody judged."""
    with speaking(model) as plain:
        done = served(live(model, plain.base_url, workload__name="adding_world:BrokenSums"), tmp_path / "run")
    broken = [row for row in done.rows if row.rollout == "adding/0"]
    assert [(row.status, row.ended) for row in broken] == [("error", "error")]
    assert "there is no such world" in (broken[0].error or "") and told(done.rows, "adding/1") == SOLVED
    statuses = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert {own["rollout"]: own["status"] for own in statuses} == {"adding/0": "error", "adding/1": "done"}
    assert tasks_by_drafter(done.rows)[0].solved == (1, 2)


@pytest.mark.parametrize("trap", [100, 101, 103], ids=lambda n: TRAPS[n].__name__)
def test_an_environment_that_fails_costs_its_own_turn(model: Path, tmp_path: Path, trap: int) -> None:
    """Fails if a step that hangs, raises or ends its process ends the session, or the model is not told."""
    answers = {"Add up to ten.": said(4), "4": said(trap), "Error: the call was not carried out": said(6), "10": DONE}
    with speaking(model, answers) as plain:
        done = served(live(model, plain.base_url, workload__limit=1, live__step_s=1.0), tmp_path / "run")
    assert [row.env_error is not None for row in done.rows] == [False, True, False, False]
    assert told(done.rows, "adding/0")[-1] == (3, None, None, "done", True)


def test_workers_have_worlds_of_their_own(model: Path, tmp_path: Path) -> None:
    """Fails if two sessions at once add to one sum."""
    both, met, script = threading.Barrier(2), threading.Event(), scripted(model, ANSWERS)

    def together(prompt: list[int]) -> list[int]:
        if not met.is_set():
            both.wait(120)  # the first token of each session waits for the other's
            met.set()
        return script(prompt)

    with FakeServer(Behaviour(script=together)) as plain:
        done = served(live(model, plain.base_url, sglang__concurrency=2), tmp_path / "run")
        assert plain.most_at_once == 2
    assert told(done.rows, "adding/0") == told(done.rows, "adding/1") == SOLVED


def sessions(folder: Path) -> list[str]:
    """Tasks whose sessions a part holds, in order."""
    return [session.id for session in read_rollouts(folder / "parts" / "none" / "live.jsonl")]


def test_a_server_that_dies_costs_its_session_and_resume_walks_it_anew(model: Path, tmp_path: Path) -> None:
    """Fails if a session that was whole is walked twice, half of one is kept, or the rows are other ones."""
    folder = tmp_path / "run"
    with speaking(model, faults={4: "die"}) as plain:
        config = live(model, plain.base_url)
        with pytest.raises(MeasurementError, match=r"1 rollouts were not replayed.*--resume"):
            served(config, folder)
        assert sessions(folder) == ["adding/0"]
        plain.revive()
        done = served(config, folder, resume=True)
        assert len(plain.requests) == 5 + 3
    assert sessions(folder) == ["adding/0", "adding/1"] and told(done.rows, "adding/1") == SOLVED
    with speaking(model) as plain:
        unbroken = served(live(model, plain.base_url), tmp_path / "other")
    assert [_still(row) for row in done.rows] == [_still(row) for row in unbroken.rows]


def _still(row: TurnRow) -> dict[str, Any]:
    """A row without clocks, the environment's among them."""
    return {name: value for name, value in timeless(row).items() if name not in ("env_s", "expected_reused_tokens")}


def test_another_server_takes_a_session_over(model: Path, tmp_path: Path) -> None:
    """Fails if a session goes on where its server died, with a world that is not its own."""
    with speaking(model, faults={1: "die"}, step_s=0.002) as one, speaking(model, step_s=0.002) as two:
        done = served(live(model, one.base_url, two.base_url), tmp_path / "run")
        assert {row.server for row in done.rows} == {two.base_url}
    assert told(done.rows, "adding/0") == told(done.rows, "adding/1") == SOLVED


def test_a_killed_client_goes_on_by_whole_sessions(model: Path, tmp_path: Path) -> None:
    """Fails if kill -9 in the middle of the second session loses the first, or keeps half of one."""
    folder = tmp_path / "run"
    code = (
        "import sys; from pathlib import Path; from agentbench_spec.config import RunConfig\n"
        "from agentbench_spec.serving.served_run import run_served\n"
        "run_served(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), environ={})"
    )
    killed, script = threading.Event(), scripted(model, ANSWERS)

    def until_killed(prompt: list[int]) -> list[int]:
        if len(plain.requests) == 5:
            killed.wait(120)
        return script(prompt)

    with FakeServer(Behaviour(script=until_killed)) as plain:
        config = live(model, plain.base_url)
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-c", code, config.model_dump_json(exclude_unset=True), str(folder)]
        child = subprocess.Popen(command, env=environ)
        deadline, whole = time.monotonic() + 120, folder / "parts" / "none" / "rollouts.jsonl"
        while not (len(plain.requests) == 5 and whole.exists()) and time.monotonic() < deadline:
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        killed.set()
        child.wait()
        assert sessions(folder) == ["adding/0"]
        asked = len(plain.requests)
        done = served(config, folder, resume=True)
        assert len(plain.requests) == asked + 3
    assert sessions(folder) == ["adding/0", "adding/1"] and told(done.rows, "adding/1") == SOLVED


def test_a_session_ends_at_the_window(model: Path, tmp_path: Path) -> None:
    """Fails if a prompt that the server cannot take is sent, or the last row does not say what came of it."""
    with speaking(model, max_model_len=470) as plain:
        done = served(live(model, plain.base_url, workload__limit=1), tmp_path / "run")
    assert [(row.status, row.ended, row.solved) for row in done.rows[-2:]] == [
        ("ok", None, None),
        ("oversized", "context", True),
    ]


def test_the_session_of_a_part_replays_in_process(model: Path, tmp_path: Path) -> None:
    """Fails if what a server was asked and said is not in its session, or the commands do not go together."""
    with speaking(model) as plain:
        out = ("--out", tmp_path / "run", "--max-new-tokens", "100", "--set", "sglang.warm_up_rollouts=0")
        done = call(
            *("run", "--live", "--workload", NAME, "--target", model, "--base-url", plain.base_url, "--limit", "1"),
            *out,
        )
    assert done.code == 0 and "none: tasks solved: 1 of 1, in 3.0 turns" in done.err, done.err
    assert call("report", tmp_path / "run").code == 0
    part = tmp_path / "run" / "parts" / "none"
    assert f"name one: {part}" in call("swebench-predictions", tmp_path / "run").error
    again = replay(
        model,
        part / "live.jsonl",
        tmp_path / "forced",
        *("--mode", "forced", "--max-new-tokens", "100", "--set", "target.beyond_window=flag", "--set"),
        "target.capacity_tokens=2000",
    )
    assert again.code == 0, again.err
    spoken = [(row.context_tokens, row.output_ids) for row in rows_of(tmp_path / "forced") if row.drafter == "none"]
    assert spoken == [(row.context_tokens, row.output_ids) for row in rows_of(tmp_path / "run")]


def test_what_contradicts_a_served_live_run_is_refused(model: Path, tmp_path: Path) -> None:
    """Fails if a setting that such a run cannot keep is passed over in silence."""
    with FakeServer() as plain, FakeServer(Behaviour({"disable_radix_cache": True})) as cold:
        with pytest.raises(ConfigError, match=r"replay\.history=live needs the token ids"):
            served(live(model, plain.base_url, sglang__client="chat"), tmp_path / "chat")
        with pytest.raises(ConfigError, match="without --disable-radix-cache"):
            served(live(model, cold.base_url), tmp_path / "cold")
        with pytest.raises(ConfigError, match="one text by all drafters"):
            sweep(live(model, plain.base_url), tmp_path / "sweep", ThroughputPreset(), environ={})
        assert plain.requests == cold.requests == []
