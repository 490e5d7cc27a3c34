"""The arithmetic on what a server says about one request, on real decodings and on planted lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.errors import ConfigError
from agentbench_spec.serving.bodies import Ask, completion_body
from agentbench_spec.serving.counts import token_gaps_s
from agentbench_spec.serving.engines.sglang import SGLang
from agentbench_spec.serving.engines.sglang_client import add_chat, add_generate, sampling_params
from agentbench_spec.serving.engines.sglang_counts import SpecCounts, broken_identities, expected_reuse, spec_counts
from agentbench_spec.serving.kvcost import by_capacity, by_formula, by_log, by_weights, kv_bytes_per_token
from agentbench_spec.serving.prometheus import difference
from agentbench_spec.serving.stream import Answer, RequestFailed, events

ROUNDS = st.lists(st.integers(0, 5), min_size=1, max_size=30)


def details_of(rounds: list[int], width: int = 6) -> dict[str, Any]:
    """What a server says about verify steps that accepted `rounds` drafts."""
    return {
        "spec_verify_ct": len(rounds),
        "spec_num_correct_drafts": sum(rounds),
        "spec_num_proposed_drafts": len(rounds) * (width - 1),
        "spec_correct_drafts_histogram": [rounds.count(i) for i in range(width)],
    }


@given(ROUNDS, st.data())
def test_identities_hold_for_every_decoding(rounds: list[int], data: st.DataObject) -> None:
    """Any steps, cut anywhere within the last: no identity may call a true decoding false, and trimmed is the cut."""
    cut = data.draw(st.integers(0, rounds[-1]))
    tokens = 1 + sum(rounds) + len(rounds) - cut
    counts = spec_counts(details_of(rounds))
    assert counts is not None
    assert broken_identities(counts, tokens, 6) == []
    assert counts.trimmed(tokens) == cut
    assert counts.tau == pytest.approx(1 + sum(rounds) / len(rounds))


@given(ROUNDS, st.integers(1, 4))
def test_a_retracted_request_has_a_token_of_each_prefill(rounds: list[int], retractions: int) -> None:
    """Fails if a request that was begun anew is called a contradiction, or if more tokens than it had prefills pass."""
    counts, stepped = spec_counts(details_of(rounds)), sum(rounds) + len(rounds)
    assert counts is not None
    assert broken_identities(counts, 1 + retractions + stepped, 6, retractions=retractions) == []
    assert broken_identities(counts, 2 + retractions + stepped, 6, retractions=retractions)
    whole = counts.with_prefills(retractions)
    assert whole.trimmed(1 + retractions + stepped) == 0 and sum(whole.histogram or ()) == whole.verify_steps


@given(ROUNDS, st.sampled_from(sorted(details_of([0]))), st.integers(1, 3), st.booleans())
def test_one_wrong_number_breaks_an_identity(rounds: list[int], name: str, off: int, up: bool) -> None:
    """Each of the four numbers is bound by the other three: changing any one of them must be noticed."""
    details = details_of(rounds)
    if name == "spec_correct_drafts_histogram":
        details[name][2] += off
    else:
        details[name] += off if up else -min(off, details[name])
    counts = spec_counts(details)
    changed = details != details_of(rounds)
    assert counts is None or bool(broken_identities(counts, 1 + sum(rounds) + len(rounds), 6)) == changed


def test_merged_chunk_is_no_tau_of_twelve() -> None:
    """Field case 6: three steps of four tokens in one chunk, K = 3. Were steps counted by chunks, tau would be 12."""
    answer = Answer(sent_at=0.0)
    add_generate(answer, {"output_ids": [0], "meta_info": {"completion_tokens": 1}}, 1.0)
    told = {"completion_tokens": 13, "finish_reason": {"type": "length"}, **details_of([3, 3, 3], 4)}
    add_generate(answer, {"output_ids": list(range(13)), "meta_info": told}, 2.0)
    counts = spec_counts(answer.details)
    assert (answer.chunk_tokens, answer.completion_tokens) == ([1, 12], 13)
    assert counts is not None and counts.tau == 4.0
    assert token_gaps_s([1, 12], [1.2]) == pytest.approx([0.1] * 12)
    one_step = SpecCounts(1, 3, 3, (0, 0, 0, 1))
    assert any("more than 4 a step" in text for text in broken_identities(one_step, 13, 4))


def test_servers_own_length_counts_the_prefill_token() -> None:
    """The recorded run of 12 tokens, 5 steps, 6 accepted: 2.4 for the server, 2.2 for us."""
    counts = SpecCounts(5, 6, server_accept_length=12 / 5)
    assert (counts.server_accept_length, counts.tau) == (2.4, 2.2)


def test_old_names_mean_the_same() -> None:
    """Servers before the renaming speak of accept and draft tokens."""
    old = {"spec_verify_ct": 5, "spec_accept_token_num": 6, "spec_draft_token_num": 15}
    new = {"spec_verify_ct": 5, "spec_num_correct_drafts": 6, "spec_num_proposed_drafts": 15}
    assert spec_counts(old) == spec_counts(new) == SpecCounts(5, 6, 15)


@pytest.mark.parametrize("details", [{}, {"spec_verify_ct": None}, {"spec_verify_ct": 0, "spec_num_correct_drafts": 0}])
def test_no_step_is_no_count(details: dict[str, Any]) -> None:
    """Absent, null and zero steps: there is no tau to compute, and no division by zero."""
    assert spec_counts(details) is None


@pytest.mark.parametrize(
    ("appended", "pair_keys", "page", "found"),
    [(3, False, 1, 46), (3, True, 1, 45), (0, False, 1, 45), (0, True, 1, 44), (3, False, 16, 32), (3, True, 46, 0)],
)
def test_expected_reuse_is_what_real_servers_reported(appended: int, pair_keys: bool, page: int, found: int) -> None:
    """A 46-token prompt sent again, as recorded: 46, 45 (EAGLE), exact repeat 45 and 44; and in whole pages."""
    prompt = list(range(46))
    before = [*prompt, 900, 901, 902]
    assert expected_reuse(before, [*prompt, *range(500, 500 + appended)], page_size=page, pair_keys=pair_keys) == found


def test_expected_reuse_stops_before_the_last_token() -> None:
    """The last token of an answer was chosen and never run: its KV is not there to be found."""
    assert expected_reuse([1, 2, 3], [1, 2, 3, 4]) == 2


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (['data: {"a": 1}'], "before its end mark"),
        (['data: {"error": {"message": "boom"}}', "data: [DONE]"], "boom"),
        (["data: {not json", "data: [DONE]"], "not JSON"),
    ],
)
def test_a_broken_stream_is_no_answer(lines: list[str], why: str) -> None:
    """A stream that was cut, or carries an error, must not pass for a short answer."""
    with pytest.raises(RequestFailed, match=why):
        list(events(lines))


def test_incremental_and_cumulative_ids_join_to_the_same() -> None:
    """Some servers send all ids so far, others only the new ones."""
    joined = []
    for parts in ([[1], [1, 2, 3]], [[1], [2, 3]]):
        answer = Answer(sent_at=0.0)
        for ids, total in zip(parts, (1, 3), strict=True):
            add_generate(answer, {"output_ids": ids, "meta_info": {"completion_tokens": total}}, 0.0)
        joined.append(answer.output_ids)
    assert joined == [[1, 2, 3], [1, 2, 3]]


def test_unreported_cache_hits_are_unknown_not_zero() -> None:
    """Without --enable-cache-report the details are null."""
    answer = Answer(sent_at=0.0)
    add_chat(answer, {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, 0.0)
    assert (answer.prompt_tokens, answer.cached_tokens) == (9, None)


def test_counters_sum_labels_and_leave_gauges() -> None:
    """Gauges are values of the last interval; two labels of one counter are one total."""
    text = (
        '# TYPE x counter\nsglang:cached_tokens_total{cache_source="device"} 3\n'
        'sglang:cached_tokens_total{cache_source="host"} 4.0\nsglang:spec_accept_length{a="b"} 9\n'
        "sglang:num_requests_total 2.0\n"
    )
    assert SGLang().counters(text) == {"cached_tokens_total": 7, "num_requests_total": 2}


def test_totals_of_the_server_are_marked_and_foreign_traffic_shows() -> None:
    """Field case 30: the counters hold another client's 10 requests; the check says so and never mixes them in."""
    grown = difference(
        [{"num_requests_total": 5.0}],
        [{"num_requests_total": 15.0, "generation_tokens_total": 52.0, "spec_verify_calls_total": 21.0}],
    )
    check = SGLang().cross_check(grown, [])
    assert (check.scope, check.tau_emitted, check.own_tau_emitted) == ("server", 2.0, None)
    assert len(check.disagreements) == 3


