"""A real vLLM 0.32.0 server on this CPU, through our own launcher and client. Timings are void here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cpu_servers import NEW_TOKENS, own_engine
from killed_server import assert_survives_a_kill, free_port
from served_models import VOCABULARY, train_draft
from vllm_servers import BLOCK, CHAIN, NGRAM, WINDOW, VLLMServers

from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.runs.execute import run
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.engines.vllm_client import VLLMClient
from agentbench_spec.serving.engines.vllm_counts import read_report
from agentbench_spec.serving.prometheus import read_counters
from agentbench_spec.serving.served_run import ServedRun, run_served
from agentbench_spec.serving.stream import Answer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

PROMPT = [40 + i % 23 for i in range(50)]
"""Token ids that a look-up finds again."""


@pytest.fixture(scope="module")
def looked_up(servers: VLLMServers, plain_rows: list[TurnRow], tmp_path_factory: pytest.TempPathFactory) -> ServedRun:
    """The three rollouts beside the baseline, drafted by n-gram look-up."""
    config = servers.config(servers.url("none"), servers.url("ngram"), vllm__warm_up_rollouts=1)
    return run_served(config, tmp_path_factory.mktemp("runs") / "ngram", environ={})


@pytest.fixture
def ngram(servers: VLLMServers) -> Iterator[VLLMClient]:
    """A client of the look-up server, whose cache is empty."""
    with VLLMClient(servers.url("ngram")) as client:
        assert client.flush()
        yield client


def test_same_ids_as_our_engine(servers: VLLMServers, plain_rows: list[TurnRow], tmp_path: Path) -> None:
    """Fp32 greedy, nine turns with growing contexts: server and engine say the same, token for token."""
    rows = run(own_engine(servers, ["none"]), tmp_path / "engine").rows
    engine = {(row.rollout, row.turn): row.output_ids for row in rows}
    assert len(engine) == 9 and {(row.rollout, row.turn): row.output_ids for row in plain_rows} == engine


def test_plain_rows_are_complete(plain_rows: list[TurnRow]) -> None:
    """Whole blocks of the turn before are found again, as expected; clocks, the server's too, and counts are there."""
    assert [row.status for row in plain_rows] == ["ok"] * 9
    for row in plain_rows:
        check_row(row)
        assert (row.rounds, row.tau) == ((row.output_tokens or 0) - 1, 1.0)
        assert (row.engine_version, row.async_scheduling) == ("0.32.0", False)
        assert row.ttft_s and row.server_ttft_s and row.server_decode_s and row.server_queue_s is not None
        assert row.reused_tokens is not None and row.reused_tokens % BLOCK == 0
        if row.turn:
            assert row.reused_tokens == row.expected_reused_tokens and row.expected_reused_tokens


def test_look_up_is_lossless_and_its_counts_agree(looked_up: ServedRun) -> None:
    """Trap 1 on real answers: the server's mean leaves out the steps without a draft and is above τ wherever there was
    one beside an accepted draft; ours counts them, and the engine's own number of iterations agrees."""
    rows = [row for row in looked_up.rows if row.drafter == "ngram"]
    assert [row.status for row in rows] == ["ok"] * 9 and all(row.identical and row.rounds for row in rows)
    for row in rows:
        check_row(row)
        assert row.matched_lengths is not None and row.proposed_lengths is not None
        too_high = 0 in row.proposed_lengths and bool(row.matched)
        assert (row.emitted_raw, row.tau) == ((row.rounds or 0) + (row.matched or 0), row.emitted / row.rounds)
        assert row.server_accept_length is None or (row.server_accept_length > row.tau_raw) == too_high
    assert any(0 in row.proposed_lengths and row.matched for row in rows)
    counters = looked_up.parts["ngram"].windows[0]["counters"]
    assert counters["disagreements"] == [] and counters["own"]["drafts"] > 0


