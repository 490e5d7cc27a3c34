"""Offences that once passed the kit: each is caught by a law of its kind, and its right twin passes every law."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from offenders import Buffered, Deferring, Drawing, HistoryFree, Indexed, TailReader, Turning

from agentbench_spec.conformance.kit import LAWS, check
from agentbench_spec.drafting import Drafter

Make = Callable[[str], Drafter]

OFFENCES: list[tuple[Make, str, str, str]] = [
    (Drawing, "bends from the third draft", "distribution", "draft 3 of the block is not drawn from"),
    (Drawing, "bends the last draft", "distribution", "draft 7 of the block"),
    (Drawing, "says the probabilities of the draft before", "distribution", "token 5 of the block"),
    (Drawing, "drops drafts it drew unluckily", "distribution", "do not follow|not drawn from"),
    (Buffered, "never shrinks once emptied", "refill", "shorter than its former text"),
    (Buffered, "clears its neighbours", "refill", "row [12]"),
    (Buffered, "all rows at the longest", "rows", "asked alone"),
    (Buffered, "loses a span of one", "incremental", "chunks of [17]"),
    (Buffered, "loses a round in which nobody drafted", "incremental", "round . of k 0"),
    (Buffered, "takes padding where nothing was kept", "padding", "garbage beyond count"),
    (Buffered, "writes to the next page at a boundary", "incremental", "chunks of [17]"),
    (Buffered, "clears the page of a cut", "cuts", r"last cut from \d+ to \d+"),
    (Buffered, "frees one position too many at 64", "cuts", "cut from .* to (64|128) "),
    (Buffered, "frees the first position at 1", "cuts", "cut from .* to 1 "),
    (TailReader, "same length and tail", "rewrite", "same length 90 and same tail"),
    (TailReader, "same length and sum", "rewrite", "swapped"),
    (Turning, "goes back once", "truncate", "continuation 1"),
    (Turning, "forgets a round without drafts", "truncate", "k 0"),
    (Turning, "takes the block's last state", "incremental", "at most 0 drafts kept"),
    (Deferring, "to the next proposal", "ingest", "upkeep is left to propose"),
    (Deferring, "keeps nothing of it", "ingest", "upkeep is left to propose"),
    (Deferring, "in rounds only", "ingest", "after observing 8 positions"),
    (Deferring, "all of it anew", "ingest", "when asked a second time"),
    (Indexed, "indexes when asked", "ingest", "steps of Python"),
    (Buffered, "hides its buffer", "memory", "state_bytes says"),
    (Buffered, "counts half", "memory", "state_bytes says"),
    (Buffered, "counts the first page", "memory", "state_bytes says"),
    (Indexed, "hides its text", "memory", "entries of lists and dicts"),
    (Indexed, "calls itself history-free", "memory", "history_free"),
    (HistoryFree, "reads all of a buffer", "memory", "bytes of tensors read in a round"),
    (HistoryFree, "reads a buffer under a mask", "memory", "bytes of tensors read in a round"),
    (HistoryFree, "writes all of a buffer", "memory", "bytes written to its tensors"),
    (HistoryFree, "hoards in a list", "memory", "entries of lists"),
    (HistoryFree, "hoards in its module", "memory", "entries of lists"),
    (HistoryFree, "keeps all in NumPy", "memory", "grew with the text"),
]
TWINS = (Buffered, HistoryFree, Deferring, TailReader, Indexed, Drawing, Turning)


@pytest.mark.parametrize(
    ("make", "bug", "law", "message"), OFFENCES, ids=[f"{m.__name__}: {b}" for m, b, *_ in OFFENCES]
)
def test_an_offence_is_caught_by_the_law_of_its_kind(make: Make, bug: str, law: str, message: str) -> None:
    """Fails if the law lets the offence pass, or if its message does not say where and what."""
    [finding] = check(lambda: make(bug), only=[law]).findings
    assert finding.outcome == "failed", finding.message
    assert re.search(message, finding.message), finding.message


@pytest.mark.parametrize("make", TWINS)
def test_the_right_twin_passes_the_laws_that_its_offences_break(make: Make) -> None:
    """Fails if a law condemns what an offence above resembles but is not."""
    report = check(lambda: make(""), only={law for offender, _, law, _ in OFFENCES if offender is make})
    assert {f.law: f.message for f in report.findings if f.outcome != "passed"} == {}


@pytest.mark.slow
@pytest.mark.parametrize("make", TWINS)
def test_the_right_twin_passes_every_law(make: Make) -> None:
    """Fails if some other law condemns a right drafter of an unusual kind."""
    report = check(lambda: make(""), only=[law.name for law in LAWS if law.name not in ("parity", "floor")])
    assert {f.law: f.message for f in report.findings if f.outcome == "failed"} == {}


def test_work_left_to_propose_may_be_declared() -> None:
    """Fails if `fused_ingest`, which makes maintenance null, is not heard."""
    [finding] = check(lambda: Deferring("says so"), only=["ingest"]).findings
    assert finding.outcome == "skipped"
