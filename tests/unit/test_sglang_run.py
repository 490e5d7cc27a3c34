"""Whole runs through servers on loopback sockets: the fake server speaks, drops, and is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from localmodel import save_rollouts, session
from servedkit import EAGLE3, Behaviour, FakeServer, of, served, settings
from test_template_probe import PYTHON

from agentbench_spec.config import load_config
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.serving.part import is_finished
from agentbench_spec.serving.served_run import run_served


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return save_rollouts(tmp_path / "rollouts.jsonl", *(session(name, 3) for name in "abcd"))


def test_baseline_and_drafter_make_paired_rows(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Two servers, one without speculation: every turn of both, identical output, tau from counts, speed-up paired."""
    with FakeServer() as plain, FakeServer(Behaviour(dict(EAGLE3), step_s=0.001)) as spec:
        done = served(settings(model, rollouts, spec.base_url, plain.base_url), tmp_path / "run")
        counted = (plain.counters["num_requests"], spec.counters["num_requests"])
    assert counted == (12, 12)
    assert [len(of(done, name)) for name in ("none", "eagle3")] == [12, 12]
    row = of(done, "eagle3")[1]
    # steps accept 0, 1, 2, 3 drafts: 1 + 2 + 3 + 4 tokens after the prefill token make 11, then one more step of 1
    assert (row.rounds, row.matched, row.emitted, row.matched_histogram) == (5, 6, 11, [2, 1, 1, 1])
    assert (row.tau, row.tau_raw, row.server_accept_length, row.trimmed) == (2.2, 2.2, 2.4, 0)
    assert row.chunk_tokens == [1, 1, 2, 3, 4, 1] and row.ttft_s and row.tpot_s and row.step_s
    assert (row.scope, row.identical, row.concurrency, row.k) == ("request", True, 1, 3)
    assert row.speedup is not None and done.lossless
    plain_row = of(done, "none")[1]
    assert (plain_row.tau, plain_row.rounds, plain_row.k, plain_row.scope) == (1.0, 11, 0, "request")
    windows = json.loads((tmp_path / "run" / "serving.json").read_text())["eagle3"]["windows"]
    assert windows[0]["counters"]["disagreements"] == [] and windows[0]["counters"]["tau_emitted"] == pytest.approx(2.2)


