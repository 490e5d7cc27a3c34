"""The suffix automaton and its drafter against a search through the whole text, and what they cost."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import pytest
from agentbench_spec_drafters.automaton import SuffixAutomaton
from agentbench_spec_drafters.suffix import make
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_texts import ask, asked_fresh, check_state_bytes, library_words, opened, span

from agentbench_spec.errors import ConfigError

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
EDITS = st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 2), min_size=1, max_size=12)), max_size=8)
PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)


def ends(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Positions at which an occurrence of `part` in `text` ends."""
    n = len(part)
    return [e for e in range(n, len(text) + 1) if text[e - n : e] == part]


def longest_match(text: list[int], anchor: int) -> list[int]:
    """The longest suffix of text + [anchor] that occurs in text."""
    whole = [*text, anchor]
    return next((whole[i:] for i in range(len(whole)) if ends(text, whole[i:])), [])


def likeliest(text: list[int], part: list[int]) -> tuple[int, float] | None:
    """The token that followed `part` most often (among equals: the one whose first time was the latest), its share."""
    followers = [text[e] for e in ends(text, part) if e < len(text)]
    if not followers:
        return None
    best = max(set(followers), key=lambda t: (followers.count(t), ends(text, [*part, t])[0]))
    return best, followers.count(best) / len(followers)


def searched(text: list[int], k: int, factor: float, min_probability: float) -> list[int]:
    """What the drafter must propose after `text`, found by reading the whole text for every token."""
    known, anchor = text[:-1], text[-1]
    match = longest_match(known, anchor)
    limit = min(k, int(factor * len(match))) if match else 0
    guess, part, probability = list[int](), match, 1.0
    while len(guess) < limit:
        found = likeliest(known, part)
        token, share = found or (anchor, 1.0)
        part = [*part, token] if found else match
        probability *= share
        if probability < min_probability:
            break
        guess.append(token)
    return guess


def contents(automaton: SuffixAutomaton) -> dict[str, Any]:
    """All that an automaton holds; transitions in the order in which they are weighed."""
    held = copy.deepcopy(vars(automaton))
    held["_next"] = [list(following.items()) for following in held["_next"]]
    return held


def built(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


@PROPERTY
@given(text=TEXTS)
def test_longest_match_equals_a_search(text: list[int]) -> None:
    """A wrong link or a missed clone makes some match too short, or finds one that never was."""
    for anchor in range(4):
        state, length = built(text).locate(anchor)
        assert length == len(longest_match(text, anchor))
        assert (state == 0) == (length == 0)


@PROPERTY
@given(text=TEXTS)
def test_continuation_of_every_substring_equals_a_search(text: list[int]) -> None:
    """Counts, shares and the choice among equals, at every substring and not only at the longest match."""
    automaton = built(text)
    for start in range(len(text)):
        state = 0
        for end in range(start, len(text)):
            state = automaton._next[state][text[end]]
            found = automaton.likeliest(state)
            assert (found and (found[0], found[2])) == likeliest(text, text[start : end + 1])


@PROPERTY
@given(text=TEXTS, k=st.integers(1, 8), factor=st.sampled_from([0.5, 1.0, 3.0]), floor=st.sampled_from([0.0, 0.3, 0.6]))
def test_proposal_equals_a_search(text: list[int], k: int, factor: float, floor: float) -> None:
    """The drafter as a whole: length by match, end by probability, going on past the end of the text."""
    drafter = make(factor=factor, min_probability=floor)
    assert asked_fresh(drafter, text, k) == searched(text, k, factor, floor)


@PROPERTY
@given(edits=EDITS)
def test_truncate_then_extend_equals_fresh(edits: list[tuple[int, list[int]]]) -> None:
    """Every state, link, count and the order of transitions: anything not taken back would differ."""
    edited, text = SuffixAutomaton(), list[int]()
    for cut, new in edits:
        edited.truncate(cut)
        edited.extend(new)
        text = text[:cut] + new
    assert contents(edited) == contents(built(text))
    assert len(edited) == len(text)


def test_truncate_to_nothing_leaves_an_empty_automaton() -> None:
    """On real text, with long chains and many clones."""
    automaton = built(library_words(2_000))
    automaton.truncate(0)
    assert contents(automaton) == contents(SuffixAutomaton())


def test_drafter_keeps_its_automaton_in_step_with_the_text() -> None:
    """Overlapping spans and cuts reach the automaton, padding does not."""
    drafter: Any = opened(make())
    drafter.observe(span([1, 2, 3, 4], 0, padding=3))
    drafter.observe(span([5, 1], 2, padding=1))
    drafter.truncate(0, 3)
    assert contents(drafter._automata[0]) == contents(built([1, 2, 5]))


def test_propose_leaves_no_trace() -> None:
    """An anchor that is indexed before the target committed it would match itself."""
    drafter: Any = opened(make(factor=4.0))
    drafter.observe(span([1, 2, 3, 1, 2], 0))
    before = contents(drafter._automata[0])
    assert ask(drafter, [1, 2, 3, 1, 2, 3], 4) == ask(drafter, [1, 2, 3, 1, 2, 3], 4) == [1, 2, 3, 1]
    assert contents(drafter._automata[0]) == before


@pytest.mark.parametrize(("factor", "offset", "length"), [(1.0, 0.0, 2), (2.0, 0.0, 4), (1.0, 3.0, 5), (0.0, 0.0, 0)])
def test_longer_matches_allow_longer_proposals(factor: float, offset: float, length: int) -> None:
    """The text's last two tokens match."""
    text = [8, 1, 2, 3, 4, 5, 6, 7, 9, 1, 2]
    assert asked_fresh(make(factor=factor, offset=offset), text, 7) == text[3 : 3 + length]


def test_proposal_ends_where_the_text_went_different_ways() -> None:
    """1 2 was followed by 3 each time, then by three different tokens: one token is safe, a second is a guess."""
    text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2]
    assert asked_fresh(make(min_probability=0.5), text, 7) == [3]
    assert asked_fresh(make(min_probability=0.3), text, 7) == [3, 6, 1, 2]


