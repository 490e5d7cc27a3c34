"""The n-gram drafter against a search through the whole text, and what its index costs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, SupportsIndex

import pytest
import torch
from agentbench_spec_drafters.ngram import NgramDrafter, make
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_texts import ask, asked_fresh, check_state_bytes, opened, span

from agentbench_spec.errors import ConfigError

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
EDITS = st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 2), min_size=1, max_size=12)), max_size=8)
PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


def searched(text: Sequence[int], k: int, max_n: int, min_n: int) -> list[int]:
    """Prompt look-up by reading the text from its end, again for every size."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                grown = list(text)
                for i in range(k):
                    grown.append(grown[end + i])
                return grown[len(text) :]
    return []


@PROPERTY
@given(text=TEXTS, k=st.integers(1, 8), max_n=st.integers(1, 5), min_n=st.integers(1, 5))
def test_equals_a_search_through_the_text(text: list[int], k: int, max_n: int, min_n: int) -> None:
    """Longest n first, latest occurrence, continuation and its wrap: any of them wrong differs from the search."""
    min_n = min(min_n, max_n)
    assert asked_fresh(make(max_n=max_n, min_n=min_n), text, k) == searched(text, k, max_n, min_n)


def index_of(drafter: Any) -> list[Any]:
    """All that the drafter holds of row 0."""
    return [drafter._texts[0], drafter._indexed[0], [(i._latest, i._replaced) for i in drafter._indices[0]]]


@PROPERTY
@given(edits=EDITS)
def test_truncate_then_extend_equals_fresh(edits: list[tuple[int, list[int]]]) -> None:
    """A cut that leaves an n-gram of the discarded text behind, or loses the one it replaced, differs from fresh."""
    edited, text = opened(make()), list[int]()
    for cut, new in edits:
        text = text[:cut]
        edited.truncate(0, cut)
        edited.observe(span(new, len(text), padding=2))
        text += new
    fresh = opened(make())
    if text:
        fresh.observe(span(text, 0))
    assert index_of(edited) == index_of(fresh)
    assert edited.state_bytes(0) == fresh.state_bytes(0)


def test_a_span_that_overlaps_replaces_what_was_known() -> None:
    """`observe` voids everything at positions >= start, without a call of truncate."""
    drafter = opened(make())
    drafter.observe(span([1, 2, 3, 4, 1, 2], 0))
    drafter.observe(span([5, 1], 2))
    assert ask(drafter, [1, 2, 5, 1, 2], 1) == [5]


def test_past_the_end_of_the_text_the_copy_goes_on_periodically() -> None:
    """The match overlaps its own continuation: without the wrap only two tokens could be proposed."""
    assert asked_fresh(make(), [8, 9, 8, 9, 8, 9], 7) == [8, 9, 8, 9, 8, 9, 8]


def test_most_recent_occurrence_wins() -> None:
    assert asked_fresh(make(), [1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


def test_longer_match_beats_a_more_recent_one() -> None:
    assert asked_fresh(make(max_n=3), [3, 1, 2, 7, 4, 1, 2, 8, 3, 1, 2], 1) == [7]


def test_nothing_is_proposed_without_a_match() -> None:
    """Guesses without evidence would cost a wider verification."""
    assert asked_fresh(make(), [1, 2, 3, 4], 4) == []


def test_propose_leaves_no_trace() -> None:
    """An anchor that is indexed before the target committed it would poison later look-ups."""
    drafter = opened(make())
    drafter.observe(span([1, 2, 3, 1, 2], 0))
    before = copy.deepcopy(index_of(drafter))
    assert ask(drafter, [1, 2, 3, 1, 2, 3], 4) == ask(drafter, [1, 2, 3, 1, 2, 3], 4) == [1, 2, 3, 1]
    assert index_of(drafter) == before


def test_rows_do_not_mix_and_an_idle_row_is_left_out() -> None:
    """Row 1 must not answer from row 0's text; position -1 asks nothing."""
    drafter = opened(make(), rows=3)
    drafter.observe(span([1, 2, 7, 1], 0, row=0))
    drafter.observe(span([1, 2, 8, 1], 0, row=2))
    guess = drafter.propose(torch.tensor([2, 2, 2]), torch.tensor([4, -1, 4]), 2)
    assert guess.ids.tolist() == [[7, 1], [0, 0], [8, 1]]
    assert guess.count is not None
    assert guess.count.tolist() == [2, 0, 2]


class CountedReads(list[int]):
    """A text that counts how many of its tokens were read."""

    reads = 0

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.reads += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)


@pytest.mark.parametrize("size", [100, 20_000])
def test_propose_reads_a_fixed_number_of_tokens(size: int) -> None:
    """Work in `propose` that grew with the context would be booked as draft time of long turns."""
    drafter = opened(make(max_n=4, min_n=2))
    assert isinstance(drafter, NgramDrafter)
    text = CountedReads([*range(size), 5, 6, 7])
    drafter.observe(span(list(text)[:-1], 0))
    text.reads = 0
    assert drafter.propose_one(0, text, 7) == [8, 9, 10, 11, 12, 13, 14]
    assert text.reads <= 4 + 3 + 2 + 7


def test_state_bytes_is_close_to_what_is_allocated_and_grows() -> None:
    """The estimate stands in a results column: off by more than half it would mislead."""
    check_state_bytes(make)


@pytest.mark.parametrize("options", [{"min_n": 0}, {"min_n": 5}, {"max_n": 1, "min_n": 2}])
def test_sizes_out_of_order_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="1 <= min_n <= max_n"):
        make(**options)
