"""The sentences of a report's first screen: each says what its rows say, and how sure that is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from reportkit import timed, two_rollouts
from rowkit import make_row

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.derived.by_context import draft_kv_share_by_context, octave_text, speedup_by_context
from agentbench_spec.results.derived.states import state_growths
from agentbench_spec.results.findings.screen import findings, measured_on
from agentbench_spec.results.findings.wording import listed, many, percent
from agentbench_spec.results.rows import TurnRow

PLAIN = (0.0, 9.0, 0.5, 0.0, 0.5)
"""Milliseconds of a plain round: 10 in all."""


def decoded(
    methods: Mapping[str, Sequence[float]], *, turns: int = 2, plain: bool = True, **fields: Any
) -> list[TurnRow]:
    """Rows of as many rollouts as each method has values; a value is the milliseconds of a round of three tokens."""
    rows = []
    for i in range(len(next(iter(methods.values())))):
        for turn in range(turns):
            if plain:
                rows.append(timed(f"r{i}", turn, "none", [0] * 6, PLAIN, **fields))
            for name, round_ms in methods.items():
                rest = (1.0, round_ms[i] - 2.0, 0.5, 0.25, 0.25)
                rows.append(timed(f"r{i}", turn, name, [2, 2], rest, k=3, **fields))
    return rows


def said(rows: Sequence[TurnRow], topic: str = "Speed", **options: Any) -> str:
    """The sentence of one topic; empty if nothing is said of it."""
    return next((own.text for own in findings(rows, **options) if own.topic == topic), "")


SIX = (11.0, 12.0, 13.0, 12.0, 11.5, 12.5)


# --- speed


def test_a_method_that_beats_all_others_is_fastest() -> None:
    """30 ms of plain decoding against 12 is 2.5; fails if value, interval or counts are not those of the rows."""
    text = said(decoded({"ngram": SIX, "dlite": [ms + 8 for ms in SIX]}))
    assert text.startswith("ngram is fastest: 2.50x [2.")
    assert text.endswith("] the speed of plain decoding over 6 rollouts (12 turns).")


def test_a_method_as_fast_as_another_is_not_called_the_fastest() -> None:
    """Two methods that take turns at winning. Fails if the one ahead by chance is said to beat the other."""
    other = (13.0, 11.0, 12.0, 12.5, 12.0, 11.6)
    text = said(decoded({"ngram": SIX, "suffix": other}))
    assert "measured fastest" in text and "is fastest" not in text
    assert "the same turns do not tell it apart from suffix (2.50x)." in text


def test_a_method_that_lost_on_the_turns_it_shares_is_not_called_the_fastest() -> None:
    """Fails if a method that ran on the easy rollouts alone beats one that was faster there and ran on all."""
    rows = decoded({"easy": SIX, "all": [ms - 1 if i < 4 else ms + 12 for i, ms in enumerate(SIX)]})
    text = said([row for row in rows if row.drafter != "easy" or row.rollout < "r4"])
    assert text.startswith("easy measured fastest: 2.5") and "apart from all (" in text


def test_an_interval_that_includes_one_shows_nothing() -> None:
    """Speed-ups from 0.6 to 1.5. Fails if the sentence says that a method is faster, or hides the value."""
    unsure = (20.0, 50.0, 24.0, 45.0, 22.0, 30.0)
    alone = said(decoded({"ngram": unsure}))
    assert alone.startswith("ngram is not shown to be faster than plain decoding: 0.9")
    assert "the interval includes 1." in alone
    both = said(decoded({"ngram": unsure, "dlite": [ms + 3 for ms in unsure]}))
    assert both.startswith("No method is shown to be faster than plain decoding: ngram measured highest, 0.9")


def test_a_narrower_lower_value_may_be_the_one_that_is_shown() -> None:
    """Fails if a high value that may be chance hides a lower one that is not."""
    text = said(decoded({"wild": (17.0, 36.0, 17.0, 36.0, 19.0, 20.0), "calm": (25.0, 25.5, 25.0, 25.2, 25.1, 25.3)}))
    assert text.startswith("wild measured highest, 1.24x [") and "but its interval includes 1" in text
    assert "; shown to be faster: calm 1.19x [1.18, 1.20]." in text


def test_slower_than_plain_decoding_is_said_as_it_is() -> None:
    """Fails if a method that slows decoding down reads as one that was not shown to help."""
    slow = [ms + 30 for ms in SIX]
    assert said(decoded({"ngram": slow})).startswith("ngram slows decoding down: 0.71x [")
    text = said(decoded({"ngram": slow, "dlite": [ms + 1 for ms in slow]}))
    assert text.startswith("No method is faster than plain decoding: the best, ngram, reads 0.71x [")
    assert "Slower than plain decoding: dlite." in said(
        decoded({"ngram": slow, "dlite": [ms + 1 for ms in slow]}), "Others"
    )


def test_one_rollout_has_a_value_and_no_certainty() -> None:
    """Fails if one rollout is given an interval, or nobody is told that there is none."""
    assert said(decoded({"ngram": [12.0]})) == (
        "ngram reads 2.50x the speed of plain decoding over 1 rollout (2 turns). One rollout has no interval, so how "
        "sure this is is not known."
    )
    assert said(decoded({"ngram": [12.0], "dlite": [15.0]})).startswith("ngram measured fastest: 2.50x the speed")


def test_only_rollouts_that_both_decoded_are_counted() -> None:
    """Fails if rollouts that plain decoding has not decoded make a speed-up look better founded."""
    rows = decoded({"ngram": SIX})
    lonely = [row for row in rows if not (row.drafter == "none" and row.rollout in ("r4", "r5"))]
    assert said(lonely).endswith(
        "over 4 rollouts (8 turns). Only 4 independent rollouts: the interval holds only if rollouts are alike."
    )


def test_few_rollouts_are_said_to_be_few() -> None:
    """Fails if an interval of three rollouts looks like one of thirty."""
    text = said(decoded({"ngram": SIX[:3]}))
    assert text.endswith("Only 3 independent rollouts: the interval holds only if rollouts are alike.")


def test_rollouts_of_one_scenario_are_not_independent() -> None:
    """Fails if four variants of one story count as four."""
    rows = decoded({"ngram": SIX})
    for row in rows:
        row.labels = {"scenario": str(int(row.rollout[1:]) // 2)}
    assert "over 6 rollouts, 3 of them independent (12 turns)" in said(rows)


def test_without_plain_decoding_the_methods_are_compared_among_themselves() -> None:
    """Fails if a missing baseline ends the report, or a speed-up is made up."""
    text = said(decoded({"ngram": SIX, "dlite": [ms + 8 for ms in SIX]}, plain=False))
    assert text == (
        "No speed-up is known: plain decoding (`none`) was not run. Among the methods ngram takes 4.0 ms a token over "
        "6 rollouts (12 turns), less than each of the others."
    )
    only = [row for row in decoded({"ngram": [12.0, 12.0]}) if row.drafter == "none"]
    assert said(only) == (
        "Only plain decoding was run, 10.0 ms a token over 2 rollouts (4 turns): there is nothing to compare it with."
    )


def test_turns_without_clocks_have_no_speed() -> None:
    """Fails if rows without a clock crash the page or read as zero."""
    rows = decoded({"ngram": SIX}, decode_s=None, attributed_decode_s=None, round_s=None)
    assert said(rows) == "No speed-up is known: no turn was timed by both plain decoding and a method."


def test_prefill_may_change_who_is_first() -> None:
    """Fails if the figure with prefill is that without, or another winner by that count is not named."""
    rows = decoded({"ngram": SIX, "dlite": [ms + 1 for ms in SIX]})
    for row in rows:
        row.draft_ingest_s = {"ngram": 0.05, "dlite": 0.001}.get(row.drafter, 0.0)
    text = said(rows, "With prefill")
    assert text.startswith("With prefill and ingest counted, ngram reads 0.8")
    assert "; highest by that count is dlite, 1.4" in text


# --- as the context grows


def growing(late_ms: float, rollouts: int = 6) -> list[TurnRow]:
    """Turns at 600 and 1,200 tokens; in the second a round takes `late_ms` on average."""
    rows = decoded({"ngram": SIX[:rollouts]})
    for row in rows:
        if row.turn and row.drafter == "ngram" and row.decode_s:
            row.decode_s *= late_ms / 12
    return rows


def test_a_change_with_context_is_told_from_chance() -> None:
    """Fails if the two stretches are turned round, or a change that is chance is called one."""
    text = said(growing(18.0), "Speed by context")
    assert text.startswith("From 512-1K to 1K-2K tokens of context ngram goes from 2.50x to 1.67x (ratio 0.67 [")
    rows = growing(12.0)
    for i, row in enumerate(own for own in rows if own.drafter == "ngram" and own.decode_s):
        row.decode_s = (row.decode_s or 0.0) * (1.0 + 0.2 * (i * 7 % 5 - 2))
    assert "(not told apart, ratio" in said(rows, "Speed by context")
    assert "(not tested, too few rollouts in one of them)" in said(growing(18.0, 1), "Speed by context")


def test_one_stretch_of_context_tells_of_no_change() -> None:
    """Fails if prompts of one length give a trend, or a length that nobody recorded stops the page."""
    text = said(decoded({"ngram": SIX}, turns=1), "Speed by context")
    assert text == "Not known how ngram's speed-up changes with context: all prompts have 512-1K tokens."
    text = said(decoded({"ngram": SIX}, context_tokens=None), "Speed by context")
    assert text == "Not known how ngram's speed-up changes with context: prompt lengths were not recorded."


def test_figures_by_context_are_sums_over_sums() -> None:
    """Fails if turns of other octaves leak in, or turns are averaged instead of pooled."""
    rows = growing(18.0)
    first, last = speedup_by_context(rows).figures
    assert (first.octave, last.octave, first.turns, last.rollouts) == (9, 10, 6, 6)
    assert (first.value, last.value) == pytest.approx((2.5, 5 / 3))
    shares = draft_kv_share_by_context(rows).figures
    kv_s, whole_s = 0.01 + 2 * 0.00025, 0.05 + 0.01 + 2 * 0.012
    assert shares[0].value == pytest.approx(kv_s / whole_s)
    assert octave_text(9) == "512-1K" and octave_text(20) == "1M-2M"
    with pytest.raises(MeasurementError, match="temperature"):
        speedup_by_context([make_row("r0", 0, matched=[1]), make_row("r0", 1, matched=[1], temperature=1.0)])


# --- draft state and its maintenance


def states(name: str, sizes: Sequence[int | None], step: int = 600) -> list[TurnRow]:
    return [
        timed("r0", turn, name, [2, 2], (1.0, 9.0, 0.5, 0.25, 0.25), k=3, draft_state_bytes=size)
        for turn, size in enumerate(sizes)
    ]


def test_a_state_is_said_to_grow_or_not() -> None:
    """Fails if bytes a token are not the slope, or a constant and an absent state read alike."""
    rows = [
        *states("dlite", [0, 0, 0]),
        *states("fixed", [9216, 9216, 9216]),
        *states("eagle3", [606 * 1536, 1206 * 1536, 1806 * 1536]),
        *states("dflash", [606 * 3072, 1206 * 3072, 1806 * 3072]),
        *states("window", [4096, 8192, 8192]),
    ]
    assert said(rows, "Others' state") == (
        "dlite keeps no draft KV: its state is 0 bytes at any context, 606 to 1,806 tokens; window's state is full at "
        "8.0 KiB, from 1,206 tokens on; fixed's state is 9,216 bytes at any context, 606 to 1,806 tokens; eagle3's "
        "state grows by 1,536 bytes a token, to 2.6 MiB; dflash's state grows by 3,072 bytes a token, to 5.3 MiB at "
        "1,806 tokens."
    )


def test_what_cannot_be_seen_of_a_state_is_not_said() -> None:
    """Fails if one turn shows that nothing grows, or a server's unknown state is zero."""
    assert said(states("dlite", [0]), "Others' state") == (
        "dlite's state is 0 B at 606 tokens; contexts are too alike to tell whether it grows."
    )
    unknown = said([*states("dlite", [0, 0]), *states("other", [None, None])], "Others' state")
    assert unknown.endswith("The draft state of other is not known: no turn recorded it.")
    assert [own.drafter for own in state_growths([*two_rollouts(), *two_rollouts("none-again")])] == ["ngram"]