def test_probability_is_that_of_the_whole_guess() -> None:
    """3 has a share of 3/4, 4 after it 2/3: each alone is above 0.6, both together are not."""
    text = [11, 1, 2, 3, 4, 12, 1, 2, 3, 4, 13, 1, 2, 3, 5, 14, 1, 2, 6, 15, 1, 2]
    assert asked_fresh(make(min_probability=0.6), text, 7) == [3]
    assert asked_fresh(make(min_probability=0.4), text, 7) == [3, 4]


def test_a_match_shorter_than_asked_for_is_not_followed() -> None:
    assert asked_fresh(make(min_match=2), [1, 2, 3, 1], 4) == []
    assert asked_fresh(make(min_match=1), [1, 2, 3, 1], 4) == [2, 3]


def test_one_token_repeated_stays_linear_in_time_and_memory() -> None:
    """Here every prefix is a suffix: counting along all links would take some 200 million steps, well over 10 s."""
    size = 20_000
    begin = time.perf_counter()
    automaton = built([7] * size)
    assert automaton.locate(7)[1] == size
    automaton.truncate(size // 2)
    assert time.perf_counter() - begin < 4.0
    assert automaton.locate(7)[1] == size // 2
    assert len(automaton._next) == size // 2 + 1


def test_one_token_repeated_is_still_continued() -> None:
    """Counts are only lower bounds on so long a chain; the guess must not suffer."""
    assert asked_fresh(make(), [7] * 3_000, 7) == [7] * 7
    text = [*[7] * 500, 8, *[7] * 500]
    assert asked_fresh(make(), text, 3) == [8, 7, 7]


def test_after_thousands_of_different_continuations_the_newest_are_weighed() -> None:
    """Bounded work also where a substring was followed by something else each time."""
    text = [token for i in range(3_000) for token in (1, 2, 1_000 + i)]
    state, length = built([*text, 1]).locate(2)
    assert length == 2
    found = built([*text, 1]).likeliest(state)
    assert found is not None
    assert found[0] == 1_000 + 2_999
    assert found[2] == pytest.approx(1 / 64)


def test_state_bytes_is_close_to_what_is_allocated_and_grows() -> None:
    """The estimate stands in a results column: off by more than half it would mislead."""
    check_state_bytes(make)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"min_match": 0}, "min_match"), ({"factor": -1.0}, "factor"), ({"min_probability": 1.5}, "min_probability")],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make(**options)
