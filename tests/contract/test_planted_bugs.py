"""Seven typical bugs, each in a drafter whose output stays lossless, and the law that catches each.

Verification repairs every mistake of a drafter. These tests fail if the kit would let such a drafter pass.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from small_benches import small_bench
from toy_drafters import Bigram, Block, Chain, DraftLM, Pivot

from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import Drafter

Make = Callable[[str], Drafter]


BUGS: list[tuple[Make, str, str]] = [
    (Chain, "keeps drafted rows", "incremental"),
    (DraftLM, "misses the bonus-step token", "incremental"),
    (Block, "ignores a history rewrite", "incremental"),
    (Chain, "reset at every turn", "incremental"),
    (Pivot, "reads the wrong row", "incremental"),
    (Bigram, "indexes rejected guesses", "incremental"),
    (Chain, "pairs hidden with the wrong token", "parity"),
]


@pytest.mark.parametrize(("make", "bug", "law"), BUGS, ids=[bug for _, bug, _ in BUGS])
def test_a_planted_bug_is_lossless_and_caught(make: Make, bug: str, law: str) -> None:
    """Fails if `law` misses the bug, or if the bug is so crude that the output itself changes."""
    bench = small_bench(lambda: make(bug))
    laws = ["lossless", "incremental", "parity"]
    report = check(bench.make, benches={"toy": bench}, reference=lambda: make(""), only=laws)
    outcomes = {finding.law: finding.outcome for finding in report.findings}
    assert outcomes["lossless"] == "passed"
    assert outcomes[law] == "failed"
    assert report.exit_code == 1
    [broken] = [finding for finding in report.findings if finding.law == law]
    assert "call" in broken.message
    assert "turn" in broken.message
    if law == "parity":  # wrong in one consistent way: only a reference can tell
        assert outcomes["incremental"] == "passed"
