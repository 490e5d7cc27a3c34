"""Figures from rows, against numbers worked out by hand."""

from __future__ import annotations

import json
import random
import re
from io import StringIO

import pytest
from rich.console import Console
from rowkit import make_row

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results import costs, metrics
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import notes, render, summarise, summary_dict

JSON_REPLY = json.dumps(
    [
        {"id": i, "name": name, "tags": ["file", "open"], "path": f"/home/user/{name}.txt", "size": 1024 + 37 * i}
        for i, name in enumerate(["report", "budget", "notes", "draft", "summary", "archive", "invoice", "plan"])
    ],
    indent=2,
)
CODE_REPLY = "\n".join(
    f"    def get_{name}(self) -> {kind}:\n        return self._{name}\n"
    for name, kind in [("width", "int"), ("height", "int"), ("title", "str"), ("owner", "User"), ("ratio", "float")]
)
LIST_REPLY = "\n".join(
    f"{i}. {text}"
    for i, text in enumerate(
        [
            "Open the ticket and read the last comment.",
            "Check that the customer has an active plan.",
            "Cancel the order if it has not shipped.",
            "Issue a refund to the original card.",
            "Send the confirmation and close the ticket.",
            "Log the reason in the shared sheet.",
        ],
        1,
    )
)
TOOL_CALLS = "\n".join(
    f'<tool_call>\n{{"name": "cd", "arguments": {{"folder": "{f}"}}}}\n</tool_call>'
    for f in ["documents", "archive", "2024", "temp", "workspace"]
)
NUMBERS = ", ".join(str(i) for i in range(1, 200))
TABLE = "| city | fare | miles |\n|---|---|---|\n" + "\n".join(
    f"| {c} | {f} | {m} |" for c, f, m in [("Rome", 120, 814), ("Oslo", 230, 716), ("Lima", 910, 6270)] * 4
)


def words(text: str) -> list[int]:
    """Token ids of a simple word-and-punctuation tokenizer."""
    pieces = re.findall(r"\w+| +|\n|[^\w\s]", text)
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    return [vocabulary[piece] for piece in pieces]


def test_cap_inside_a_block_clips_tau_and_leaves_raw_tau_alone() -> None:
    """Field case 2: max_new 10, K 7, all accepted. Fails if τ counts tokens past the cap, or raw τ is clipped."""
    row = make_row(matched=[7, 7], emitted=9)
    assert row.output_tokens == 10
    assert (row.emitted, row.emitted_raw) == (9, 16)
    assert metrics.tau([row]).pooled == 4.5
    assert metrics.tau_raw([row]).pooled == 8.0
    assert metrics.clipped_lengths([7, 7], 9) == [8, 1]


def test_turn_without_a_round_is_null_and_not_averaged() -> None:
    """Field case 3: an empty turn beside one of τ 4. Fails if the mean is 2, or the empty row is dropped."""
    empty = make_row("a", 0, matched=[], stop_reason="stop")
    normal = make_row("b", 0, matched=[3, 3])
    assert empty.tau is None and empty.rounds == 0
    assert metrics.tau([empty, normal]) == metrics.Mean(pooled=4.0, macro=4.0)
    assert metrics.tau([empty]) == metrics.Mean(None, None)
    summary = summarise([empty, normal])
    assert (summary.drafters[0].turns, summary.drafters[0].zero_round_turns) == (2, 1)
    assert "ngram: 1 turn ended on the prefill token, without a τ" in notes(summary)


def test_pooled_and_macro_tau_are_both_given() -> None:
    """Field case 4: session A rounds [4,1]+[1], B [1,1]. Fails if one weighting stands in for the other."""
    rows = [make_row("A", 0, matched=[3, 0]), make_row("A", 1, matched=[0]), make_row("B", 0, matched=[0, 0])]
    assert metrics.tau(rows) == metrics.Mean(pooled=1.6, macro=1.5)
    tau = summary_dict(summarise(rows))["drafters"][0]["tau"]
    assert tau == {"pooled": 1.6, "macro": 1.5}


