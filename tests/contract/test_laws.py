"""Each law fails on a drafter that breaks it, and its message says where. A law that cannot fail checks nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
from toy_drafters import Bigram, Boastful, Chain, DraftLM, LastPivot, Restless, Table

from agentbench_spec.conformance.distribution import ALPHA, chi_square, unverified
from agentbench_spec.conformance.kit import LAWS, check, check_drafter
from agentbench_spec.drafting import ConfigError, Drafter, TargetInfo
from agentbench_spec.testing import toy_target

BROKEN: list[tuple[str, str, Callable[[str], Drafter], str, str]] = [
    ("spec", "grows in secret", Boastful, "history_free", "passed"),
    ("spec", "proposes too many", Boastful, r"ids must be \[B, n\]: B = 1 rows, n <= 0 tokens", "failed"),
    ("spec", "proposes beyond the vocabulary", Boastful, "outside the vocabulary of 64", "failed"),
    ("spec", "counts too many", Boastful, "counts", "failed"),
    ("spec", "gives no distribution", Boastful, "no distribution", "failed"),
    ("no-trace", "answers differently each time", lambda bug: Restless(), "as it did when asked before", "failed"),
    ("rows", "mixes rows", Chain, "batch of 4, round 0", "passed"),
    ("padding", "reads padding", DraftLM, "with garbage beyond count", "failed"),
    ("truncate", "cannot go back", LastPivot, "as before the rounds that truncate threw away", "passed"),
    ("distribution", "misreports", Table, "do not follow the target", "passed"),
]


@pytest.mark.parametrize(("law", "bug", "make", "message", "incremental"), BROKEN, ids=[bug for _, bug, *_ in BROKEN])
def test_a_law_catches_what_breaks_it(
    law: str, bug: str, make: Callable[[str], Drafter], message: str, incremental: str
) -> None:
    """Fails if a law lets its own kind of fault pass, or blames another place; `incremental` says if that sees it."""
    report = check(lambda: make(bug), only=[law, "incremental"])
    findings = {finding.law: finding for finding in report.findings}
    assert findings[law].outcome == "failed", findings[law].message
    assert re.search(message, findings[law].message), findings[law].message
    assert findings["incremental"].outcome == incremental, findings["incremental"].message


def test_a_drafter_that_asks_for_what_it_lost_keeps_the_law() -> None:
    """Fails if the kit does not show again what a drafter says it no longer holds: the one above, which says so."""

    class Asks(LastPivot):
        def __init__(self) -> None:
            super().__init__("cannot go back")

        def truncate(self, row: int, length: int) -> int | None:  # type: ignore[override]
            return length - 1 if length else None

    report = check(Asks, only=["truncate"])
    assert [finding.outcome for finding in report.findings] == ["passed"], report.findings[0].message


def test_an_error_of_the_drafter_breaks_the_law_at_the_call_that_raised() -> None:
    """Fails if a crash inside a drafter escapes from the kit, or is reported without the call."""

    class Crash(Bigram):
        def truncate_one(self, row: int, length: int) -> None:
            raise ValueError("cannot shrink")

    report = check(Crash, only=["truncate", "lossless"])
    assert report.failed == ["lossless", "truncate"]
    messages = [finding.message for finding in report.findings]
    assert all("ValueError: cannot shrink" in message for message in messages)
    assert "truncate(row 0, length" in messages[1]


def test_a_drafter_for_another_target_is_not_blamed() -> None:
    """Fails if a drafter that refuses the toy target's sizes is called broken, or if nothing tried counts as good."""

    class Bound(Bigram):
        def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
            raise ConfigError(f"hidden size 2560 needed, the target has {target.hidden_size}")

    report = check(Bound)
    assert {finding.outcome for finding in report.findings} == {"skipped"}
    assert "hidden size 2560 needed" in report.findings[0].message
    assert report.exit_code == 2


def test_chi_square_passes_exact_draws_and_fails_everything_accepted() -> None:
    """Field case 9's control: fails if the test has no power against a good drafter whose drafts are never verified."""
    exact = {(a, b): (a + 1) * (b + 1) / 36**2 for a in range(8) for b in range(8)}
    proportional = Counter({cell: round(20_000 * p) for cell, p in exact.items()})
    assert chi_square(proportional, exact) > 0.99
    assert chi_square(unverified(exact), exact) < ALPHA
    assert chi_square(unverified(exact, temperature=1.0), exact) > ALPHA
    assert chi_square(Counter({(9, 9): 1}) + proportional, exact) == 0.0


def test_unknown_laws_and_targets_are_user_errors() -> None:
    """Fails if a typing error silently checks nothing."""
    with pytest.raises(ConfigError, match="unknown law 'losless'"):
        check(Bigram, only=["losless"])
    with pytest.raises(ConfigError, match="unknown target 'toys'"):
        check_drafter("none", on=["toys"])


def test_every_law_says_what_it_means() -> None:
    """Fails if a law is added without the sentence that a report prints."""
    assert all(law.sentence.endswith((".", "`")) or ":" in law.sentence for law in LAWS)
    assert len({law.name for law in LAWS}) == len(LAWS)


def test_a_floor_on_tau_is_held_against_the_target() -> None:
    """Fails if a drafter that accepts nothing reaches any floor."""
    report = check(Bigram, floor=4.0, only=["floor"], target=toy_target())
    assert report.failed == ["floor"]
    assert "below the floor of 4.0" in report.findings[0].message
    assert check(Bigram, floor=1.0, only=["floor"], target=toy_target()).exit_code == 0