def test_draft_kv_formula_on_the_published_geometry() -> None:
    """Qwen3-4B: 147,456 bytes a token in bf16; a one-layer EAGLE-3 draft 4,096; fp8 halves a five-layer one."""
    qwen = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    assert kv_bytes_per_token(qwen) == 147_456
    assert kv_bytes_per_token({**qwen, "num_hidden_layers": 1}) == 4_096
    assert kv_bytes_per_token({**qwen, "num_hidden_layers": 5}, "fp8_e4m3") == 10_240
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        kv_bytes_per_token({"num_attention_heads": 4, "head_dim": 8})


def test_other_methods_name_themselves() -> None:
    """Capacity lost at equal memory is a share; a log with one pool a start has no draft pool to report."""
    assert (by_capacity(1000, 900).method, by_capacity(1000, 900).value) == ("capacity_drop", pytest.approx(0.1))
    pool = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 8192, K size: 0.25 GB, V size: 0.25 GB"
    assert by_log(["$ sglang serve", pool, "$ sglang serve", pool]) is None
    draft = by_log(["$ sglang serve", pool, pool])
    assert draft is not None and (draft.method, draft.value) == ("server_log", 2**29)


def test_one_token_to_choose_from_is_asked_for_as_greedy() -> None:
    """Fails if top-k 1, which our rows call greedy, reaches a server as a temperature without a top-k."""
    ask = Ask(8, Sampling(0.9, 1, 1.0))
    assert sampling_params(ask)["temperature"] == completion_body([1], ask, "m")["temperature"] == 0
    assert sampling_params(Ask(8, Sampling(0.9, 2, 1.0)))["temperature"] == 0.9


def test_dlite_keeps_no_kv() -> None:
    """Fails if a draft that reads one position is charged for the five layers that its config has, too."""
    layers = {"num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    assert by_formula(layers).value == 20_480
    assert by_formula({**layers, "dlite_config": {}}).value == 0


def test_weights_take_their_share_of_the_capacity(tmp_path: Path) -> None:
    """1,000 tokens in 10,000 bytes: 95 bytes of weights cost ten tokens; a hub id's weights are not known here."""
    (tmp_path / "model.safetensors").write_bytes(b"0" * 95)
    left = by_weights(1000, 10_000, str(tmp_path))
    assert left is not None and (left.method, left.unit, left.value) == ("capacity_less_weights", "tokens", 990)
    assert by_weights(1000, 10_000, "owner/name") is None and by_weights(1000, 10_000, None) is None
