"""Laws about the headline columns: what a drafter's upkeep costs must be seen in `observe` and in `state_bytes`.

They count work and state rather than believe the drafter: operations and Python steps of `propose`, and the elements
of its tensors that were written and are read, found by walking over all it can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentbench_spec.conformance.bench import WHOLE, Bench
from agentbench_spec.conformance.drive import Driver, NotApplicable
from agentbench_spec.conformance.held import Held, held_by
from agentbench_spec.conformance.spy import Effort, Reads, effort

_KEPT_ELSEWHERE_BYTES = 8
"""A position's token id, which every engine holds anyway: a history-free drafter may note it to go back."""
_LEAST_SHARE = 0.6
"""Of the bytes that were seen to grow, at least this share must be in `state_bytes` (which may be an estimate)."""
_STEADY = 0.6
"""State grows with the text if its growth does not slow below this share; a full ring or window stops."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Two proposals for one text, and how many positions the last span before them told."""

    told: int
    first: Effort
    again: Effort
    stored: int
    """Entries of host memory that the first proposal added."""


def ingest_in_observe(bench: Bench) -> str:
    """`propose` does no work that `observe` left undone: its effort follows from the text, not from what came last."""
    driver, k = bench.rehearsal(), bench.k
    if driver.drafter.spec.fused_ingest:
        raise NotApplicable("the spec says fused_ingest, so maintenance is reported as null")
    length = min(240, driver.target.capacity - 2 * k - 2)
    text = bench.text(length, seed=3)
    driver.at("a first text of the same length")
    driver.prefill(0, bench.text(length, seed=4), WHOLE)
    driver.propose(k)
    driver.round(k, [1])
    asked = [_told(driver, text, told, k) for told in (length - 8, 8, 2)]
    few = asked[-1]
    for each in asked:
        driver.at(f"text of {length} tokens, the last {each.told} positions in one span")
        _no_more(driver, each, each.first, few.first, each.told - few.told, f"after a span of {few.told} positions")
        _no_more(driver, each, each.first, each.again, 4 * length, "when asked a second time")
        if each.stored - few.stored > each.told // 2:
            raise driver.broken(f"propose stored {each.stored} entries, and {few.stored} after a span of {few.told}")
    return f"propose does {few.first} after spans of {', '.join(str(each.told) for each in asked)} positions alike"


def _told(driver: Driver, text: Sequence[int], told: int, k: int) -> _Asked:
    """Tell `text` with its last `told` positions in one span, having been asked for a proposal before that."""
    driver.at(f"before a span of {told} positions")
    driver.rewind(0, 0)
    kept = len(text) - told
    driver.prefill(0, text[: kept + 1], WHOLE)  # the driver tells the last common position again
    driver.propose(k)
    driver.at(f"after a span of {told} positions")
    driver.prefill(0, text, WHOLE)
    before = _host_size(held_by(driver.drafter))
    with effort() as first:
        driver.propose(k)
    stored = _host_size(held_by(driver.drafter)) - before
    driver.propose(min(k, 1))
    with effort() as again:
        driver.propose(k)
    return _Asked(told, first, again, stored)


def _host_size(held: Held) -> int:
    return held.entries + sum(each.numel() for each in held.arrays)


def _no_more(driver: Driver, each: _Asked, one: Effort, other: Effort, slack: int, when: str) -> None:
    """Broken if one effort is above another by more than `slack` allows: 4 elements and 2 steps of Python each."""
    elements = one.elements - other.elements > 4 * slack + other.elements // 1000
    steps = one.steps - other.steps > 2 * slack + other.steps // 50 + 200
    if elements or steps:
        raise driver.broken(
            f"the first propose after observing {each.told} positions does {one}, but {other} {when}, at the same "
            "text: upkeep is left to propose, where no column shows it as maintenance. Do it in observe, or say "
            "fused_ingest in the spec"
        )


@dataclass(frozen=True, slots=True)
class _Size:
    """State of row 0 at one length of text."""

    tokens: int
    written_bytes: int
    """Of tensors and arrays: elements that are not what they were before the first span."""
    live_bytes: int
    """The part of them that a round reads."""
    entries: int
    told_bytes: int


def growth_is_told(bench: Bench) -> str:
    """State that grows with the text is in `state_bytes`, and a history-free drafter has none."""
    driver = bench.rehearsal()
    spec, most = driver.drafter.spec, driver.target.capacity - 3 * bench.k - 3
    text = bench.text(most, seed=5)
    driver.at("warm-up, then emptied")
    driver.prefill(0, bench.text(most, seed=6), WHOLE)
    driver.round(bench.k, [1])
    driver.empty(0)
    empty = held_by(driver.drafter).copied()
    sizes = [_size(bench, driver, text[:length], empty) for length in (most // 4, most // 2, most)]
    driver.at("text of " + ", ".join(f"{size.tokens}" for size in sizes) + " tokens")
    if spec.history_free:
        _history_free(driver, sizes)
    live, told = _growth([s.live_bytes for s in sizes]), sizes[-1].told_bytes - sizes[1].told_bytes
    entries = 8 * _growth([s.entries for s in sizes])
    if told < _LEAST_SHARE * (live + entries):
        raise driver.broken(
            f"state_bytes says {[s.told_bytes for s in sizes]}, but what was written since the row was empty and is "
            f"read in a round grew as {[s.live_bytes for s in sizes]} bytes of tensors and "
            f"{[s.entries for s in sizes]} entries of lists and dicts. Count all of it, buffers allocated ahead, too"
        )
    return f"state_bytes {told}, of tensors {live} and of lists {entries} more from {sizes[1].tokens} to {most} tokens"


def _history_free(driver: Driver, sizes: Sequence[_Size]) -> None:
    tokens = sizes[-1].tokens - sizes[1].tokens
    series = {
        "bytes of tensors read in a round": [s.live_bytes for s in sizes],
        "entries of lists and dicts": [s.entries for s in sizes],
    }
    for what, values in series.items():
        if _growth(values) > 0:
            raise driver.broken(f"spec says history_free, but the {what} grew with the text: {values}")
    written = [s.written_bytes for s in sizes]
    if _growth(written) > _KEPT_ELSEWHERE_BYTES * tokens + 64:
        raise driver.broken(
            f"spec says history_free, but the bytes written to its tensors grew with the text: {written}; "
            f"it may keep token ids ({_KEPT_ELSEWHERE_BYTES} bytes a position) to go back, and nothing else"
        )


def _growth(values: Sequence[int]) -> int:
    """Growth from the second to the third of values at lengths n, 2n, 4n; 0 where it does not go on."""
    early, late = values[1] - values[0], values[2] - values[1]
    return late if early > 0 and late >= _STEADY * 2 * early else 0


def _size(bench: Bench, driver: Driver, text: Sequence[int], empty: Held) -> _Size:
    """Bring row 0 to the end of `text`, half in one span and half in small ones, and count what a round reads."""
    driver.at(f"text of {len(text)} tokens")
    driver.prefill(0, text[: len(text) // 2], WHOLE)
    driver.prefill(0, text, 8)
    told = driver.state_bytes(0)
    held = held_by(driver.drafter)
    written, entries = held.changed(empty), held.entries
    arrays = held.arrays_changed(empty) * 4
    with Reads(held.tensors) as reads:
        driver.round(bench.k, [1])
    sizes = {at: flat.element_size() for at, flat in held.tensors.items()}
    live = sum(int((written[at] & reads.read[at]).sum()) * sizes[at] for at in written)
    total = sum(int(mask.sum()) * sizes[at] for at, mask in written.items())
    return _Size(len(text), total + arrays, live + arrays, entries, told)