def test_the_fastest_method_is_said_to_cost_what_it_costs() -> None:
    """10.5 ms of 84 is 12.5 %; fails if its bytes, share, time or change with the context are another method's."""
    rows = decoded({"ngram": SIX, "dlite": [ms + 8 for ms in SIX]})
    found = findings(rows)
    assert [own.topic for own in found[:3]] == ["Speed", "Its draft state", "Others"]
    state, upkeep = found[1].text.split(". ", 1)
    assert state == "ngram's state grows by 7 bytes a token, to 8.0 KiB at 1,206 tokens"
    assert re.fullmatch(
        r"Draft-KV maintenance takes 12\.5 % \[12\.\d, 12\.\d\] of its turns \(1\.50 ms an output token; "
        r"12\.5 % at 512-1K and 12\.5 % at 1K-2K tokens of context, not told apart, ratio 1\.00 \[1\.00, 1\.00\]\)\.",
        upkeep,
    )
    once = said(decoded({"ngram": SIX}, turns=1), "Its draft state")
    assert "contexts are too alike to tell" in once and once.endswith("all at 512-1K tokens).")


def test_of_the_others_the_most_and_the_least_is_said() -> None:
    """Fails if the method in the middle is named, or the two ends are turned round."""
    costs_s = {"ngram": 0.01, "mid": 0.01, "dlite": 0.0, "dflash": 0.1}
    rows = decoded({name: [ms + 2 * i for ms in SIX] for i, name in enumerate(costs_s)})
    for row in rows:
        row.draft_ingest_s = costs_s.get(row.drafter, 0.0)
    text = said(rows, "Others' upkeep")
    assert text.startswith("Draft-KV maintenance of dflash takes 5") and "mid" not in text and "ngram" not in text
    assert "of its turns (14.36 ms an output token; 5" in text
    assert ", the most. That of dlite takes 0.6" in text and text.endswith("), the least.")


