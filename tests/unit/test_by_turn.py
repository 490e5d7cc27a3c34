"""τ by turn, plain and among turns of like length."""

from __future__ import annotations

import pytest
from rowkit import make_row

from agentbench_spec.results.by_turn import tau_by_turn


def test_matched_tau_takes_length_out_of_the_turn() -> None:
    """τ depends on length alone (2 when short, 4 when long), later turns are shorter: matched τ must be flat."""
    short, long = [1] * 8, [3] * 20  # 16 and 80 tokens
    lengths = {0: (short, long, long, long), 1: (short, short, short, long)}
    rows = [make_row(f"r{i}", turn, matched=own) for turn, each in lengths.items() for i, own in enumerate(each)]
    first, second = tau_by_turn(rows)
    assert first.tau > second.tau + 0.5
    assert first.tau_matched == pytest.approx(3.0) and second.tau_matched == pytest.approx(3.0)
    assert first.shared == 1.0 and first.output_tokens == pytest.approx((17 + 3 * 81) / 4)


def test_a_turn_of_a_rare_length_is_not_matched() -> None:
    """Fails if τ of a turn whose lengths the others do not have is compared with them."""
    rows = [make_row(f"r{i}", 0, matched=[1] * 8) for i in range(3)] + [make_row("r0", 1, matched=[3] * 20)]
    assert [found.tau_matched for found in tau_by_turn(rows)] == [pytest.approx(2.0), None]