def test_repetition_loop_is_left_out_and_counted() -> None:
    """Field case 19: a healthy turn and 900 copies of one token. Fails if the loop lifts the headline or is hidden."""
    healthy = make_row("a", matched=[1, 1, 1], output_ids=words(LIST_REPLY), stop_reason="length")
    loop = make_row("b", matched=[7] * 112, output_ids=[5] * 900, stop_reason="length")
    summary = summarise([healthy, loop])
    (own,) = summary.drafters
    assert (own.tau.pooled, own.turns, own.left_out) == (2.0, 1, {"degenerate": 1})
    assert "ngram: 1 turn left out: degenerate" in notes(summary)
    assert any("all 2 turns hit the length cap" in text for text in summary.warnings)
    asked_for = summarise([healthy, loop], include_degenerate=True).drafters[0]
    assert asked_for.tau.pooled == pytest.approx((6 + 896) / 115)
    assert (asked_for.turns, asked_for.left_out, asked_for.degenerate_turns) == (2, {}, 1)


def test_one_turn_below_the_cap_silences_the_cap_warning() -> None:
    """Fails if the warning fires although a turn ended by itself."""
    rows = [make_row("a", matched=[1], stop_reason="length"), make_row("b", matched=[1], stop_reason="stop")]
    assert summarise(rows).warnings == []


def test_slower_drafter_is_printed_as_slower() -> None:
    """Field case 21: τ 2.0 but 146 -> 93 tokens/s. Fails if a speed-up below 1 is clipped or hidden."""
    base = make_row(drafter="none", matched=[0] * 100, decode_s=100 / 146)
    slow = make_row(drafter="draft", matched=[1] * 50, decode_s=100 / 93)
    own = summarise([base, slow]).drafters[1]
    assert own.tau.pooled == 2.0
    assert own.speedup.pooled == pytest.approx(93 / 146)
    assert f"{own.speedup.pooled:.2f}" == "0.64"
    assert "0.64" in _screen([base, slow])


def test_statuses_are_left_out_by_reason() -> None:
    """Field case 18, reporting side. Fails if a row without a number is averaged, or its reason is not shown."""
    rows = [
        make_row("a", matched=[3]),
        make_row("b", status="oversized"),
        make_row("c", status="draft_limit"),
        make_row("d", status="error", error="boom"),
    ]
    summary = summarise(rows)
    assert summary.drafters[0].left_out == {"draft_limit": 1, "error": 1, "oversized": 1}
    assert summary.drafters[0].tau.pooled == 4.0
    assert "ngram: 1 turn left out: oversized" in notes(summary)
    assert "1 of 4" in _screen(rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("thinking", True),
        ("temperature", 1.0),
        ("top_p", 0.9),
        ("k", 4),
        ("decode_mode", "forced"),
        ("history_mode", "self"),
        ("prefix_mode", "cold"),
        ("clock", "both"),
        ("schema", 0),
        ("target", "other"),
    ],
)
def test_rows_of_other_conditions_are_refused(field: str, value: object) -> None:
    """Field case 17: fails if rows with other flags are averaged together without a word."""
    rows = [make_row("a", matched=[1]), make_row("b", matched=[1], **{field: value})]
    with pytest.raises(MeasurementError, match=field):
        summarise(rows)


def test_drafters_may_have_their_own_k() -> None:
    """Fails if the baseline's k = 0 beside a drafter's k = 7 is taken for a mix of conditions."""
    metrics.one_condition([make_row(drafter="none", matched=[0]), make_row(drafter="ngram", matched=[3])])


def test_losslessness_tells_ties_from_errors() -> None:
    """Field case 7, reporting side. Fails if a near tie counts as an error, or an error as a tie."""
    rows = [
        make_row("a", matched=[1], identical=True, divergence="none"),
        make_row("b", matched=[1], identical=False, divergence="tie", divergence_margin=0.0),
        make_row("c", matched=[1], identical=False, divergence="error", divergence_margin=2.5),
        make_row("d", matched=[1]),
    ]
    assert metrics.losslessness(rows) == metrics.Losslessness(compared=3, identical=1, ties=1, errors=1)
    assert "1/3 (1 ERROR)" in _screen(rows)
    assert "ngram: NOT LOSSLESS: 1 turn differing from the baseline beyond a near tie, 1 turn at one" in notes(
        summarise(rows)
    )
    assert "1/2 (1 tie)" in _screen(rows[:2])