def test_maintenance_that_nobody_timed_is_not_known() -> None:
    """Fails if a server's missing phases, or a fused drafter's, are zero."""
    fields = {"draft_ingest_s": None, "draft_append_s": None, "draft_state_bytes": None}
    served = decoded({"ngram": SIX}, backend="sglang", **fields)
    assert said(served, "Its draft state") == (
        "The draft state of ngram is not known: a server does not tell it. Draft-KV maintenance is not known: a server "
        "does not tell the time of its phases."
    )
    assert said(served, "Others' state") == said(served, "Others' upkeep") == ""
    rows = decoded({"ngram": SIX, "dlite": [ms + 1 for ms in SIX], "fused": [ms + 2 for ms in SIX]})
    for row in rows:
        row.draft_append_s = None if row.drafter == "fused" else row.draft_append_s
    assert said(rows, "Others' upkeep").endswith("Not known of fused: fused into proposing, or not timed.")
    alone = [row for row in rows if row.drafter != "dlite"]
    assert said(alone, "Others' upkeep").startswith("Draft-KV maintenance is not known: it is fused into proposing")


# --- what it rests on


def test_outputs_are_identical_or_not() -> None:
    """Fails if a tie passes for an identical output, or outputs that nobody compared are called identical."""
    rows = decoded({"ngram": SIX})
    assert said(rows, "Outputs") == "All 12 outputs compared are identical to plain decoding's."
    assert said(rows[:2], "Outputs") == "The one output compared is identical to plain decoding's."
    rows[1].identical, rows[1].divergence = False, "tie"
    assert said(rows, "Outputs") == (
        "11 of 12 outputs compared are identical to plain decoding's; 1 parts from them at a near tie of the target's "
        "logits."
    )
    drawn = decoded({"ngram": SIX}, temperature=1.0, identical=None, divergence=None)
    assert said(drawn, "Outputs").endswith("they were drawn at random.")
    alone = decoded({"ngram": SIX}, plain=False, identical=None, divergence=None)
    assert said(alone, "Outputs").endswith("plain decoding did not decode the same turns.")


