"""What a method's own state costs: its bytes, the time it takes to keep up, and both as the context grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentbench_spec.results.derived.by_context import (
    ByContext,
    draft_kv_per_token,
    draft_kv_share_by_context,
    octave_text,
)
from agentbench_spec.results.derived.states import StateGrowth, state_growths
from agentbench_spec.results.findings.fastest import fastest, methods
from agentbench_spec.results.findings.wording import Finding, apart, bytes_text, listed, percent
from agentbench_spec.results.metrics import counted, pooled_and_macro, rollout_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import DrafterSummary, Summary


def cost_findings(rows: Sequence[TurnRow], summary: Summary, *, include_degenerate: bool) -> Iterator[Finding]:
    """The draft state of the fastest method, in bytes and in time, then those of the others."""
    best = fastest(summary)
    others = [own for own in methods(summary) if own is not best]
    growths = state_growths(rows, include_degenerate=include_degenerate)
    by_context = draft_kv_share_by_context(rows, include_degenerate=include_degenerate)
    kept = counted(rows, include_degenerate=include_degenerate)
    if best is not None:
        states = _states_text(rows, growths, [best.drafter])
        upkeep = _not_timed(rows)
        if best.draft_kv_share is not None:
            upkeep = f"Draft-KV maintenance takes {_upkeep_words(kept, best, by_context)}."
        yield Finding("Its draft state", f"{states} {upkeep}")
    if others:
        yield Finding("Others' state", _states_text(rows, growths, [own.drafter for own in others]))
        yield Finding("Others' upkeep", _others_text(rows, kept, others, by_context))


def _others_text(
    rows: Sequence[TurnRow], kept: Sequence[TurnRow], others: Sequence[DrafterSummary], by_context: ByContext
) -> str:
    """What the method that spends most on its state spends, and the one that spends least."""
    timed = sorted(
        (own for own in others if own.draft_kv_share is not None), key=lambda own: -(own.draft_kv_share or 0.0)
    )
    if not timed:
        return _not_timed(rows)
    most, least = timed[0], timed[-1]
    text = f"Draft-KV maintenance of {most.drafter} takes {_upkeep_words(kept, most, by_context)}"
    if most is not least:
        text += f", the most. That of {least.drafter} takes {_upkeep_words(kept, least, by_context)}, the least"
    unknown = [own.drafter for own in others if own.draft_kv_share is None]
    return f"{text}." + (f" Not known of {listed(unknown)}: fused into proposing, or not timed." if unknown else "")


def _upkeep_words(kept: Sequence[TurnRow], own: DrafterSummary, by_context: ByContext) -> str:
    """ "1.4 % [1.1, 1.9] of its turns (0.92 ms an output token; 1.5 % at 1K-2K tokens, 1.3 % at 2K-4K, ...)"."""
    mine = [row for row in kept if row.drafter == own.drafter]
    per_token = pooled_and_macro((rollout_of(row), *parts) for row in mine if (parts := draft_kv_per_token(row))).pooled
    more = [] if per_token is None else [f"{1e3 * per_token:.2f} ms an output token"]
    if (trend := by_context.trend(own.drafter)) is not None:
        first, last = (f"{percent(end.value)} at {octave_text(end.octave)}" for end in (trend.first, trend.last))
        more.append(f"{first} and {last} tokens of context, {apart(trend)}")
    else:
        more += [f"all at {octave_text(end.octave)} tokens" for end in by_context.figures if end.drafter == own.drafter]
    share = percent(own.draft_kv_share or 0.0, own.draft_kv_share_interval)
    return f"{share} of its turns" + (f" ({'; '.join(more)})" if more else "")


def _not_timed(rows: Sequence[TurnRow]) -> str:
    if any(row.backend != "engine" for row in rows):
        return "Draft-KV maintenance is not known: a server does not tell the time of its phases."
    return "Draft-KV maintenance is not known: it is fused into proposing, or a part of it was not timed."


def _states_text(rows: Sequence[TurnRow], growths: Sequence[StateGrowth], names: Sequence[str]) -> str:
    """The states of these methods, the smallest first."""
    known = sorted((own for own in growths if own.drafter in names), key=lambda own: own.last_bytes)
    unknown = [name for name in names if name not in {own.drafter for own in known}]
    told = [f"{'; '.join(_listed_states(known))}."] if known else []
    if unknown:
        served = any(row.backend != "engine" for row in rows)
        why = "a server does not tell it" if served else "no turn recorded it"
        told.append(f"The draft state of {listed(unknown)} is not known: {why}.")
    return " ".join(told)


def _listed_states(known: Sequence[StateGrowth]) -> Iterator[str]:
    """A clause a method; the longest text is named once, in the last of those that go on growing to it."""
    growing = [own for own in known if _grows(own)]
    longest = [own.longest for own in growing]
    once = bool(growing) and max(longest) < _ALIKE * min(longest)
    for own in known:
        named = _grows(own) and (own is growing[-1] or not once)
        yield _state_words(own) + (f" at {own.longest:,} tokens" if named else "")


_ALIKE = 1.01
"""Texts of which the longest is not this many times the shortest are named once: outputs differ by a few tokens."""


def _grows(own: StateGrowth) -> bool:
    return own.constant is False and own.full_from is None


def _state_words(own: StateGrowth) -> str:
    name, size, longest = own.drafter, bytes_text(own.last_bytes), f"{own.longest:,} tokens"
    if own.constant and not own.last_bytes:
        return f"{name} keeps no draft KV: its state is 0 bytes at any context, {own.shortest:,} to {longest}"
    if own.constant:
        return f"{name}'s state is {own.last_bytes:,} bytes at any context, {own.shortest:,} to {longest}"
    if own.bytes_per_token is None:
        return f"{name}'s state is {size} at {longest}; contexts are too alike to tell whether it grows"
    if own.full_from is not None:
        return f"{name}'s state is full at {size}, from {own.full_from:,} tokens on"
    return f"{name}'s state grows by {own.bytes_per_token:,.0f} bytes a token, to {size}"
