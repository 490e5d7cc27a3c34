"""DLITE on a real SGLang 0.5.23 server on this CPU, beside our engine with the same checkpoint. Timings are void."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentbench_spec_sglang.relied_on import first_mismatch
from cpu_servers import KEY, NEW_TOKENS, Servers, against_plain, own_engine
from served_models import BLOCK, KV_BYTES, train_draft

from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.runs.execute import run
from agentbench_spec.runs.presets import ThroughputPreset
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.engines.sglang_client import SGLangClient as Client
from agentbench_spec.serving.kvcost import by_log
from agentbench_spec.serving.served_run import ServedRun, run_served
from agentbench_spec.serving.stream import Answer
from agentbench_spec.serving.sweep import sweep

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1200)]

Counts = Mapping[tuple[str, int], tuple[int | None, int | None]]
PROMPT, ASK = [40 + i * 7 % 60 for i in range(50)], Ask(24)
ANY_TAU = {"sglang__min_tau": 0.0, "sglang__warm_up_rollouts": 0}


@pytest.fixture(scope="module")
def student(servers: Servers) -> Path:
    """A checkpoint trained on the very turns that are served."""
    return train_draft(servers.student, "dlite", servers.target, servers.rollouts, NEW_TOKENS)


@pytest.fixture(scope="module")
def fresh(servers: Servers, student: Path) -> Answer:
    """The first answer of a server that has served nobody."""
    with Client(servers.url("dlite")) as client:
        return client.generate(PROMPT, ASK)


@pytest.fixture(scope="module")
def done(servers: Servers, fresh: Answer, tmp_path_factory: pytest.TempPathFactory) -> ServedRun:
    """Nine turns on the server without speculation and on DLITE's."""
    return against_plain(servers, "dlite", tmp_path_factory.mktemp("runs") / "dlite", **ANY_TAU)


@pytest.fixture(scope="module")
def counts(done: ServedRun) -> Counts:
    """Rounds and accepted drafts of every turn, radix cache on."""
    return rounds_of(done.rows)


def rounds_of(rows: Sequence[TurnRow]) -> Counts:
    own = [row for row in rows if row.drafter == "dlite"]
    return {(row.rollout, row.turn): (row.rounds, row.matched) for row in own}


def told(answer: Answer) -> tuple[Any, ...]:
    """What must be equal on two servers: the tokens, and how they were drafted."""
    names = ("spec_verify_ct", "spec_num_correct_drafts", "spec_correct_drafts_histogram")
    return (answer.output_ids, *(answer.details.get(name) for name in names))


def next_equals_fresh(servers: Servers, name: str, fresh: Answer) -> bool:
    """True if the next request is served as by a server that has served nobody."""
    with Client(servers.url(name)) as client:
        assert client.flush()
        return told(client.generate(PROMPT, ASK)) == told(fresh)


def test_the_guard_passes_the_installed_sglang() -> None:
    """The table against the source that these tests run on: what it names is there."""
    roots = list(Path(os.environ["SGLANG_VENV"]).glob("lib/python3*/site-packages/sglang"))
    assert len(roots) == 1 and first_mismatch(roots[0]) is None


def test_dlite_is_lossless_and_drafts_as_our_engine_does(
    servers: Servers, done: ServedRun, counts: Counts, tmp_path: Path
) -> None:
    """One checkpoint in both: the same text, and the same rounds and accepted drafts in each of nine growing turns."""
    rows = [row for row in done.rows if row.drafter == "dlite"]
    assert [row.status for row in rows] == ["ok"] * 9 and all(row.identical for row in rows)
    assert all(row.k == BLOCK - 1 and row.scope == "request" for row in rows)
    ours = run(own_engine(servers, [f"dlite={servers.student}"], k=BLOCK - 1), tmp_path / "engine").rows
    assert counts == rounds_of(ours)
    assert sum(matched or 0 for _, matched in counts.values()) > 0


def test_it_takes_no_tokens_of_capacity_and_no_prefix(servers: Servers, done: ServedRun) -> None:
    """The KV pool is that of no speculation, there is no second one, and every turn finds the whole prefix."""
    none, dlite = done.parts["none"], done.parts["dlite"]
    assert dlite.token_capacity == none.token_capacity and dlite.kv_pool_bytes == none.kv_pool_bytes
    assert dlite.token_capacity and by_log(servers.log("dlite").read_text().splitlines()) is None
    figures = {cost.method: cost.value for cost in done.costs["dlite"]}
    assert figures["formula"] == 0 and figures["capacity_drop"] == 0
    later = [row for row in done.rows if row.drafter == "dlite" and row.turn]
    assert later and all(row.reused_tokens == row.expected_reused_tokens for row in later)


def test_a_grammar_holds_over_whole_blocks(servers: Servers, fresh: Answer) -> None:
    """Fails if drafts are verified against logits that the grammar has not seen."""
    sampling = {"max_new_tokens": 12, "temperature": 0, "regex": "(a|b)+"}
    with httpx.Client(base_url=servers.url("dlite"), timeout=600) as http:
        text = http.post("/generate", json={"input_ids": PROMPT, "sampling_params": sampling}).json()["text"]
    assert re.fullmatch("[ab]+", text)


