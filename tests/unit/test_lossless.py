"""Is a difference a near tie or a bug? (field case 7)"""

from __future__ import annotations

import pytest
import torch

from agentbench_spec.engine.lossless import TIE_TOLERANCE, Comparison, compare, first_difference, gap
from agentbench_spec.engine.target import Target
from agentbench_spec.testing import greedy_text, toy_model, toy_turns

PROMPT = toy_turns()[0]
AT = len(PROMPT)
TOLERANCE = TIE_TOLERANCE[torch.float64]


def prefilled(model: torch.nn.Module) -> Target:
    target = Target(model, name="toy", capacity=256)
    target.evaluate(0, [0], torch.tensor([PROMPT]))
    target.commit(0, AT)
    return target


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """Twelve greedy tokens."""
    return greedy_text(Target(toy_model(), name="toy", capacity=256), PROMPT, 12)[AT:]


@pytest.mark.parametrize(
    ("ours", "theirs", "at"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 3], 1), ([1, 2, 3], [1], 1), ([], [], None), ([], [4], 0)],
)
def test_first_difference(ours: list[int], theirs: list[int], at: int | None) -> None:
    """Fails if an early end passes for equality."""
    assert first_difference(ours, theirs) == at


def test_gap_is_to_the_worse_of_the_two() -> None:
    """Fails if a wrong token is excused because the other one is on top."""
    logits = torch.tensor([1.0, 4.0, 3.5, -2.0])
    assert (gap(logits, 1, 2), gap(logits, 2, 1), gap(logits, 0, 2)) == (0.5, 0.5, 3.0)


def test_equal_outputs_cost_nothing(plain: list[int]) -> None:
    """Fails if an identical turn is run again."""
    target = prefilled(toy_model())
    calls: list[int] = []
    target.model.register_forward_hook(lambda *_: calls.append(1))
    assert compare(target, 0, AT, plain, list(plain), TOLERANCE) == Comparison("none")
    assert not calls


def test_a_planted_tie_is_a_tie_with_its_margin(plain: list[int]) -> None:
    """Fails if rounding between equal logits is reported as a bug: token `twin` has the top token's weights."""
    model, at = toy_model(), 5
    twin = next(token for token in range(64) if token not in plain)
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[plain[at]]
    ours = [*plain[:at], twin, *plain[at + 1 :]]
    found = compare(prefilled(model), 0, AT, ours, plain, TOLERANCE)
    assert (found.kind, found.at) == ("tie", at)
    assert found.margin is not None and 0 <= found.margin <= TOLERANCE


def test_the_tolerance_is_the_line_between_tie_and_bug(plain: list[int]) -> None:
    """Fails if a gap above the tolerance passes, or one below it does not."""
    model, at = toy_model(), 5
    twin = next(token for token in range(64) if token not in plain)
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[plain[at]] * (1 - 1e-4)
    ours = [*plain[:at], twin]
    found = compare(prefilled(model), 0, AT, ours, plain, TOLERANCE)
    assert found.kind == "error" and found.margin is not None and found.margin > TOLERANCE
    assert compare(prefilled(model), 0, AT, ours, plain, found.margin).kind == "tie"


def test_a_dropped_token_is_an_error(plain: list[int]) -> None:
    """Fails if the classic loop bug, one accepted token lost, is taken for rounding."""
    assert plain[4] != plain[5]
    found = compare(prefilled(toy_model()), 0, AT, [*plain[:4], *plain[5:]], plain, TOLERANCE)
    assert (found.kind, found.at) == ("error", 4)
    assert found.margin is not None and found.margin > 0.01


@pytest.mark.parametrize("end", [0, 1, 7])
def test_an_early_end_is_an_error(end: int, plain: list[int]) -> None:
    """Fails if a turn that stops short of the baseline, or runs past it, counts as identical or as a tie."""
    target = prefilled(toy_model())
    assert compare(target, 0, AT, plain[:end], plain, 1e9) == Comparison("error", end)
    assert compare(target, 0, AT, plain, plain[:end], 1e9) == Comparison("error", end)


def test_comparing_leaves_the_row_as_it_was(plain: list[int]) -> None:
    """Fails if the extra run counts positions, so that the next turn would build on one drafter's text."""
    target = prefilled(toy_model())
    compare(target, 0, AT, [*plain[:6], 1, 2], plain, TOLERANCE)
    assert target.lengths == [AT]