def test_acceptance_by_position_counts_only_what_was_proposed() -> None:
    """Rounds (matched, proposed) = (2,3), (0,3), (1,1). Fails if short proposals count as rejections."""
    row = make_row(matched=[2, 0, 1], proposed_lengths=[3, 3, 1], proposed=7)
    table = metrics.acceptance_by_position([row])
    assert table == [(2 / 3, 2 / 3), (1 / 2, 1 / 1), (0 / 2, 0 / 1)]
    assert metrics.accepted_histogram([row]) == [1, 1, 1]


def test_conditional_acceptance_is_null_where_nothing_came_through() -> None:
    """Fails if a position nobody reached is reported as 0 accepted of those that reached it."""
    row = make_row(matched=[0], proposed_lengths=[2], proposed=2)
    assert metrics.acceptance_by_position([row]) == [(0.0, 0.0), (0.0, None)]


@pytest.mark.parametrize(("matched", "emitted"), [([7, 7], 8), ([7, 7], 17), ([], 1), ([3], 0)])
def test_counts_that_no_clipping_explains_are_refused(matched: list[int], emitted: int) -> None:
    """Fails if a lost or doubled token passes as clipping: only the last round can be cut, and not to nothing."""
    with pytest.raises(MeasurementError, match="only the last"):
        metrics.count_rounds(matched, emitted)