def test_a_greedy_request_beside_a_sampled_one_stays_greedy(servers: Servers, fresh: Answer) -> None:
    """One batch, verified by draws: the request at temperature 0 says what it says alone, the other 24 tokens."""
    sampling = [{"max_new_tokens": 24, "temperature": 0}, {"max_new_tokens": 24, "temperature": 1, "ignore_eos": True}]
    with httpx.Client(base_url=servers.url("dlite"), timeout=600) as http:
        body = {"input_ids": [PROMPT, PROMPT[::-1]], "sampling_params": sampling}
        greedy, sampled = http.post("/generate", json=body).json()
    assert greedy["output_ids"] == fresh.output_ids
    assert sampled["meta_info"]["completion_tokens"] == 24


def test_a_killed_request_and_an_aborted_stream_leave_nothing(servers: Servers, fresh: Answer) -> None:
    """Both end in the middle of their rounds; the next request in the slot is served as by a fresh server."""
    long = {"sampling_params": {"max_new_tokens": 1500, "temperature": 0, "ignore_eos": True}, "stream": True}
    with httpx.Client(base_url=servers.url("dlite"), timeout=600) as http:
        with http.stream("POST", "/generate", json={"input_ids": PROMPT[::-1], **long}) as answer:
            assert sum(1 for _, line in zip(range(10), answer.iter_lines(), strict=False) if line) > 0
        assert next_equals_fresh(servers, "dlite", fresh)
        killer = threading.Timer(1.0, lambda: http.post("/abort_request", json={"rid": "killed"}))
        killer.start()
        with http.stream("POST", "/generate", json={"input_ids": PROMPT[::-1], "rid": "killed", **long}) as answer:
            events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
        killer.join()
    assert json.loads(events[-1])["meta_info"]["finish_reason"]["type"] == "abort"
    assert next_equals_fresh(servers, "dlite", fresh)


def test_two_rollouts_at_once_say_the_same(servers: Servers, done: ServedRun, tmp_path: Path) -> None:
    """The throughput table's cells at concurrency 1 and 2: batching changes no token, and all identities hold."""
    config = servers.config(servers.url("none"), servers.url("dlite"), **ANY_TAU)
    plan = ThroughputPreset(concurrency=(1, 2), requests_per_row=0, requests_least=3)
    rows = sweep(config, tmp_path / "sweep", plan, api_key=KEY, environ={}).rows
    assert [(row.drafter, row.concurrency, row.turns) for row in rows] == [
        (name, concurrency, 9) for concurrency in (1, 2) for name in ("none", "dlite")
    ]
    assert all(row.left_out == {} and row.outputs == rows[0].outputs for row in rows)


def test_the_second_turn_needs_no_radix_cache(servers: Servers, counts: Counts, tmp_path: Path) -> None:
    """Every turn prefilled from nothing drafts as it did behind a cached prefix: there is no draft cache to lose."""
    config = servers.config(servers.alone("dlite-cold"), replay__prefix="cold", **ANY_TAU)
    rows = run_served(config, tmp_path / "run", environ={}).rows
    assert {row.reused_tokens for row in rows} == {0}
    assert rounds_of(rows) == counts


def test_a_retracted_request_leaves_nothing(
    servers: Servers, plain_rows: Sequence[TurnRow], fresh: Answer, tmp_path: Path
) -> None:
    """Of two requests one is retracted every third step: all say what plain decoding says, and the next one is as on
    a fresh server."""
    config = servers.config(servers.alone("dlite-retracting"), sglang__concurrency=2, **ANY_TAU)
    rows = run_served(config, tmp_path / "run", environ={}).rows
    assert any(row.status == "retracted" for row in rows)
    plain = {(row.rollout, row.turn): row.output_ids for row in plain_rows}
    assert {(row.rollout, row.turn): row.output_ids for row in rows} == plain
    assert next_equals_fresh(servers, "dlite-retracting", fresh)


def test_without_the_last_state_it_drafts_otherwise(servers: Servers, counts: Counts, tmp_path: Path) -> None:
    """Planted: zeros in place of the state after the final norm. The text stays, the accepted drafts do not, so that
    the comparison with our engine would find it."""
    config = servers.config(servers.alone("dlite-zeros"), **ANY_TAU)
    rows = run_served(config, tmp_path / "run", environ={}).rows
    assert [row.status for row in rows] == ["ok"] * 9
    assert rounds_of(rows) != counts


def test_what_drafts_take_of_the_memory(servers: Servers, student: Path) -> None:
    """Of the tokens that memory has room for, DLITE takes its weights; EAGLE-3 and DFLASH a layer of KV for each of
    theirs beside the target's four."""
    chain = {"num_steps": BLOCK - 1, "eagle_topk": 1, "num_draft_tokens": BLOCK, "draft_load_format": "dummy"}
    none, dlite = servers.capacity("none"), servers.capacity(f"dlite={student}")
    weights = sum(path.stat().st_size for path in student.glob("*.safetensors"))
    assert dlite == pytest.approx(none - weights / KV_BYTES, rel=0.01)
    assert servers.capacity(f"EAGLE3={servers.draft}", **chain) == pytest.approx(none * 4 / 5, rel=0.02)


def test_a_state_that_is_left_out_is_named(servers: Servers, student: Path, tmp_path: Path) -> None:
    """Planted: the last state is not handed out, as SGLang's models leave it out. No answer, and the log says why."""
    with pytest.raises((ConfigError, MeasurementError)):  # dead before it is healthy, or at its first request
        run_served(servers.config(servers.alone("dlite-left_out"), **ANY_TAU), tmp_path / "run", environ={})
    assert "a layer was left out, most likely the last" in servers.log("dlite-left_out").read_text()
    servers.stop()
