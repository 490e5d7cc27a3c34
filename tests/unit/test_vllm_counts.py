"""vLLM's report of one request: answers recorded from 0.32.0, every decoding it could be of, and planted lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rowkit import make_row

from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.engines.vllm_client import add_chat, add_completion
from agentbench_spec.serving.engines.vllm_counts import Decoding, Report, broken_sums, read_report, solve
from agentbench_spec.serving.engines.vllm_server import VLLMServer, described
from agentbench_spec.serving.prometheus import difference
from agentbench_spec.serving.server_rows import fill_answer
from agentbench_spec.serving.stream import Answer, events

RECORDED = Path(__file__).parents[1] / "vllm_fake" / "recorded.json"
ANSWERS: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))["answers"]
STREAMS: dict[str, list[str]] = json.loads(RECORDED.read_text("utf-8"))["streams"]
METRICS = RECORDED.with_suffix(".prom").read_text("utf-8")


def answer_of(name: str, chunks: list[int] | None = None) -> Answer:
    """A recorded answer, as if its tokens had come in `chunks`."""
    recorded = ANSWERS[name]
    (choice,) = recorded["choices"]
    answer = Answer(sent_at=0.0, finish=choice["finish_reason"])
    add_completion(answer, recorded | {"choices": []}, 1.0)
    answer.chunk_tokens = chunks
    return answer


def server_of(drafter: str, **info: Any) -> VLLMServer:
    return VLLMServer("http://server", info | {"block_size": 128}, label=drafter)


def row_of(name: str, chunks: list[int] | None = None) -> Any:
    drafter = name.partition("/")[0]
    row = make_row(drafter=drafter, k=4, concurrency=1)
    fill_answer(row, answer_of(name, chunks), server_of(drafter))
    return row


def ones(unreported: int, *sizes: int) -> list[int]:
    """Events of one token each for the steps without a draft, in front of those of other sizes."""
    return [1] * (1 + unreported) + list(sizes)


def test_the_servers_mean_is_not_tau_for_a_look_up() -> None:
    """Trap 1: 32 reported steps of 47. The server says 1.594; over all decode steps it is 1.404."""
    report = read_report(answer_of("ngram/comp_P_64").details)
    assert report is not None and report.per_step_accepted is not None
    sizes = [accepted + 1 for accepted in report.per_step_accepted]
    sizes[-1] -= 3  # the stream showed the last step cut at 64 tokens
    row = row_of("ngram/comp_P_64", ones(15, *sizes))
    assert (row.rounds, row.matched, row.trimmed, row.proposed) == (47, 19, 3, 118)
    assert row.server_accept_length == 1.59375 and row.tau_raw == pytest.approx(66 / 47) == pytest.approx(
        1.404, abs=1e-3
    )
    assert row.tau == 63 / 47 and row.matched_histogram == [35, 7, 3, 2, 0]
    assert (len(row.matched_lengths), sum(row.proposed_lengths)) == (47, 118)


def test_iterations_recorded_beside_it_say_the_same() -> None:
    """The counter of iterations grew by 48: the prefill, 32 reported steps, and 15 without a draft."""
    grown = ANSWERS["ngram/delta0"]["grown"]
    assert grown["vllm:iteration_tokens_total_count{}"] == 1 + 47


@pytest.mark.parametrize("name", ["comp_P_64", "comp_P_65"])
def test_overshoot_is_trimmed_off_tau(name: str) -> None:
    """Trap 8: 64 and 65 tokens of one decoding have one report; only the trimmed tokens differ."""
    found = row_of(f"ngram/{name}", None)
    assert found.rounds is None and found.tau is None  # nothing tells 3 trimmed tokens from 3 steps without a draft
    report = read_report(answer_of(f"ngram/{name}").details)
    assert report is not None
    cut = {"comp_P_64": 3, "comp_P_65": 2}[name]
    sizes = [accepted + 1 for accepted in report.per_step_accepted or ()]
    sizes[-1] -= cut
    assert row_of(f"ngram/{name}", ones(15, *sizes)).trimmed == cut


def test_padded_step_is_no_round() -> None:
    """A prompt that is cached but for its last token: a first step of four drafts that nobody made."""
    cold, warm = row_of("ngram/cached_0", ones(8, *[1] * 5, 2)), row_of("ngram/cached_1", ones(8, *[1] * 5, 2))
    assert (cold.reused_tokens, warm.reused_tokens, warm.context_tokens) == (0, 256, 257)
    for name in ("rounds", "matched", "proposed", "matched_lengths", "proposed_lengths", "tau", "tau_raw"):
        assert getattr(cold, name) == getattr(warm, name), name


def test_always_drafting_methods_are_exact_without_a_stream() -> None:
    """EAGLE-3 and DFlash: no step without a draft, so the report and the length decide everything."""
    row = row_of("eagle3/comp_P_64")
    assert (row.rounds, row.matched, row.trimmed, row.tau_raw) == (55, 8, 0, 1 + 8 / 55)
    assert row.server_accept_length == pytest.approx(row.tau_raw) and row.status == "ok"
    assert row_of("dflash/comp_P_64").tau == 1.0


def test_preempted_request_is_no_turn() -> None:
    """Four prefills begun anew emitted four tokens: 420 of 416 that the report accounts for."""
    row = row_of("eagle3/preempt_both_P")
    assert (row.status, row.retractions) == ("retracted", 4)
    assert row_of("eagle3/preempt_alone_P").status == "ok"


def test_block_drop_is_expected() -> None:
    """Sent again, 257 tokens find 256 cached, under EAGLE-3 128; 200 find 128, and none."""
    for drafter in ("none", "ngram", "eagle3", "dflash", "custom_class"):
        for name, tokens in (("cached_1", 257), ("cached200_1", 200)):
            if found := ANSWERS.get(f"{drafter}/{name}"):
                before, prompt = list(range(tokens + 16)), list(range(tokens))
                expected = server_of(drafter).expected_reuse(before, prompt)
                assert expected == found["usage"]["prompt_tokens_details"]["cached_tokens"], (drafter, name)


def test_the_general_identity_holds_in_every_recorded_answer() -> None:
    """Fails if an identity calls a true answer false: with and without drafts, cached, trimmed, preempted."""
    checked = 0
    for name, recorded in ANSWERS.items():
        answer = Answer(sent_at=0.0)
        add_completion(answer, recorded | {"choices": []}, 1.0)
        report = read_report(answer.details)
        if report is None:
            continue
        assert list(broken_sums(report)) == [], name
        found = server_of(name.partition("/")[0]).acceptance(answer)
        assert found is not None and found.broken == (), name
        checked += 1
    assert checked > 40


@pytest.mark.parametrize("name", ["ngram/two_prompts", "ngram/n2", "ngram/aborted", "none/comp_P_64"])
def test_absent_reports_are_null(name: str) -> None:
    """Trap 2: several prompts, n > 1, an abort, no speculation: null, and never a count of zero."""
    answer = Answer(sent_at=0.0)
    add_completion(answer, ANSWERS[name] | {"choices": []}, 1.0)
    assert read_report(answer.details) is None and server_of("ngram").acceptance(answer) is None


def streamed(name: str) -> Answer:
    answer = Answer(sent_at=0.0)
    add = add_chat if "chat" in name else add_completion
    for number, event in enumerate(events(f"data: {line}" for line in STREAMS[name])):
        add(answer, event, float(number))
    return answer


def test_recorded_streams_are_read_by_ids() -> None:
    """The prompt's text stands in the first event: tokens are ids, and an event without ids is no chunk."""
    answer = streamed("ngram/stream_comp")
    assert answer.chunk_tokens == [1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1] and answer.finish == "length"
    assert answer.output_ids is not None and len(answer.output_ids) == answer.completion_tokens == 12
    assert (answer.prompt_tokens, answer.cached_tokens) == (50, 0) and answer.details["first_token_latency"] < 1
    found = server_of("ngram").acceptance(answer)
    assert found is not None and (found.rounds, found.matched, found.trimmed) == (10, 1, 0)
    chat = streamed("ngram/stream_chat")
    assert chat.chunk_tokens == [1] * 8 and server_of("ngram").acceptance(chat) is not None


