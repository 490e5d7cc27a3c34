"""Whole runs through a fake vLLM server, and through one that tells nothing but usage."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from localmodel import save_rollouts, session
from rowkit import make_row
from runkit import call
from servedkit import FAKE_VLLM, FakeServer, FakeVLLM, VLLMBehaviour, ended, of, served, settings, timeless

from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.engines.vllm_client import VLLMClient, add_completion
from agentbench_spec.serving.server_rows import fill_answer
from agentbench_spec.serving.stream import Answer, RequestFailed

EAGLE3: dict[str, Any] = {"method": "eagle3"}
NGRAM: dict[str, Any] = {"method": "ngram", "k": 4, "steps": (0, None, 2, None)}


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return save_rollouts(tmp_path / "rollouts.jsonl", *(session(name, 3) for name in "abcd"))


def vllm(model: Path, rollouts: Path, *servers: FakeVLLM, **more: Any) -> Any:
    return settings(model, rollouts, *(server.base_url for server in servers), backend="vllm", **more)


def test_baseline_and_drafter_make_paired_rows(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Two servers, one without speculation: every turn of both, identical output, tau, clocks, counters that agree."""
    with FakeVLLM() as plain, FakeVLLM(VLLMBehaviour(**EAGLE3)) as spec:
        done = served(vllm(model, rollouts, spec, plain), tmp_path / "run")
        body = spec.requests[0]
    assert [len(of(done, name)) for name in ("none", "eagle3")] == [12, 12]
    row = of(done, "eagle3")[1]
    # steps accept 0, 1, 2, 3 drafts: 1 + 2 + 3 + 4 tokens after the prefill token make 11, then one more step of 1
    assert (row.rounds, row.matched, row.emitted, row.matched_lengths) == (5, 6, 11, [0, 1, 2, 3, 0])
    assert (row.tau, row.tau_raw, row.server_accept_length, row.trimmed) == (2.2, 2.2, 2.2, 0)
    assert (row.backend, row.k, row.scope, row.identical, row.status) == ("vllm", 3, "request", True, "ok")
    assert row.ttft_s and row.tpot_s and row.speedup and row.chunk_tokens == [1, 1, 2, 3, 4, 1]
    assert (row.server_ttft_s, row.server_decode_s, row.server_queue_s) == (0.011, 0.02, 0.001)
    assert of(done, "none")[1].tau == 1.0 and done.lossless
    assert body["stream_options"] == {"include_usage": True} and isinstance(body["prompt"][0], int)
    windows = json.loads((tmp_path / "run" / "serving.json").read_text())["eagle3"]["windows"]
    assert windows[0]["counters"]["disagreements"] == [] and windows[0]["counters"]["own"]["drafts"] > 0
    assert all(row.reused_tokens == row.expected_reused_tokens for row in done.rows if row.rollout == "a")