def test_each_step_is_told(looked_up: ServedRun) -> None:
    """`detailed`: accepted and drafted tokens of each step, never more than the server's width, the sums those of the
    turn; acceptance by position has its numbers from them."""
    for row in (row for row in looked_up.rows if row.drafter == "ngram"):
        assert len(row.matched_lengths) == len(row.proposed_lengths) == row.rounds
        assert (sum(row.matched_lengths), sum(row.proposed_lengths)) == (row.matched, row.proposed)
        assert max(row.proposed_lengths) <= NGRAM["num_speculative_tokens"] == row.k


def test_overshoot_is_told_from_steps_without_a_draft(servers: VLLMServers, ngram: VLLMClient) -> None:
    """Trap 8: a last step is counted whole though the length cut it. The counts of an answer never fall short of a
    shorter answer's, and each step's tokens, the last one's cut, add up to the length."""
    server = engine_of("vllm").describe(ngram)
    cut = 0
    for tokens in range(1, 33):
        answer = ngram.generate(PROMPT, Ask(tokens), ngram.model()["id"])
        found = server.acceptance(answer)
        assert answer.completion_tokens == tokens and found is not None and found.broken == ()
        if found.rounds is None:
            continue  # two steps in one event
        assert tokens == 1 + found.rounds + found.matched - found.trimmed
        cut += found.trimmed > 0
    assert cut > 0


def asked(url: str, **more: Any) -> Any:
    body = {"model": model_of(url), "prompt": PROMPT, "max_tokens": 8, "temperature": 0.0, **more}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    return answer.json() if answer.status_code == 200 else answer


def model_of(url: str) -> str:
    return str(httpx.get(f"{url}/v1/models").json()["data"][0]["id"])


def test_reports_are_absent_and_never_zero(servers: VLLMServers) -> None:
    """Trap 2: no report with two prompts, with two choices, or in a stream that did not ask for usage; there is one
    otherwise, so that each absence has its own reason."""
    url = servers.url("ngram")
    assert asked(url)["metrics"]["speculative_decoding"] is not None
    assert asked(url, prompt=[PROMPT, PROMPT]).get("metrics") is None
    two = asked(url, n=2, temperature=0.8)
    assert len(two["choices"]) == 2 and two.get("metrics") is None
    assert asked(url, n=2).status_code == 400
    for options, reports in (({"include_usage": True}, 1), ({}, 0)):
        body = {"model": model_of(url), "prompt": PROMPT, "max_tokens": 8, "stream": True, "stream_options": options}
        text = httpx.post(f"{url}/v1/completions", json=body, timeout=120).text
        assert text.count('"speculative_decoding":{') == reports


def test_a_cap_is_silent(ngram: VLLMClient) -> None:
    """Trap 3: all but one token of the window are the prompt; of sixteen tokens one comes, and "has its length"."""
    answer = ngram.generate([40 + i % 97 for i in range(WINDOW - 1)], Ask(16), ngram.model()["id"])
    assert (answer.finish, answer.completion_tokens, answer.asked_tokens) == ("length", 1, 16)


def requests_counted(url: str) -> float:
    return read_counters(httpx.get(f"{url}/metrics").text, "vllm", ["request_success_total"])["request_success_total"]