def test_without_include_usage_there_is_no_report() -> None:
    """Trap 2: the last event comes only if it is asked for; the row then has no τ, and no tokens either."""
    answer = streamed("ngram/stream_comp_nousage")
    assert answer.completion_tokens is None and read_report(answer.details) is None
    row = make_row(drafter="ngram")
    fill_answer(row, answer, server_of("ngram"))
    assert row.status == "invalid" and row.tau is None


def test_a_silent_cap_is_not_a_turn() -> None:
    """Trap 3: 2047 prompt tokens of 2048; sixteen tokens were asked for, one came, and it "has its length"."""
    answer = answer_of("ngram/window")
    answer.asked_tokens = 16
    row = make_row(drafter="ngram")
    fill_answer(row, answer, server_of("ngram"))
    assert row.status == "invalid" and "cut at 1 of 16 tokens" in (row.error or "")


ROUNDS = st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=30)
"""Decode steps in order: the drafts they accepted, None for a step without a draft."""


def report_of(rounds: list[int | None], padded: bool) -> Report:
    drafted = [accepted for accepted in rounds if accepted is not None]
    told = [0] * padded + drafted
    v, c = len(told), sum(told)
    histogram = tuple(told.count(i) for i in range(5))
    mean = 1 + c / v if v else 1.0
    arrays = (tuple(told), (4,) * v) if v else (None, None)
    return Report(v, c, 4 * v, 4, histogram, mean, *arrays)