def test_look_up_rounds_hold_the_steps_that_are_not_reported(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Trap 1 in a run: the server's mean of drafted steps is its own column and above tau, which counts them all."""
    with FakeVLLM(VLLMBehaviour(**NGRAM)) as spec:
        done = served(vllm(model, rollouts, spec), tmp_path / "run")
    row = done.rows[0]
    # 0, none, 2, none, 0, none, 2, none: 1 + 1 + 3 + 1 + 1 + 1 + 3 = 11 after the prefill token, in seven steps
    assert (row.rounds, row.matched, row.trimmed, row.tau, row.tau_raw) == (7, 4, 0, 11 / 7, 11 / 7)
    assert row.server_accept_length == 2.0 and row.proposed_lengths == [4, 4, 4, 4, 0, 0, 0]
    assert row.matched_histogram == [5, 0, 2, 0, 0]
    assert (row.engine_version, row.async_scheduling) == ("0.32.0", False)


@pytest.mark.parametrize(
    ("more", "unknown", "flag"),
    [
        ({"reports": None}, True, "--per-request-spec-decode-metrics detailed"),
        ({"version": "0.11.0"}, True, "vLLM 0.32 or later"),
        ({"request_metrics": False}, False, "--enable-per-request-metrics"),
        ({"prompt_details": False}, False, "--enable-prompt-tokens-details"),
        ({"dev_mode": False, "method": None}, False, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_what_is_off_is_null_and_named(
    model: Path, rollouts: Path, tmp_path: Path, more: dict[str, Any], unknown: bool, flag: str
) -> None:
    """An old version, or a flag that is off: null, never zero, and the run names the flag that turns it on."""
    with FakeVLLM(VLLMBehaviour(**(EAGLE3 | more))) as spec:
        done = served(vllm(model, rollouts, spec, vllm__warm_up_rollouts=1), tmp_path / "run")
    row = done.rows[1]
    assert row.status == "ok" and (row.tau is None) == unknown and (row.rounds is None) == unknown
    assert any(flag in note for note in done.notes)
    if "prompt_details" in more:
        assert row.reused_tokens is None


def test_summary_reports_give_tau_without_positions(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Without arrays the totals are there, and acceptance by position has the histogram alone."""
    with FakeVLLM(VLLMBehaviour(**EAGLE3, reports="summary")) as spec:
        done = served(vllm(model, rollouts, spec), tmp_path / "run")
    row = done.rows[1]
    assert (row.tau, row.matched_lengths, row.matched_histogram) == (2.2, None, [2, 1, 1, 1])


@pytest.mark.parametrize(
    ("fault", "status", "why"),
    [
        ("drop", "error", "RemoteProtocolError"),
        ("error_event", "error", "scheduler hit an exception"),
        ("overloaded", "error", "503"),
        ("abort", "error", "aborted the request"),
        ("lie", "invalid", "num_accepted_draft_tokens"),
    ],
)
def test_one_bad_answer_is_one_row_that_says_why(
    model: Path, rollouts: Path, tmp_path: Path, fault: str, status: str, why: str
) -> None:
    """The fault hits the second turn of the second rollout; trap 5: an abort is in no counter, and is not missed."""
    with FakeVLLM(VLLMBehaviour(**EAGLE3, faults={4: fault})) as spec:
        done = served(vllm(model, rollouts, spec), tmp_path / "run")
    bad = [row for row in done.rows if row.status != "ok"]
    assert bad[0].status == status and why in (bad[0].error or "") and bad[0].tau is None
    assert len(bad) == (2 if status == "error" else 1) and len(done.rows) == 12
    check = json.loads((tmp_path / "run" / "serving.json").read_text())["eagle3"]["windows"][0]["counters"]
    assert fault != "abort" or (check["disagreements"] == [] and check["own"]["requests"] == 10)


def test_merged_events_leave_the_rounds_unknown_not_wrong(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A look-up whose last step may have been trimmed, and two steps in one event: no tau rather than a wrong one."""
    own = {"method": "ngram", "k": 4, "steps": (None, 3)}
    with FakeVLLM(VLLMBehaviour(**own, faults={1: "merge"})) as spec:
        done = served(vllm(model, rollouts, spec, decode__max_new_tokens=10), tmp_path / "run")
    whole, merged = done.rows[0], done.rows[1]
    assert (whole.rounds, whole.matched, whole.trimmed) == (4, 6, 1) and whole.tau == 9 / 4
    assert (merged.rounds, merged.tau, merged.emitted, merged.status) == (None, None, 9, "ok")
    assert any("1 of 12 turns have no" in note for note in done.notes)


def test_a_closed_connection_ends_a_request_and_an_abort_by_id_does_not() -> None:
    """Traps 4 and 5: `/abort_requests` says that it did; only closing ends a request, and no counter knows of it."""
    behaviour = VLLMBehaviour(**EAGLE3, step_s=0.02, faults={0: "error_event"})
    with FakeVLLM(behaviour) as spec, VLLMClient(spec.base_url) as client:
        said = httpx.post(f"{spec.base_url}/abort_requests", json={"request_ids": ["cmpl-1"]}).json()
        with pytest.raises(RequestFailed, match="scheduler"):
            client.generate([1, 2, 3], Ask(400), "tiny")
        deadline = time.monotonic() + 20
        while spec.at_once and time.monotonic() < deadline:
            time.sleep(0.02)
        assert said == {"aborted": 1} and (spec.at_once, spec.closed, spec.totals["requests"]) == (0, 1, 0)
        body = {"prompt": [1], "max_tokens": 2, "n": 2, "temperature": 0.0}
        own = httpx.post(f"{spec.base_url}/v1/completions", json=body)
    assert own.status_code == 400 and "n must be 1" in own.text and spec.abort_calls == 1


def test_several_choices_have_no_metrics() -> None:
    """Trap 2: sampled with `n = 2`, `metrics` is null as a whole: the row has no τ and no clock of the server's, and no
    zero either; the same request with one choice has both."""
    body = {"prompt": [1, 2, 3], "max_tokens": 12, "temperature": 0.8, "n": 2, "return_token_ids": True}
    with FakeVLLM(VLLMBehaviour(**EAGLE3)) as spec, VLLMClient(spec.base_url) as client:
        two = httpx.post(f"{spec.base_url}/v1/completions", json=body).json()
        one = client.generate([1, 2, 3], Ask(12, Sampling(temperature=0.8)), "tiny")
        server = engine_of("vllm").describe(client)
    assert len(two["choices"]) == 2 and two["metrics"] is None and two["usage"]["completion_tokens"] == 24
    answer = Answer(sent_at=0.0)
    add_completion(answer, two, 1.0)
    rows = [make_row(drafter="eagle3"), make_row(drafter="eagle3")]
    for row, given in zip(rows, (answer, one), strict=True):
        fill_answer(row, given, server)
    assert [(row.scope, row.rounds, row.tau, row.server_ttft_s) for row in rows] == [
        ("server", None, None, None),
        ("request", 5, 2.2, 0.011),
    ]
    assert rows[0].server_accept_length is None and rows[0].matched is None


def test_a_silent_cap_voids_the_turn(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Trap 3: what does not fit is not sent; a server whose window nobody knows cuts, and the row says so."""
    with FakeVLLM(VLLMBehaviour(max_model_len=30)) as plain:
        done = served(vllm(model, rollouts, plain), tmp_path / "run")
        assert plain.requests == [] and {row.status for row in done.rows} == {"oversized"}
    with FakeVLLM(VLLMBehaviour(max_model_len=30)) as plain, VLLMClient(plain.base_url) as client:
        answer = client.generate(list(range(25)), Ask(12), "tiny")
    assert (answer.finish, answer.completion_tokens, answer.asked_tokens) == ("length", 5, 12)


def test_servers_that_do_not_tell_are_named(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Outside development mode a server shows that it drafts and not how: the name is asked for, and none is known."""
    with FakeVLLM(VLLMBehaviour(dev_mode=False)) as plain, FakeVLLM(VLLMBehaviour(**EAGLE3, dev_mode=False)) as spec:
        with pytest.raises(ConfigError, match="--drafter NAME"):
            served(vllm(model, rollouts, plain, spec), tmp_path / "one")
        done = served(vllm(model, rollouts, plain, spec, drafters=["none", "dflash"]), tmp_path / "two")
    assert {row.drafter for row in done.rows} == {"none", "dflash"} and of(done, "dflash")[1].k == 3
    with FakeVLLM(VLLMBehaviour(method="draft_model")) as shown:
        lone = served(vllm(model, rollouts, shown, workload__limit=1), tmp_path / "three")
        named = served(vllm(model, rollouts, shown, workload__limit=1, drafters=["pard"]), tmp_path / "four")
    assert {row.drafter for row in lone.rows} == {"draft_lm"} and {row.drafter for row in named.rows} == {"pard"}


def test_dead_server_loses_one_rollout_and_resume_finishes(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """It dies in the third rollout and comes back; the rows are those of a run that nothing broke."""
    with FakeVLLM(VLLMBehaviour(**EAGLE3, faults={7: "die"})) as spec:
        config = vllm(model, rollouts, spec)
        with pytest.raises(MeasurementError, match=r"2 rollouts were not replayed.*--resume"):
            served(config, tmp_path / "run")
        spec.revive()
        done = served(config, tmp_path / "run", resume=True)
    with FakeVLLM(VLLMBehaviour(**EAGLE3)) as spec:
        unbroken = served(vllm(model, rollouts, spec), tmp_path / "other")
    assert [timeless(row) for row in done.rows] == [timeless(row) for row in unbroken.rows]


def launching(model: Path, rollouts: Path, pids: Path, *args: str, **more: Any) -> Any:
    command = [sys.executable, str(FAKE_VLLM), "--fake-pid-file", str(pids), *args, "serve"]
    return settings(model, rollouts, backend="vllm", vllm__launch=True, vllm__command=command, **more)


def test_launch_starts_measures_and_ends_a_server_per_drafter(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Equal limits, one scheduling for all, reports on, caches emptied; no server is left behind."""
    pids = tmp_path / "pids"
    config = launching(
        model, rollouts, pids, drafters=["ngram", "pard=d"], workload__limit=2, vllm__warm_up_rollouts=1, decode__k=4
    )
    done = served(config, tmp_path / "run")
    assert {row.drafter for row in done.rows} == {"none", "ngram", "pard"} and len(pids.read_text().split()) == 3
    assert ended(pids) and all(row.status == "ok" for row in done.rows)
    assert of(done, "ngram")[0].tau == 11 / 7 and of(done, "ngram")[0].reused_tokens == 0
    logs = {name: (tmp_path / "run" / f"server-{name}.log").read_text() for name in ("none", "ngram")}
    for log in logs.values():
        assert "--max-num-seqs 64" in log and "--no-async-scheduling" in log and "--block-size 16" in log
    assert '"num_speculative_tokens": 4' in logs["ngram"] and "--per-request-spec-decode-metrics" not in logs["none"]


def test_a_method_that_the_version_lacks_is_named(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """The server ends while it starts: the method and the drafter stand in the error, before the log's last lines."""
    config = launching(model, rollouts, tmp_path / "pids", "--fake-unknown", "dspark", drafters=["dspark=d"])
    with pytest.raises(ConfigError, match="this vLLM refuses method dspark, which dspark needs"):
        served(config, tmp_path / "run")


def test_a_draft_of_all_words_is_explained() -> None:
    """Trap 12, the line as a real 0.32.0 logged it for a checkpoint of our trainer: the way out is in the error."""
    line = (
        "(Worker pid=6056) ERROR 12-01 11:49:33 [multiproc_executor.py:953] ValueError: There is no module or "
        "parameter named 'draft_id_to_target_id' in Eagle3LlamaForCausalLM. The available parameters belong"
    )
    vllm = engine_of("vllm")
    assert "smaller draft_vocab_size" in vllm.why_not_started(vllm.launchable("eagle3=d", {}), line)
    assert vllm.why_not_started(vllm.launchable("eagle3=d", {}), "out of memory") == ""


METHODS = {
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "eagle3=d": {"method": "eagle3", "model": "d"},
    "pard=d": {"method": "draft_model", "parallel_drafting": True, "model": "d"},
    "draft_lm=d": {"method": "draft_model", "model": "d"},
    "peagle=d": {"method": "eagle3", "parallel_drafting": True, "model": "d"},
    "dflash2=d": {"method": "dflash", "model": "d"},
}


@pytest.mark.parametrize("given", METHODS)
def test_drafters_of_ours_are_methods_of_theirs(given: str) -> None:
    """Our name, vLLM's words for it, and always a method: without one vLLM guesses by the folder's name."""
    config = settings(Path("m"), Path("r"), backend="vllm", vllm__launch=True, drafters=[given])
    words = engine_of("vllm").flags(engine_of("vllm").launchable(given, {}), config, 1)
    assert json.loads(words[words.index("--speculative-config") + 1]) == {"num_speculative_tokens": 7, **METHODS[given]}
    assert engine_of("vllm").launchable(given, {}).name == given.partition("=")[0]


@pytest.mark.parametrize(
    ("given", "why"),
    [("dlite=d", "vLLM 0.32 has no such method"), ("eagle3", "needs a draft model"), ("ngram=d", "takes no draft")],
)
def test_drafters_that_cannot_be_launched(given: str, why: str) -> None:
    """Refused by name before a minute is spent on loading the target."""
    with pytest.raises(ConfigError, match=why):
        engine_of("vllm").launchable(given, {})


@pytest.mark.parametrize(
    ("caching", "prefix", "why"), [(True, "cold", "start it with --no-enable"), (False, "kept", "without --no-enable")]
)
def test_a_cache_that_is_not_as_the_run_needs_it(
    model: Path, rollouts: Path, tmp_path: Path, caching: bool, prefix: str, why: str
) -> None:
    """Nothing is sent to a server whose numbers would mislead."""
    with FakeVLLM(VLLMBehaviour(prefix_caching=caching)) as plain:
        with pytest.raises(ConfigError, match=why):
            served(vllm(model, rollouts, plain, replay__prefix=prefix), tmp_path / "run")
        assert plain.requests == []


def test_unequal_servers_are_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Another block size finds other prefixes: the comparison would be of caches."""
    with FakeVLLM() as plain, FakeVLLM(VLLMBehaviour(**EAGLE3, block_size=32)) as spec:
        with pytest.raises(ConfigError, match=r"--block-size .16 for the baseline, 32 for eagle3"):
            served(vllm(model, rollouts, plain, spec), tmp_path / "run")
        assert spec.requests == []


def test_unlike_scheduling_is_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Trap 10: n-gram runs without asynchronous scheduling, silently. Over a baseline that has it the speed-up would be
    of two things: refused where both tell, or where the drafter's name says it; where nobody tells, in words."""
    with FakeVLLM() as plain, FakeVLLM(VLLMBehaviour(**NGRAM)) as spec:
        with pytest.raises(
            ConfigError, match=r"--async-scheduling \(True .*, False for ngram\).*--no-async-scheduling"
        ):
            served(vllm(model, rollouts, plain, spec), tmp_path / "one")
        assert spec.requests == []
    with FakeVLLM(VLLMBehaviour(async_scheduling=False)) as plain, FakeVLLM(VLLMBehaviour(**NGRAM)) as spec:
        done = served(vllm(model, rollouts, plain, spec), tmp_path / "two")
    assert {(row.drafter, row.async_scheduling) for row in done.rows} == {("none", False), ("ngram", False)}
    with FakeVLLM() as plain, FakeVLLM(VLLMBehaviour(**NGRAM, dev_mode=False)) as spec:
        config = vllm(model, rollouts, plain, spec, drafters=["ngram"])
        with pytest.raises(ConfigError, match=r"--async-scheduling \(True .*, False for ngram\)"):
            served(config, tmp_path / "three")
    with FakeVLLM(VLLMBehaviour(dev_mode=False)) as hidden:
        said = served(vllm(model, rollouts, hidden), tmp_path / "four")
    assert {row.async_scheduling for row in said.rows} == {None}
    assert any("whether it schedules asynchronously is not told" in note for note in said.notes)


def test_the_command_line_names_the_backend(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """`--backend vllm --base-url` reaches the vllm section; a chat-only client still gets ids and tau."""
    with FakeVLLM(VLLMBehaviour(**EAGLE3)) as spec:
        words = ("--backend", "vllm", "--base-url", spec.base_url, "--target", model, "--workload", rollouts)
        limits = ("--max-new-tokens", 12, "--client", "chat", "--set", "vllm.warm_up_rollouts=0")
        done = call("run", *words, *limits, "--out", tmp_path / "run")
        assert "messages" in spec.requests[0]
    assert done.code == 0, done.err
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"]["backend"] == "vllm" and "sglang" not in manifest["settings"]


def test_a_server_of_usage_alone_gives_clocks(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """The third engine: any OpenAI-compatible server. Clocks and counts of tokens, no tau, for the baseline neither."""
    with FakeVLLM(VLLMBehaviour(reports=None, request_metrics=False)) as server:
        config = settings(model, rollouts, server.base_url, backend="openai", drafters=["mystery"])
        done = served(config, tmp_path / "run")
        asked = server.requests[0]
    row = done.rows[1]
    assert (row.backend, row.drafter, row.scope, row.tau, row.rounds) == ("openai", "mystery", "server", None, None)
    assert row.output_tokens == 12 and row.ttft_s and row.tpot_s and row.output_ids is None
    assert "return_token_ids" not in asked and any("τ is unknown" in note for note in done.notes)
    with FakeServer() as other, pytest.raises(ConfigError, match="--drafter NAME"):
        served(settings(model, rollouts, other.base_url, backend="openai"), tmp_path / "two")
    with pytest.raises(ConfigError, match="starts no such server"):
        engine_of("openai").launchable("none", {})