def running(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


def test_an_abort_by_id_does_nothing_and_a_closed_connection_is_counted_nowhere(servers: VLLMServers) -> None:
    """Traps 4 and 5: `/abort_requests` says that it aborted, and the request goes on to its last token; closing the
    connection ends it, and no counter of requests grows, so that the cross-check must not expect it."""
    url = servers.url("none")
    long = {"model": model_of(url), "prompt": PROMPT, "max_tokens": 400, "stream": True, "ignore_eos": True}
    before = requests_counted(url)
    with httpx.stream("POST", f"{url}/v1/completions", json=long | {"request_id": "left"}, timeout=120) as answer:
        lines = answer.iter_lines()
        next(lines)
        said = httpx.post(f"{url}/abort_requests", json={"request_ids": ["cmpl-left"]}, timeout=60)
        rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert said.json()["aborted"] == 1 and rest[-1]["choices"][0]["finish_reason"] == "length"
    assert requests_counted(url) == before + 1
    with httpx.stream("POST", f"{url}/v1/completions", json=long, timeout=120) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 60
    while running(url) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(url) == 0 and requests_counted(url) == before + 1


def test_a_padded_step_is_no_round(servers: VLLMServers, ngram: VLLMClient) -> None:
    """Trap 7: a prompt one token past whole blocks, sent twice. The second answer reports a step that nobody drafted;
    rounds, drafts and τ are those of the first."""
    prompt = [*(40 + i % 23 for i in range(4 * BLOCK)), 40]
    server = engine_of("vllm").describe(ngram)
    answers: list[Answer] = [ngram.generate(prompt, Ask(16), ngram.model()["id"]) for _ in range(2)]
    assert [answer.cached_tokens for answer in answers] == [0, 4 * BLOCK]
    reports = [read_report(answer.details) for answer in answers]
    assert reports[1].steps == reports[0].steps + 1 and reports[1].per_step_drafted[0] == reports[1].width
    found = [server.acceptance(answer) for answer in answers]
    assert (found[0].rounds, found[0].matched, found[0].proposed, found[0].matched_lengths) == (
        found[1].rounds,
        found[1].matched,
        found[1].proposed,
        found[1].matched_lengths,
    )


def test_a_reset_empties_the_cache(ngram: VLLMClient) -> None:
    """After it nothing of an earlier prompt is found; the client's own reset is the one that runs use."""
    prompt, model = [60 + i % 30 for i in range(3 * BLOCK)], ngram.model()["id"]
    ngram.generate(prompt, Ask(4), model)
    assert ngram.generate(prompt, Ask(4), model).cached_tokens == 2 * BLOCK
    assert ngram.flush()
    assert ngram.generate(prompt, Ask(4), model).cached_tokens == 0


def renumber(checkpoint: Path) -> None:
    """A draft's layers as vLLM counts them: states before a layer, not after it."""
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    layers = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in layers]
    path.write_text(json.dumps(config))


def test_same_draft_gives_the_same_tau(servers: VLLMServers, tmp_path: Path) -> None:
    """One EAGLE-3 checkpoint of our trainer in both, its layers renumbered for vLLM: the same text, and in every turn
    the same accepted drafts, step by step. Trap 6: of a prompt kept from the turn before one block is lost."""
    train_draft(
        servers.checkpoint, "eagle3", servers.target, servers.rollouts, NEW_TOKENS, draft_vocab_size=VOCABULARY // 2
    )
    ours = run(own_engine(servers, [f"eagle3={servers.checkpoint}"], k=CHAIN), tmp_path / "engine").rows
    renumber(servers.checkpoint)
    more = {"vllm__warm_up_rollouts": 1, "vllm__min_tau": 0.0}
    done = run_served(servers.config(servers.url("eagle3"), **more), tmp_path / "server", environ={})
    steps = {(row.rollout, row.turn): (row.output_ids, row.matched_lengths) for row in ours if row.drafter == "eagle3"}
    assert {(row.rollout, row.turn): (row.output_ids, row.matched_lengths) for row in done.rows} == steps
    assert sum(row.matched or 0 for row in done.rows) > 0 and len(done.rows) == 9
    assert all(row.reused_tokens == row.expected_reused_tokens for row in done.rows if row.turn)
    assert done.parts["eagle3"].windows[0]["counters"]["disagreements"] == []


@pytest.mark.timeout(1800)
def test_launch_survives_a_killed_server(servers: VLLMServers, tmp_path: Path) -> None:
    """--launch of two drafters whose first server is killed in mid-run: one rollout is lost, and --resume finishes."""
    servers.stop()
    more: dict[str, Any] = {"drafters": ["ngram"], "drafter_options.ngram": NGRAM}
    config = servers.config(vllm__port=free_port(), vllm__warm_up_rollouts=0, **more)
    assert_survives_a_kill(config, tmp_path / "run")
    logs = [(tmp_path / "run" / f"server-{name}.log").read_text() for name in ("none", "ngram")]
    assert all("--no-async-scheduling" in log for log in logs) and '"method": "ngram"' in logs[1]