def _two_rollouts() -> list[TurnRow]:
    """A: 10 tokens, 1.0 s -> 0.4 s; 30 tokens, 3.0 s -> 2.0 s. B: 10 tokens, 2.0 s -> 1.0 s."""
    times = [("A", 0, 10, 1.0, 0.4), ("A", 1, 30, 3.0, 2.0), ("B", 0, 10, 2.0, 1.0)]
    rows = []
    for rollout, turn, tokens, base_s, own_s in times:
        rows.append(make_row(rollout, turn, "none", [0] * tokens, decode_s=base_s, prefill_s=1.0))
        own = {"decode_s": own_s, "prefill_s": 1.0, "draft_ingest_s": 0.5}
        rows.append(make_row(rollout, turn, "ngram", [1] * (tokens // 2), **own))
    return rows


def test_speedup_under_every_weighting() -> None:
    """Fails if pooled, macro, per-turn and end-to-end speed-ups are mistaken for one another."""
    found = costs.speedup(costs.paired(_two_rollouts(), "ngram"))
    assert found.pooled == pytest.approx(6.0 / 3.4)
    assert found.macro == pytest.approx((4.0 / 2.4 + 2.0) / 2)
    assert found.turn_mean == pytest.approx((2.5 + 1.5 + 2.0) / 3)
    assert found.e2e == pytest.approx((6.0 + 3.0) / (3.4 + 3.0 + 1.5))
    assert found.pairs == 3


def test_unpaired_turns_do_not_enter_the_speedup() -> None:
    """Fails if baseline seconds of a turn that the drafter missed weigh in."""
    rows = [row for row in _two_rollouts() if not (row.drafter == "ngram" and row.rollout == "B")]
    found = costs.speedup(costs.paired(rows, "ngram"))
    assert (found.pooled, found.pairs) == (pytest.approx(4.0 / 2.4), 2)
    assert any("averaged over different turns" in text for text in summarise(rows).warnings)


def test_speedup_is_per_token_when_lengths_differ() -> None:
    """At T > 0 outputs differ in length. Fails if seconds are compared and not seconds per token."""
    base = make_row(drafter="none", matched=[0] * 10, decode_s=1.0)
    longer = make_row(drafter="ngram", matched=[1] * 10, decode_s=1.0)
    assert costs.turn_speedup(base, longer) == pytest.approx(2.0)


def test_shares_and_state_by_hand() -> None:
    """Fails if ingest is left out of maintenance, or a share is taken over the wrong denominator."""
    row = make_row(
        matched=[1] * 5,
        prefill_s=2.0,
        draft_ingest_s=0.5,
        attributed_decode_s=1.5,
        draft_s=0.3,
        draft_append_s=0.3,
        context_tokens=100,
        draft_state_bytes=1100,
    )
    assert costs.draft_share([row]) == pytest.approx(0.3 / 1.5)
    assert costs.draft_kv_share([row]) == pytest.approx(0.8 / 4.0)
    assert costs.state_bytes_max([row]) == 1100
    assert costs.state_bytes_per_token([row]) == pytest.approx(1100 / 110)


def test_fused_maintenance_is_null_not_zero() -> None:
    """Field case 14, reporting side. Fails if work hidden in `propose` shows as free maintenance."""
    clocks = {"prefill_s": 1.0, "decode_s": 1.0, "attributed_decode_s": 1.0, "draft_s": 0.2, "draft_append_s": 0.1}
    row = make_row(matched=[1], **clocks)
    assert costs.draft_kv_share([row]) is None
    assert costs.e2e_s(row) is None
    summary = summarise([row])
    assert summary.drafters[0].draft_kv_share is None
    assert any("fused" in note for note in notes(summary))


def test_untimed_rows_give_null_everywhere() -> None:
    """Fails if a figure nobody measured appears as a number."""
    own = summarise([make_row(drafter="none", matched=[0]), make_row(matched=[1])]).drafters[1]
    assert own.speedup == costs.Speedup(None, None, None, None, 0)
    assert (own.draft_share, own.draft_kv_share, own.decode_s_per_token, own.state_bytes_max) == (None,) * 4


@pytest.mark.parametrize("text", [JSON_REPLY, CODE_REPLY, LIST_REPLY, TOOL_CALLS, NUMBERS, TABLE])
@pytest.mark.parametrize("tokenizer", [words, lambda text: [ord(c) for c in text]])
def test_healthy_structured_output_is_no_loop(text: str, tokenizer: object) -> None:
    """Fails if indentation, lists, tables or repeated tool calls are taken for a loop, by words or by characters."""
    ids = tokenizer(text)  # type: ignore[operator]
    assert len(ids) > 48
    assert not metrics.is_degenerate(ids)


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([7] * 900, "one token"),
        (words(LIST_REPLY)[:40] + [1, 2, 3] * 40, "period 3 after a healthy start"),
        (list(range(16)) * 5, "period 16"),
        ([3, 4] * 60 + [99], "a loop that ends in a stop token"),
        ([5 if i % 4 else 100 + i for i in range(200)], "one token dominates without a period"),
    ],
)
def test_loops_are_found(ids: list[int], why: str) -> None:
    """Fails if this kind of repetition loop passes as an answer."""
    assert metrics.is_degenerate(ids), why


@pytest.mark.parametrize("ids", [[], [1], [7] * 47, list(range(500, 620)) + [1, 2] * 25])
def test_short_or_minor_repetition_is_no_loop(ids: list[int]) -> None:
    """Fails if a few dozen repeated tokens, or a repetition under half the output, void a turn."""
    assert not metrics.is_degenerate(ids)


def test_random_text_is_no_loop() -> None:
    """Fails if the period search finds periods in noise over a small vocabulary."""
    draw = random.Random(0)
    assert not any(metrics.is_degenerate([draw.randrange(4) for _ in range(300)]) for _ in range(50))


def test_summary_is_json_without_nan() -> None:
    """Fails if the last stdout line would not be JSON, for a full run and for an empty one."""
    line = json.dumps(summary_dict(summarise(_two_rollouts())), allow_nan=False)
    assert json.loads(line)["drafters"][1]["speedup"]["pairs"] == 3
    assert summary_dict(summarise([])) == {"drafters": [], "warnings": []}


def test_table_shows_interval_and_its_caveat() -> None:
    """Fails if the interval is missing, does not fit 80 columns, or hides how few rollouts it rests on."""
    screen = _screen(_two_rollouts())
    # 6 / 3.4, without one rollout 2, without the other 4 / 2.4: exp(12.706 x 0.5 x log 1.2) either way
    assert re.search(r"1\.76 \[0\.55, 5\.62\]", screen)
    assert "only 2 independent rollouts" in screen


def _screen(rows: list[TurnRow]) -> str:
    console = Console(width=80, file=StringIO())
    console.print(render(summarise(rows)))
    return console.file.getvalue()  # type: ignore[attr-defined]
