"""A real SGLang 0.5.23 server on this CPU, through our own launcher and client. Timings are void here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cpu_servers import KEY, NEW_TOKENS, Servers, against_plain, own_engine
from killed_server import assert_survives_a_kill, free_port
from served_models import train_draft

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.runs.execute import run
from agentbench_spec.runs.presets import ThroughputPreset
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.engines.sglang_client import SGLangClient as Client
from agentbench_spec.serving.served_run import run_served
from agentbench_spec.serving.sweep import sweep

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


def test_same_ids_as_our_engine(servers: Servers, plain_rows: list[TurnRow], tmp_path: Path) -> None:
    """Fp32 greedy, nine turns with growing contexts: server and engine say the same, token for token."""
    rows = run(own_engine(servers, ["none"]), tmp_path / "engine").rows
    engine = {(row.rollout, row.turn): row.output_ids for row in rows}
    server = {(row.rollout, row.turn): row.output_ids for row in plain_rows}
    assert len(engine) == 9 and server == engine


def test_plain_rows_are_complete(plain_rows: list[TurnRow]) -> None:
    """The prefix kept from the turn before is exactly what was expected; clocks and counts are there."""
    assert [row.status for row in plain_rows] == ["ok"] * 9
    for row in plain_rows:
        assert row.rounds == (row.output_tokens or 0) - 1 and row.ttft_s and row.server_ttft_s
        if row.turn:
            assert row.reused_tokens == row.expected_reused_tokens and row.expected_reused_tokens


def test_ngram_is_lossless_and_counts_agree(servers: Servers, tmp_path: Path) -> None:
    """Every identity holds on real answers, the Prometheus totals agree, and the text is the baseline's."""
    done = against_plain(servers, "ngram", tmp_path / "run", sglang__warm_up_rollouts=1)
    rows = [row for row in done.rows if row.drafter == "ngram"]
    assert [row.status for row in rows] == ["ok"] * 9 and all(row.identical for row in rows)
    assert all(row.scope == "request" and row.matched_histogram and row.tau_raw for row in rows if row.rounds)
    counters = done.parts["ngram"].windows[0]["counters"]
    assert counters["disagreements"] == [] and counters["tau_emitted"] == counters["own_tau_emitted"]
    assert all(row.reused_tokens == row.expected_reused_tokens for row in rows if row.turn)


def test_simulated_acceptance_of_three_is_three(servers: Servers, tmp_path: Path) -> None:
    """The server is told to accept 3 tokens a step: our tau must be exactly 3, the server's own figure must not."""
    more = {"sglang__allow_simulated_acceptance": True, "sglang__warm_up_rollouts": 1}
    done = run_served(servers.config(servers.url("simulated"), **more), tmp_path / "run", environ={})
    assert [row.status for row in done.rows] == ["ok"] * 9
    assert {row.tau_raw for row in done.rows} == {3.0}
    assert {row.server_accept_length for row in done.rows} == {25 / 8}
    assert all(set(row.matched_histogram or ()) <= {0, row.rounds} for row in done.rows)


def test_eagle_finds_one_prefix_token_less(servers: Servers) -> None:
    """A 46-token prompt sent again with three tokens appended: 46 cached without speculation, 45 with pair keys."""
    prompt, ask = [40 + i % 50 for i in range(46)], Ask(8)
    found = {}
    for name in ("none", "simulated"):
        with Client(servers.url(name)) as client:
            assert client.flush()
            client.generate(prompt, ask)
            found[name] = client.generate([*prompt, 300, 301, 302], ask).cached_tokens
    assert found == {"none": 46, "simulated": 45}


def test_flush_empties_cache_and_counters(servers: Servers) -> None:
    """After a flush nothing of an earlier prompt is found."""
    prompt, ask = [60 + i % 30 for i in range(40)], Ask(4)
    with Client(servers.url("ngram"), api_key=KEY) as client:
        client.generate(prompt, ask)
        assert client.generate(prompt, ask).cached_tokens == 39
        assert client.flush()
        assert client.generate(prompt, ask).cached_tokens == 0


def test_same_draft_gives_the_same_tau(servers: Servers, tmp_path: Path) -> None:
    """One EAGLE-3 checkpoint of our trainer in both: the same text, and the same accepted drafts in every turn."""
    train_draft(servers.checkpoint, "eagle3", servers.target, servers.rollouts, NEW_TOKENS)
    more = {"sglang__warm_up_rollouts": 1, "sglang__min_tau": 0.0}
    done = against_plain(servers, "eagle3", tmp_path / "server", **more)
    rows = [row for row in done.rows if row.drafter == "eagle3"]
    assert [row.status for row in rows] == ["ok"] * 9 and all(row.identical for row in rows)
    assert all(row.reused_tokens == row.expected_reused_tokens for row in rows if row.turn)
    ours = run(own_engine(servers, [f"eagle3={servers.checkpoint}"], k=3), tmp_path / "engine").rows
    counts = {(row.rollout, row.turn): (row.rounds, row.matched) for row in ours if row.drafter == "eagle3"}
    assert {(row.rollout, row.turn): (row.rounds, row.matched) for row in rows} == counts
    assert sum(row.matched or 0 for row in rows) > 0


def test_a_real_server_wants_its_key(servers: Servers, tmp_path: Path) -> None:
    """Without the key, or with another, nothing is measured and the message says what is wanted."""
    config = servers.config(servers.url("ngram"))
    with pytest.raises(ConfigError, match=r"wants an API key \(status 401\)"):
        run_served(config, tmp_path / "without", environ={})
    with pytest.raises(ConfigError, match="does not accept the API key"):
        run_served(config, tmp_path / "wrong", api_key="another", environ={})


def test_two_rollouts_at_once_say_the_same(servers: Servers, tmp_path: Path) -> None:
    """The throughput table's cells at concurrency 1 and 2: all identities hold, and batching changes no token."""
    config = servers.config(servers.url("none"), servers.url("ngram"), sglang__warm_up_rollouts=1)
    plan = ThroughputPreset(concurrency=(1, 2), requests_per_row=0, requests_least=3)
    rows = sweep(config, tmp_path / "sweep", plan, api_key=KEY, environ={}).rows
    assert [(row.drafter, row.concurrency, row.turns) for row in rows] == [
        (name, concurrency, 9) for concurrency in (1, 2) for name in ("none", "ngram")
    ]
    assert all(row.left_out == {} and row.tokens_per_s and row.emitted_raw for row in rows)
    assert all(row.outputs == rows[0].outputs for row in rows)


@pytest.mark.timeout(1800)
def test_launch_survives_a_killed_server(servers: Servers, tmp_path: Path) -> None:
    """--launch of two drafters whose first server is killed in mid-run: one rollout is lost, and --resume finishes."""
    servers.stop()
    more: dict[str, Any] = {"drafters": ["NGRAM"], "drafter_options.NGRAM": {"num_draft_tokens": 8}}
    config = servers.config(sglang__port=free_port(), sglang__warm_up_rollouts=0, **more)
    assert_survives_a_kill(config, tmp_path / "run")
    assert "--speculative-algorithm NGRAM" in (tmp_path / "run" / "server-ngram.log").read_text()