def test_a_void_run_has_no_figure_on_its_first_screen() -> None:
    """Fails if a run with a wrong output still says which method is fastest."""
    rows = decoded({"ngram": SIX})
    rows[1].identical, rows[1].divergence, rows[1].divergence_at = False, "error", 2
    found = findings(rows)
    assert [own.topic for own in found] == ["Void", "Outputs", "Left out"]
    assert found[0].text.startswith("No figure of this run may be quoted: a greedy output differs")
    assert "1 part from them elsewhere" not in found[1].text and "1 parts from them elsewhere" in found[1].text


def test_what_was_left_out_is_said_with_its_reason() -> None:
    """Fails if turns vanish, or methods that lost other turns are thrown together."""
    rows = decoded({"ngram": SIX})
    assert said(rows, "Left out") == "Nothing: all 12 turns of every method count."
    assert said([*rows, *rows[-1:]], "Left out") == "Nothing: every turn that was decoded counts."
    for row in rows[:2]:
        row.degenerate = True
    assert said(rows, "Left out") == "1 of 12 turns of every method: 1 repetition loop."
    loops = said(rows, "Left out", include_degenerate=True)
    assert loops == "Nothing: all 12 turns of every method count."
    rows.append(make_row("r9", 0, "ngram", k=3, status="error", error="broke"))
    text = said(rows, "Left out")
    assert text.startswith("none: 1 repetition loop; ngram: 1 repetition loop and 1 failure (of 13 turns).")
    rows[2].disturbed = True
    assert "so that their clocks weigh nothing: 1 turn of none." in said(rows, "Left out")