@given(ROUNDS, st.booleans(), st.data())
def test_every_decoding_is_solved_or_left_open(rounds: list[int | None], padded: bool, data: st.DataObject) -> None:
    """Any steps, cut anywhere in the last: no identity breaks, and an answer, where there is one, is the true one.

    Each step came as one event, so it is found whenever the events are looked at.
    """
    padded = padded and rounds.count(None) < len(rounds)
    cut = data.draw(st.integers(0, rounds[-1] or 0))
    chunks = [1, *((accepted or 0) + 1 for accepted in rounds)]
    chunks[-1] -= cut
    report = report_of(rounds, padded)
    assert list(broken_sums(report)) == []
    truth = Decoding(int(padded), rounds.count(None), cut)
    asked = {"padded": padded, "always_drafts": False}
    assert solve(report, sum(chunks), chunks=chunks, **asked) == truth
    blind = solve(report, sum(chunks), chunks=None, **asked)
    assert blind in (truth, None)


@given(ROUNDS, st.data())
def test_merged_events_never_make_up_a_tau(rounds: list[int | None], data: st.DataObject) -> None:
    """A slow reader finds steps glued together: they are then unknown, or right, but never as few as the events."""
    chunks = [1, *((accepted or 0) + 1 for accepted in rounds)]
    at = data.draw(st.integers(1, len(chunks) - 1))
    merged = [*chunks[: at - 1], chunks[at - 1] + chunks[at], *chunks[at + 1 :]]
    found = solve(report_of(rounds, False), sum(chunks), padded=False, always_drafts=False, chunks=merged)
    assert found in (Decoding(0, rounds.count(None), 0), None)


LIES = {
    "num_spec_steps": 33,
    "num_accepted_draft_tokens": 20,
    "num_draft_tokens": 117,
    "mean_acceptance_length": 1.7,
    "acceptance_histogram": [21, 7, 3, 1, 0],
}


