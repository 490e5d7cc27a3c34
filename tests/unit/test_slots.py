"""The pure parts of the SGLang plugin on numbers that can be read off: layers, rows, tokens, draws."""

from __future__ import annotations

import pytest
import torch
from agentbench_spec_sglang.slots import Slots, accepted, at_least, draw, emitted, last_rows, tail, taps

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("ids", "layers", "final"),
    [([0, 1, 5, 35], [0, 1, 5], True), ([0, 17, 34], [0, 17, 34], False), ([35], [], True)],
)
def test_the_last_layer_is_not_tapped_but_the_final_norm(ids: list[int], layers: list[int], final: bool) -> None:
    """SGLang catches a layer's output as the next one's input: the last of 36 would silently be left out."""
    assert taps(ids, 36) == (layers, final)


def test_rows_of_last_tokens() -> None:
    """Requests of 3, 1 and 4 tokens end to end: a request with all but one token cached has that one row."""
    assert last_rows([3, 1, 4]) == [2, 3, 7]


@pytest.mark.parametrize(("tokens", "count", "kept"), [([5, 6, 7], 1, [7]), ([5], 2, [0, 5]), ([5, 6], 0, [])])
def test_tail_of_a_prompt(tokens: list[int], count: int, kept: list[int]) -> None:
    """The prompt's own tokens, also those that came from the prefix cache; nothing is kept for a group of one."""
    assert tail(tokens, count) == kept


@pytest.mark.parametrize(
    ("drafts", "own", "count", "bonus", "tokens"),
    [
        ([4, 5, 6], [4, 5, 6, 7], 3, 7, [4, 5, 6, 7]),
        ([4, 5, 6], [9, 5, 6, 7], 0, 9, [9, 0, 0, 0]),
        ([4, 5, 6], [4, 9, 6, 7], 1, 9, [4, 9, 0, 0]),  # a later agreement does not count
    ],
)
def test_acceptance(drafts: list[int], own: list[int], count: int, bonus: int, tokens: list[int]) -> None:
    """Drafts count as far as they are what the target says itself, and its next token comes on top."""
    chosen = torch.tensor([own])
    found, extra = accepted(torch.tensor([[1, *drafts]]), chosen)
    assert (int(found), int(extra)) == (count, bonus)
    assert emitted(chosen, found)[0].tolist() == tokens


def test_pivot_and_previous_tokens_of_a_round() -> None:
    """Two requests, group of three: one keeps two drafts, one none. States are numbered by request and position."""
    slots = Slots(5, 1, 1, 3, dtype=torch.float32, device=CPU)
    at, block = torch.tensor([4, 2]), torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23]])
    slots.filled(at, torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([1, 2]), torch.tensor([[8, 9], [18, 19]]))
    assert slots.pivots[at, 0, 0].tolist() == [1, 2]
    slots.advanced(at, torch.arange(100.0, 108.0)[:, None], block, torch.tensor([2, 0]))
    assert slots.pivots[at, 0, 0].tolist() == [102, 104]
    assert slots.previous[at].tolist() == [[11, 12], [19, 20]]
    assert slots.pivots[[0, 1, 3]].abs().sum() == 0 and slots.previous[[0, 1, 3]].abs().sum() == 0


def test_draws_follow_the_distribution() -> None:
    """40,000 draws of three tokens, in which a fourth is impossible, lie within four standard deviations."""
    torch.manual_seed(0)
    probs = torch.tensor([0.5, 0.3, 0.2, 0.0])
    counts = draw(probs.expand(1, 40_000, 4))[0].bincount(minlength=4) / 40_000
    assert counts[3] == 0 and ((counts - probs).abs() <= 4 * (probs * (1 - probs) / 40_000).sqrt()).all()


def test_a_greedy_request_among_sampled_ones_stays_greedy() -> None:
    """The server writes temperature 0 as top-k 1, which leaves one token: every draw must be it."""
    only = torch.zeros(2, 3, 8).index_fill(2, torch.tensor([5]), 1.0)
    assert (draw(only) == 5).all()


def test_drafts_are_accepted_with_the_targets_probability() -> None:
    """One position, a draft that the target says with 0.3: accepted in 0.3 of 40,000 draws, else another token."""
    torch.manual_seed(1)
    probs = torch.tensor([0.5, 0.3, 0.2]).expand(40_000, 2, 3)
    count, bonus = accepted(torch.tensor([[7, 1]]).expand(40_000, 2), draw(probs))
    assert abs(float(count.double().mean()) - 0.3) < 4 * (0.21 / 40_000) ** 0.5
    assert (bonus[count == 0] != 1).all()


def test_min_p_drops_what_is_too_unlikely() -> None:
    """Half of the likeliest: 0.4 and 0.3 stay, 0.2 and 0.1 go; another request of the batch has its own bound."""
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1]).expand(2, 1, 4)
    kept = at_least(probs, torch.tensor([0.55, 0.0]))
    assert (kept > 0).tolist() == [[[True, True, False, False]], [[True] * 4]]