def test_a_live_run_says_what_came_of_its_tasks() -> None:
    """Fails if solved tasks are missing from the first screen, or a replay speaks of tasks."""
    assert said(decoded({"ngram": SIX}), "Tasks") == ""
    rows = decoded({"ngram": SIX[:2]}, history_mode="live", env_s=0.5)
    for row in rows:
        if row.turn == 1:
            row.ended, row.solved = "done", row.rollout == "r0"
    assert said(rows, "Tasks").startswith("Tasks solved: 1 of 2, in 2.0 turns on average (2 done)")


def test_acceptance_names_both_ends() -> None:
    """Fails if τ is not the pooled one, or one method is compared with itself."""
    rows = decoded({"ngram": SIX})
    assert said(rows, "Acceptance") == "ngram commits 3.00 [3.00, 3.00] tokens a round (τ)."
    rows += [timed(f"r{i}", turn, "dlite", [0, 0], PLAIN, k=3) for i in range(6) for turn in (0, 1)]
    text = said(rows, "Acceptance")
    assert text.endswith("tokens a round (τ), the most; dlite, with 1.00 [1.00, 1.00], the fewest.")


def test_the_line_above_says_what_was_decoded() -> None:
    """Fails if a reader of the first screen cannot tell target, workload, size, contexts or sampling."""
    assert measured_on(decoded({"ngram": SIX}, target="toy")) == (
        "toy on toy, 6 rollouts, 12 turns, prompts of 600 to 1,200 tokens, greedy, k = 3"
    )
    served = decoded({"ngram": [1.0]}, turns=1, backend="vllm", concurrency=4, temperature=1.0)
    assert measured_on(served).endswith("prompts of 600 tokens, temperature 1, k = 3, served by vllm, 4 at once")


def test_words() -> None:
    """Fails if a small share rounds to nothing, or a list reads wrong."""
    assert [percent(value) for value in (0.0, 0.0014, 0.014)] == ["0.0 %", "0.14 %", "1.4 %"]
    assert [listed(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert [many(n, "turn") for n in (0, 1, 1200)] == ["0 turns", "1 turn", "1,200 turns"]