@pytest.mark.parametrize("name", LIES)
def test_one_wrong_number_breaks_an_identity(name: str) -> None:
    """Each number of a report is bound by the others: changing any one of them must be noticed."""
    answer = answer_of("ngram/comp_P_64")
    answer.details["speculative_decoding"] = answer.details["speculative_decoding"] | {name: LIES[name]}
    row = make_row(drafter="ngram")
    fill_answer(row, answer, server_of("ngram"))
    assert row.status == "invalid" and row.tau is None and row.error


@pytest.mark.parametrize("tokens", [40, 60])
def test_a_length_that_no_decoding_has_is_told(tokens: int) -> None:
    """EAGLE-3's 55 steps and 8 drafts are 64 tokens: 60 would have lost more than the last step accepted."""
    answer = answer_of("eagle3/comp_P_64")
    answer.completion_tokens = tokens
    found = server_of("eagle3").acceptance(answer)
    assert found is not None and "trimmed" in found.broken[0] and found.rounds is None


def test_prometheus_deltas_are_the_reports() -> None:
    """Recorded beside three answers: drafts, drafted and accepted tokens, generated tokens and requests agree."""
    vllm = engine_of("vllm")
    for drafter in ("ngram", "eagle3"):
        heard = [(make_row(drafter=drafter), answer_of(f"{drafter}/delta{i}")) for i in range(3)]
        totals = [vllm.counters(_as_text(ANSWERS[f"{drafter}/delta{i}"]["grown"])) for i in range(3)]
        grown = {name: sum(each.get(name, 0.0) for each in totals) for name in totals[0]}
        check = vllm.cross_check(grown, heard)
        assert check is not None and check.disagreements == () and check.own["drafts"] > 80
        more = vllm.cross_check(grown | {"spec_decode_num_drafts_total": 1.0, "num_preemptions_total": 2.0}, heard)
        assert (
            more is not None and len(more.disagreements) == 2 and "preempted requests 2 times" in more.disagreements[1]
        )


def test_rounds_that_merged_events_took_away_are_missed() -> None:
    """Fails if a look-up's rounds are too few, its counter of iterations says so, and the run does not."""
    vllm, total = engine_of("vllm"), {"iteration_tokens_total_count": 48.0, "request_success_total": 1.0}
    told = [
        vllm.cross_check(total, [(make_row(**fields, concurrency=1, new_tokens=50), answer_of("ngram/comp_P_64"))])
        for fields in ({"drafter": "ngram", "rounds": rounds} for rounds in (47, 44, 50))
    ]
    assert [any("iterations" in line for line in check.disagreements) for check in told if check] == [False, True, True]


def _as_text(grown: dict[str, float]) -> str:
    return "\n".join(f"{name.replace('{,', '{')} {value}" for name, value in grown.items())


def test_counters_leave_creation_times_and_gauges() -> None:
    """`_created` lines are instants of 1.8e9 seconds; requests are summed over their reasons."""
    found = engine_of("vllm").counters(METRICS)
    assert found["spec_decode_num_drafts_total"] == 223 and found["request_success_total"] == 29
    assert max(found.values()) < 1e6
    assert difference([found], [found])["iteration_tokens_total_count"] == 0


def test_a_server_is_described_by_what_it_shows() -> None:
    """Block size, cache and speculation are in the counters; the drafter's name only in development mode."""
    model = {"id": "tiny", "root": "models/target", "max_model_len": 2048}
    info = described("0.32.0", model, METRICS, None)
    server = VLLMServer("http://server", info, model=model)
    assert (info["block_size"], server.keeps_prefixes, server.token_capacity) == (128, True, 524288)
    assert (server.told, server.window, server.tokenizer) == (None, 2048, "models/target")
    plain = METRICS.replace("spec_decode", "else")
    assert VLLMServer("http://server", described("0.32.0", model, plain, None)).told == "none"
    text = (
        "model='m', speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4), dtype=float32"
    )
    shown = VLLMServer("http://server", described("0.32.0", model, METRICS, text))
    assert (shown.told, shown.k, shown.info["dtype"]) == ("ngram", 4, "float32")
