"""What others take from rows: the table of the best K, the acceptance profile, the ceiling."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from replaykit import replayed, replayer, three_turns
from reportkit import MANIFEST, timed, two_rollouts
from rowkit import make_row
from runkit import call

from agentbench_spec.engine.ceiling import mean_maximum
from agentbench_spec.errors import ConfigError
from agentbench_spec.report.grids import policy_grids
from agentbench_spec.results.changes import WHOLE
from agentbench_spec.results.derived.policy import Choice, choices_of, policy_sheet
from agentbench_spec.results.derived.profile import profile_of, read_profile, write_profile
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.testing import ProfiledDrafter, greedy_text, play_turns, toy_target, toy_turns

# the best K


def swept(k: int, round_ms: float, *, spread: float = 0.0, context: int = 600, **fields: Any) -> list[TurnRow]:
    """Six rollouts at one K: plain decoding at 10 ms a token, rounds of `round_ms` that emit k + 1 tokens.

    spread: how much longer the rounds of every other rollout take, as a part.
    """
    rows: list[TurnRow] = []
    for i in range(6):
        own_ms = round_ms * (1 + spread * (i % 2))
        shared = {"context_tokens": context, **fields}
        rows.append(timed(f"r{i}", 0, "none", [0] * 12, (0.0, 10.0, 0.0, 0.0, 0.0), **shared))
        rows.append(timed(f"r{i}", 0, "toy", [k] * (12 // (k + 1)), (1.0, own_ms - 1.0, 0.0, 0.0, 0.0), k=k, **shared))
    return rows


def at(choices: Sequence[Choice], context: str) -> Choice:
    return next(each for each in choices if each.place.context == context)


def test_the_best_k_by_context_is_told_from_the_others() -> None:
    """Fails if contexts are thrown together: here K = 3 is best on short prompts and K = 1 on long ones."""
    short = [swept(1, 12.0), swept(3, 13.0)]
    long = [
        [replace(row, rollout=f"long {row.rollout}") for row in swept(k, ms, context=3000)]
        for k, ms in ((1, 12.0), (3, 50.0))
    ]
    choices = choices_of([a + b for a, b in zip(short, long, strict=True)])
    assert [each.place.context for each in choices] == [WHOLE, "under 1K", "2K-4K"]
    assert at(choices, "under 1K").best.k == 3 and at(choices, "2K-4K").best.k == 1
    assert at(choices, "under 1K").best.speedup == pytest.approx(4 * 10 / 13)
    assert at(choices, "under 1K").rivals == () and at(choices, "under 1K").speculate is True
    assert at(choices, "2K-4K").best.turns == 6


def test_intervals_that_overlap_name_no_winner() -> None:
    """Fails if a difference within the noise reads as a choice."""
    choice = at(choices_of([swept(1, 12.0, spread=0.8), swept(3, 23.5, spread=0.8), swept(2, 60.0)]), WHOLE)
    assert {choice.best.k} | {each.k for each in choice.rivals} == {1, 3}
    (line,) = policy_sheet([choice]).lines
    assert line[5] in ("K = 1", "K = 3")


@pytest.mark.parametrize(
    ("one_ms", "three_ms", "spread", "verdict"),
    [(12.0, 13.0, 0.0, True), (25.0, 50.0, 0.0, False), (16.0, 50.0, 0.6, None)],
)
def test_whether_to_draft_at_all(one_ms: float, three_ms: float, spread: float, verdict: bool | None) -> None:
    """Fails if a drafter that is slower at every K is advised, or one that cannot be told from plain decoding is."""
    choice = at(choices_of([swept(1, one_ms, spread=spread), swept(3, three_ms, spread=spread)]), WHOLE)
    assert choice.speculate is verdict


def test_concurrency_and_a_chosen_k_are_places_and_choices_of_their_own() -> None:
    """Fails if 1 and 8 rollouts in flight are one place, or a K chosen round by round is taken for its most."""
    auto = [replace(row, k_policy="auto" if row.drafter == "toy" else "fixed") for row in swept(3, 12.5)]
    choices = choices_of([swept(1, 12.0), swept(3, 13.0), auto])
    assert {each.k for each in at(choices, WHOLE).tried} == {1, 3, "auto, up to 3"}
    eight = choices_of([[replace(row, concurrency=8) for row in swept(k, 12.0)] for k in (1, 3)])
    assert {each.place.concurrency for each in eight} == {8}


def test_the_table_is_in_a_report_over_runs_of_several_k_and_in_no_other(tmp_path: Path) -> None:
    """Fails if one K, or runs that differ in more than k, are given a table, or runs of several K are not."""
    assert policy_grids([swept(1, 12.0), swept(1, 12.0)]) == []
    assert policy_grids([swept(1, 12.0), swept(3, 13.0, target="another")]) == []
    (both,) = policy_grids([swept(k, 12.0, concurrency=c) for c in (1, 8) for k in (1, 3)])
    assert {row[2].text for row in both.rows} == {"1", "8"}
    folders = []
    for k, ms in ((1, 12.0), (3, 13.0)):
        folders.append(tmp_path / f"k{k}")
        with RunWriter.create(folders[-1], MANIFEST) as writer:
            for row in swept(k, ms):
                writer.turn([row], ())
            for i in range(6):
                writer.rollout_done(f"r{i}", status="ok", error=None)
            writer.finish(include_degenerate=False)
    page = tmp_path / "page.html"
    assert call("report", *folders, "-o", page).code == 0
    assert "How many tokens to draft" in page.read_text() and "K = 3: 3.08" in page.read_text()


# the profile


def test_rates_by_position_and_context() -> None:
    """Fails if a rate is over other rounds than those that can have it, or contexts are mixed."""
    rows = [
        make_row("a", 0, "toy", [3, 0, 1], k=3, context_tokens=500),
        make_row("b", 0, "toy", [2], k=3, context_tokens=5000),
        make_row("a", 0, "none", [0] * 7, k=3, context_tokens=500),
    ]
    rows[1].proposed_lengths, rows[1].proposed = [2], 2
    found = profile_of(rows).of("toy")
    whole = found.stretch()
    assert [each.context for each in found.stretches] == [WHOLE, "under 1K", "4K-8K"]
    assert (whole.rounds, whole.turns, whole.rollouts, whole.acceptance_length) == (4, 2, 2, 2.5)
    rates = whole.positions
    assert (rates.proposed, rates.reached, rates.accepted) == ([4, 4, 3], [4, 3, 1], [3, 2, 1])
    assert rates.marginal == [0.75, 0.5, 0.25] and rates.conditional == [0.75, 2 / 3, 1.0]
    assert 1 + sum(rates.marginal) == whole.acceptance_length
    with pytest.raises(ConfigError, match="4K-8K"):
        found.stretch("1M")
    with pytest.raises(ConfigError, match="toy on toy"):
        profile_of(rows).of("other")
    with pytest.raises(ConfigError, match="no acceptance"):
        profile_of(rows[2:])


def served(rollout: str, histogram: list[int] | None, proposed: int | None = None) -> TurnRow:
    """A row as a server tells it: rounds by how many drafts they accepted, or only their sum."""
    row = make_row(rollout, 0, "toy", k=3, backend="vllm", concurrency=8, context_tokens=500)
    row.rounds = 4 if histogram is None else sum(histogram)
    row.matched = 5 if histogram is None else sum(i * n for i, n in enumerate(histogram))
    row.emitted = row.emitted_raw = row.matched + row.rounds
    row.proposed, row.matched_histogram = proposed, histogram
    return row


def test_the_profile_of_a_server_says_what_it_was_told() -> None:
    """Fails if turns whose rounds had unlike many drafts are dropped in silence, or a rate is made up for them."""
    alike = profile_of([served("a", [1, 0, 2, 1], proposed=12)])
    whole = alike.of("toy").stretch().positions
    assert whole.proposed == [4, 4, 4] and whole.conditional == [0.75, 1.0, 1 / 3]
    assert (alike.backend, alike.concurrency) == ("vllm", 8)
    unlike = served("b", [2, 1, 0, 0], proposed=4)
    found = profile_of([served("a", [1, 0, 2, 1], proposed=12), unlike, served("c", None)])
    stretch = found.of("toy").stretch()
    assert (stretch.turns, stretch.rounds, stretch.untold_turns) == (2, 7, 1)
    rates = stretch.positions
    assert rates.proposed is None and rates.reached is None and rates.conditional == [None] * 3
    assert rates.accepted == [4, 3, 1] and rates.marginal == [4 / 7, 3 / 7, 1 / 7]
    assert rates.chain == pytest.approx([4 / 7, 3 / 4, 1 / 3])
    assert stretch.acceptance_length == pytest.approx(1 + sum(rates.marginal))
    with pytest.raises(ConfigError, match="no acceptance"):
        profile_of([served("c", None)])


def test_a_profile_of_the_first_form_is_still_read(tmp_path: Path) -> None:
    """Fails if what is new in the form makes older files unreadable."""
    values = asdict(profile_of(two_rollouts()))
    old = {name: value for name, value in values.items() if name not in ("backend", "concurrency")} | {"schema": 1}
    for own in old["profiles"]:
        for stretch in own["stretches"]:
            del stretch["untold_turns"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert read_profile(tmp_path / "old.json") == replace(profile_of(two_rollouts()), schema=1)


@pytest.mark.parametrize("name", ["profile.yaml", "profile.yml", "profile.json"])
def test_a_profile_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    """Fails if a form loses a digit or a null, or the command line writes another one."""
    found = profile_of(two_rollouts())
    assert read_profile(write_profile(found, tmp_path / name)) == found
    with RunWriter.create(tmp_path / "run", MANIFEST) as writer:
        for row in two_rollouts():
            writer.turn([row], ())
    done = call("export", tmp_path / "run", "--profile", "-o", tmp_path / name)
    assert done.code == 0 and done.last == {"file": str(tmp_path / name), "drafters": ["ngram"]}
    assert read_profile(tmp_path / name) == found
    assert call("export", tmp_path / "run", "--profile", "-o", tmp_path / "profile.csv").code == 2


def test_what_is_no_profile_is_named(tmp_path: Path) -> None:
    """Fails if a damaged profile is read as one, or the error does not say where the damage is."""
    good = write_profile(profile_of(two_rollouts()), tmp_path / "good.json").read_text()
    for text, message in (
        ("[1, 2]", "bad.json"),
        ("{", "bad.json: not a profile"),
        (good.replace('"rounds": 8', '"rounds": "8"'), "stretches.0.rounds"),
        (good.replace('"schema": 2', '"schema": 3'), "schema 3 is newer"),
    ):
        assert text != good
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_profile(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="not a profile"):
        read_profile(tmp_path / "missing.json")


def test_a_scripted_drafter_is_accepted_as_the_profile_says() -> None:
    """Fails if what a simulator is given is not what it then shows: rates are put in and measured again."""
    prompt, wanted = toy_turns()[0], [0.9, 0.5, 0.8]
    text = greedy_text(toy_target(capacity=900), prompt, 760)
    target, drafter = toy_target(capacity=900), ProfiledDrafter([text], wanted)
    drafter.open(target.info, rows=1, capacity=900)
    (played,) = play_turns(target, {"own": drafter}, [prompt], k=3, max_new_tokens=700)
    done = played.turns["own"]
    assert done.output == text[len(prompt) : len(prompt) + 700]
    row = make_row("a", 0, "own", [each.matched for each in done.rounds[:-1]], k=3, context_tokens=len(prompt))
    rates = profile_of([row]).of("own").stretch().positions
    for rate, share, reached in zip(wanted, rates.conditional, rates.reached, strict=True):
        assert share is not None and abs(share - rate) < 4 * math.sqrt(rate * (1 - rate) / reached)


# the ceiling


def test_the_ceiling_is_the_mean_of_the_largest_probabilities() -> None:
    """Fails if a position is left out or counted twice, chunks change it, or the row's text is not put back."""
    target, prompt = toy_target(), toy_turns()[0]
    text = greedy_text(toy_target(), prompt, 150)
    logits = target.evaluate(0, [0], torch.tensor([text])).logits[0]
    wanted = logits.softmax(-1).amax(-1)[len(prompt) : len(text) - 1].mean()
    target.evaluate(0, [0], torch.tensor([prompt]))
    target.commit(0, len(prompt))
    assert mean_maximum(target, 0, len(prompt), text[len(prompt) :]) == pytest.approx(float(wanted), rel=1e-9)
    assert target.lengths == [len(prompt)]
    assert mean_maximum(target, 0, len(prompt), text[:1]) is None


def test_the_ceiling_is_in_the_rows_on_request() -> None:
    """Fails if it is measured unasked, left out when asked for, or no probability."""
    plain = [row for turn in replayed(replayer(), three_turns()) for row in turn.rows]
    asked = [row for turn in replayed(replayer(ceiling=True), three_turns()) for row in turn.rows]
    assert {row.ceiling for row in plain} == {None}
    assert all(row.ceiling is not None and 1 / 64 < row.ceiling <= 1 for row in asked if row.rounds)
    assert [row.output_ids for row in plain] == [row.output_ids for row in asked]
