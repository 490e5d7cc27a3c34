"""Arithmetic on counts and clocks that every server's answers share. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentbench_spec.results.rows import TurnRow


def weighted(histogram: Sequence[int]) -> int:
    """Drafts accepted in all: the sum of i * h[i]."""
    return sum(accepted * steps for accepted, steps in enumerate(histogram))


def deepest(histogram: Sequence[int]) -> int:
    """The most drafts any step accepted."""
    return max((accepted for accepted, steps in enumerate(histogram) if steps), default=0)


def token_gaps_s(chunk_tokens: Sequence[int], chunk_gaps_s: Sequence[float]) -> list[float]:
    """Inter-token latencies: the gap before each chunk, shared evenly by the tokens in it, repeated for each.

    chunk_tokens: new tokens of each chunk, the first chunk among them; chunk_gaps_s: gaps between the chunks.
    """
    pairs = zip(chunk_tokens[1:], chunk_gaps_s, strict=True)
    return [gap / tokens for tokens, gap in pairs for _ in range(tokens)]


def reuse_shortfall(rows: Sequence[TurnRow]) -> Mapping[str, int]:
    """Over the turns whose cached prefix is known: tokens expected, tokens missing, and turns that missed any."""
    known = [
        (row.expected_reused_tokens, row.reused_tokens)
        for row in rows
        if row.expected_reused_tokens is not None and row.reused_tokens is not None
    ]
    missing = [max(expected - found, 0) for expected, found in known]
    return {
        "turns": len(known),
        "expected_tokens": sum(expected for expected, _ in known),
        "missing_tokens": sum(missing),
        "turns_short": sum(n > 0 for n in missing),
    }