def test_rows_and_notes_say_how_messages_were_bent(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if prompts are bent to the target's template and the rows of a server do not say so."""
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(PYTHON)
    with FakeServer() as plain, FakeServer(Behaviour(dict(EAGLE3))) as spec:
        done = served(settings(tmp_path / "model", rollouts, spec.base_url, plain.base_url), tmp_path / "run")
    assert {row.labels.get("template") for row in done.rows} == {"arguments as text"}
    assert sum("bent to the chat template: arguments as text" in note for note in done.notes) == 2


def test_prefix_reuse_is_what_was_expected_on_both_sides(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """The fake cache is honest: reuse equals the expectation exactly, one token less under EAGLE's pair keys."""
    with FakeServer() as plain, FakeServer(Behaviour(dict(EAGLE3))) as spec:
        done = served(settings(model, rollouts, plain.base_url, spec.base_url, workload__limit=1), tmp_path / "run")
    own = {name: [row.reused_tokens for row in of(done, name)] for name in ("none", "eagle3")}
    assert own["none"][0] == 0 and own["none"][1:] == [n + 1 for n in own["eagle3"][1:] if n is not None]
    assert all(row.reused_tokens == row.expected_reused_tokens for row in done.rows)
    assert all(row.new_tokens == (row.context_tokens or 0) - (row.reused_tokens or 0) for row in done.rows)


def test_lost_prefix_is_told(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A server that silently keeps less of the prefix looks only a little slower; the run says so in words."""
    with FakeServer(Behaviour(lose_prefix_tokens=40)) as plain:
        done = served(settings(model, rollouts, plain.base_url, workload__limit=1), tmp_path / "run")
    assert any("shorter cached prefix" in line for line in done.notes)


def test_turns_keep_their_order_and_rollouts_their_concurrency(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """C = 3: at most three requests at once, and a rollout's next prompt never leaves before its last answer."""
    with FakeServer(Behaviour(step_s=0.004)) as plain:
        done = served(settings(model, rollouts, plain.base_url, sglang__concurrency=3), tmp_path / "run")
        most, asked = plain.most_at_once, [body["input_ids"] for body in plain.requests]
    assert most == 3 and len(asked) == 12
    for name in "abcd":
        lengths = [row.context_tokens for row in done.rows if row.rollout == name]
        seen = [len(ids) for ids in asked if len(ids) in lengths and name.encode()[0] in ids]
        assert lengths == sorted(lengths) and seen == sorted(seen)


def test_urls_of_one_kind_share_the_rollouts(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Two equal servers: each rollout goes to one of them whole, and together they do each once."""
    with FakeServer(Behaviour(step_s=0.002)) as one, FakeServer(Behaviour(step_s=0.002)) as two:
        done = served(settings(model, rollouts, one.base_url, two.base_url), tmp_path / "run")
        shares = (len(one.requests), len(two.requests))
    assert sum(shares) == 12 and min(shares) >= 3
    homes = {row.rollout: {other.server for other in done.rows if other.rollout == row.rollout} for row in done.rows}
    assert all(len(home) == 1 for home in homes.values())


@pytest.mark.parametrize(
    ("fault", "status", "why"),
    [
        ("drop", "error", "RemoteProtocolError"),
        ("error_event", "error", "scheduler hit an exception"),
        ("overloaded", "error", "503"),
        ("abort", "error", "out of memory"),
        ("retract", "retracted", "begun anew 2 times"),
        ("lie", "invalid", "correct drafts are"),
    ],
)
def test_one_bad_answer_is_one_row_that_says_why(
    model: Path, rollouts: Path, tmp_path: Path, fault: str, status: str, why: str
) -> None:
    """The fault hits the second of the second rollout's three turns; the others are whole, and no total is short."""
    with FakeServer(Behaviour(dict(EAGLE3), faults={4: fault})) as spec:
        done = served(settings(model, rollouts, spec.base_url), tmp_path / "run")
    bad = [row for row in done.rows if row.status != "ok"]
    left = [(1, status), *([(2, "not_reached")] if status == "error" else [])]
    assert [(row.rollout, row.turn, row.status) for row in bad] == [(done.rows[4].rollout, *each) for each in left]
    assert why in (bad[0].error or "") and done.summary.drafters[0].left_out == {kind: 1 for _, kind in left}
    assert len(done.rows) == 12
    assert status == "retracted" or bad[0].tau is None


def test_another_server_takes_over(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """One of two servers dies: its rollout is replayed whole on the other, and the run ends."""
    with FakeServer(Behaviour(faults={1: "die"}, step_s=0.002)) as one, FakeServer(Behaviour(step_s=0.002)) as two:
        done = served(settings(model, rollouts, one.base_url, two.base_url), tmp_path / "run")
        urls = {two.base_url}
    assert len(done.rows) == 12 and {row.server for row in done.rows} == urls


def test_totals_only_server_gives_no_per_turn_tau(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Field case 30: no details per request. Rows say scope=server and hold no tau; the total stands apart, marked."""
    with FakeServer(Behaviour(dict(EAGLE3), spec_details=False)) as spec:
        done = served(settings(model, rollouts, spec.base_url), tmp_path / "run")
    assert {(row.scope, row.tau, row.rounds) for row in done.rows} == {("server", None, None)}
    assert done.summary.drafters[0].tau.pooled is None
    entry = json.loads((tmp_path / "run" / "serving.json").read_text())["eagle3"]["windows"][0]
    assert entry["server_accept_length"] == {"scope": "server", "each": [9.9]}
    smuggled = dataclasses.replace(done.rows[0], tau=3.0, rounds=4, emitted=12)
    with pytest.raises(MeasurementError, match="no place in a turn's row"):
        check_row(smuggled)


def test_old_server_speaks_old_names(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Without a histogram and under the old names tau is the same."""
    with FakeServer(Behaviour(dict(EAGLE3), old_names=True)) as spec:
        done = served(settings(model, rollouts, spec.base_url), tmp_path / "run")
    assert {row.tau_raw for row in done.rows} == {2.2} and done.rows[0].matched_histogram is None


def test_merged_chunks_keep_tau_and_give_up_no_token(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """All steps in one late chunk: tau stays 2.2, twelve tokens are counted, ITL comes from the only gap there is."""
    with FakeServer(Behaviour(dict(EAGLE3), faults={0: "merge"})) as spec:
        done = served(settings(model, rollouts, spec.base_url), tmp_path / "run")
    row = done.rows[0]
    assert (row.chunk_tokens, row.output_tokens, row.tau_raw) == ([1, 11], 12, 2.2)


@pytest.mark.parametrize("null_details", [False, True])
def test_chat_route(model: Path, rollouts: Path, tmp_path: Path, null_details: bool) -> None:
    """Late details make tau; null ones make it unknown. Tokens per chunk are unknown on this route either way."""
    with FakeServer(Behaviour(dict(EAGLE3), null_details=null_details)) as spec:
        done = served(settings(model, rollouts, spec.base_url, sglang__client="chat"), tmp_path / "run")
        asked = spec.requests[1]
    row = done.rows[1]
    assert row.tau_raw == (None if null_details else 2.2)
    assert (row.reused_tokens is None, row.chunk_tokens, row.output_ids) == (null_details, None, None)
    assert row.output_tokens == 12 and row.ttft_s and row.tpot_s
    assert (
        asked["model"] == "fake-id"
        and asked["return_spec_tokens_details"]
        and asked["stream_options"] == {"include_usage": True}
    )
    call = next(m for m in asked["messages"] if m.get("tool_calls"))["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"folder": "d0"}


def test_server_without_any_self_description_needs_a_label(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A chat-only server: refused without a name for its drafter, measured with one."""
    with FakeServer(Behaviour(dict(EAGLE3), server_info=False)) as spec:
        config = settings(model, rollouts, spec.base_url, sglang__client="chat")
        with pytest.raises(ConfigError, match="--drafter NAME"):
            served(config, tmp_path / "one")
        labelled = settings(model, rollouts, spec.base_url, sglang__client="chat", drafters=["mystery"])
        done = served(labelled, tmp_path / "two")
    assert {row.drafter for row in done.rows} == {"mystery"}


def test_history_of_its_own_words(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """self: what the server said is in the next prompt, by text through the template."""
    with FakeServer() as plain:
        served(settings(model, rollouts, plain.base_url, replay__history="self", workload__limit=1), tmp_path / "run")
        first, second = (body["input_ids"] for body in plain.requests[:2])
    assert second[: len(first)] == first and len(second) > len(first) + 12


def test_warm_up_is_flushed_and_not_in_the_rows(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Two rollouts warm up, the flush is refused once and tried again; the first measured turn finds an empty cache."""
    with FakeServer(Behaviour(flush_refusals=1, loading_polls=2)) as plain:
        config = settings(model, rollouts, plain.base_url, sglang__warm_up_rollouts=2)
        done = served(config, tmp_path / "run")
        sent, flushes = len(plain.requests), plain.flushes
    assert (sent, flushes, len(done.rows)) == (6 + 12, 1, 12)
    assert [row.reused_tokens for row in done.rows if row.rollout == "a" and row.turn == 0] == [0]


def test_oversized_turn_is_a_row(model: Path, tmp_path: Path) -> None:
    """Beyond the server's window nothing is sent; each row says so."""
    mixed = save_rollouts(tmp_path / "mixed.jsonl", session("big", 1), session("small", 1))
    with FakeServer(Behaviour(max_model_len=30)) as plain:
        done = served(settings(model, mixed, plain.base_url), tmp_path / "run")
        assert plain.requests == []
    assert {row.status for row in done.rows} == {"oversized"}


def test_a_workload_counts_the_tokens_of_the_target_that_was_named(model: Path, tmp_path: Path) -> None:
    """Fails if a served run alone makes its workload without the target, or for a default that nobody serves."""
    counting = Path("odd_plugins:counts_tokens")
    with FakeServer() as server:
        done = served(settings(model, counting, server.base_url), tmp_path / "run")
        assert [row.labels["counted_with"] for row in done.rows] == [str(model)]
        unnamed = load_config(
            flags={"backend": "sglang", "workload.name": str(counting), "sglang.base_urls": [server.base_url]}
        )
        with pytest.raises(ConfigError, match="whose tokens"):
            served(unnamed, tmp_path / "unnamed")


def test_near_tie_is_told_apart(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """The drafter's server says other tokens; its own log-probabilities call them near, so they are ties."""
    with FakeServer() as plain, FakeServer(Behaviour(dict(EAGLE3), vocab=59)) as spec:
        done = served(settings(model, rollouts, plain.base_url, spec.base_url, workload__limit=1), tmp_path / "run")
    differing = [row for row in of(done, "eagle3") if not row.identical]
    assert differing and all(row.divergence in ("tie", "error") and row.divergence_margin for row in differing)


def test_a_finished_part_needs_no_server_whatever_its_errors_say(tmp_path: Path) -> None:
    """Fails if an error's text with a line separator of Unicode counts as lines, and a server is started in vain."""
    with RunWriter.create(tmp_path / "none", {"settings_digest": "x"}) as writer:
        writer.rollout_done("a", status="error", error="the server said: bad\u2028request\x85")
        writer.finish()
    assert is_finished(tmp_path / "none", [session("a")])
    assert not is_finished(tmp_path / "none", [session("a"), session("b")])


REFUSALS = [
    ({}, {"sglang__launch": True}, "not both"),
    ({}, {"decode__mode": "forced"}, "use generate"),
    (EAGLE3 | {"device": "cpu"}, {"decode__temperature": 0.8}, "set it to 0"),
    (EAGLE3 | {"attention_backend": "aiter"}, {"decode__temperature": 0.8}, "rejection-sampling"),
    ({"disable_radix_cache": True}, {}, "without --disable-radix-cache"),
    ({}, {"replay__prefix": "cold"}, "start it with --disable-radix-cache"),
    ({"max_running_requests": 2}, {"sglang__concurrency": 3}, "--max-running-requests 2"),
]


@pytest.mark.parametrize(("args", "more", "way_out"), REFUSALS)
def test_refused_with_a_way_out(
    model: Path, rollouts: Path, tmp_path: Path, args: dict[str, Any], more: dict[str, Any], way_out: str
) -> None:
    """Nothing is sent to a server whose numbers would mislead."""
    with FakeServer(Behaviour(dict(args))) as server:
        with pytest.raises(ConfigError, match=way_out):
            served(settings(model, rollouts, server.base_url, **more), tmp_path / "run")
        assert server.requests == []


def test_simulated_acceptance_is_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A forgotten test variable would publish invented acceptance."""
    with FakeServer() as server, pytest.raises(ConfigError, match="unset it"):
        run_served(settings(model, rollouts, server.base_url), tmp_path, environ={"SGLANG_SIMULATE_ACC_LEN": "3"})


def test_draft_that_never_hits_is_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """tau 1.0: found in the warm-up, before anything is measured; allowed on request."""
    with FakeServer(Behaviour(dict(EAGLE3), accepted=(0,))) as spec:
        config = settings(model, rollouts, spec.base_url, sglang__warm_up_rollouts=1)
        with pytest.raises(MeasurementError, match="do not belong together"):
            served(config, tmp_path / "one")
        assert len(spec.requests) == 3
        allowed = settings(model, rollouts, spec.base_url, sglang__min_tau=0.0)
        assert {row.tau for row in served(allowed, tmp_path / "two").rows} == {1.0}


def test_wrong_architecture_and_short_draft_are_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """An EAGLE-3 head under EAGLE; and a draft whose positions end before the rollouts do."""
    draft = tmp_path / "draft"
    draft.mkdir()
    geometry = {"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 128}
    (draft / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 64, **geometry})
    )
    path = {"speculative_draft_model_path": str(draft), "speculative_num_draft_tokens": 4}
    with (
        FakeServer(Behaviour({"speculative_algorithm": "EAGLE", **path})) as spec,
        pytest.raises(ConfigError, match="--speculative-algorithm EAGLE3"),
    ):
        served(settings(model, rollouts, spec.base_url), tmp_path / "one")
    with (
        FakeServer(Behaviour({"speculative_algorithm": "EAGLE3", **path})) as spec,
        pytest.raises(ConfigError, match="was made for 64"),
    ):
        served(settings(model, rollouts, spec.base_url), tmp_path / "two")


def test_dlite_has_no_limit_of_positions_and_no_draft_kv(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Its positions are those within a block, and its five layers keep nothing: neither a refusal nor a cost."""
    draft = tmp_path / "draft"
    draft.mkdir()
    geometry = {"num_hidden_layers": 5, "num_attention_heads": 4, "hidden_size": 128}
    (draft / "config.json").write_text(json.dumps({"dlite_config": {}, "max_position_embeddings": 64, **geometry}))
    (draft / "model.safetensors").write_bytes(b"0" * 8_400)
    args = {"speculative_draft_model_path": str(draft), "speculative_num_draft_tokens": 4}
    with FakeServer() as plain, FakeServer(Behaviour({"speculative_algorithm": "DLITE", **args})) as spec:
        done = served(settings(model, rollouts, plain.base_url, spec.base_url, workload__limit=1), tmp_path / "run")
    assert all(row.status == "ok" and row.reused_tokens == row.expected_reused_tokens for row in of(done, "dlite"))
    entry = json.loads((tmp_path / "run" / "serving.json").read_text())["dlite"]
    figures = {cost["method"]: cost["value"] for cost in entry["draft_kv"]}
    # 4,096 tokens in 0.008 GiB are 2,097.2 bytes each: the weights would cost five of them
    assert (figures["formula"], figures["capacity_drop"], figures["capacity_less_weights"]) == (0, 0, 4091)
    assert entry["token_capacity"] == 4096


def test_unequal_limits_are_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """The default lowers speculative servers to 48 running requests: the comparison would be of queues."""
    with (
        FakeServer() as plain,
        FakeServer(Behaviour(EAGLE3 | {"max_running_requests": 48})) as spec,
        pytest.raises(ConfigError, match=r"--max-running-requests .64 for the baseline, 48 for eagle3"),
    ):
        served(settings(model, rollouts, plain.base_url, spec.base_url), tmp_path / "run")
