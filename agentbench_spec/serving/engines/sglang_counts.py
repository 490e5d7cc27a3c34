"""Acceptance of one request, read from what a server says about it, and the identities these numbers must obey.

Notation: N completion tokens, v verify steps, c correct drafts, h[i] steps that accepted i drafts, V draft tokens of
one verify step, the root included. Pure functions; nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.serving.counts import deepest, weighted

_VERIFY = ("spec_verify_ct",)
_CORRECT = ("spec_num_correct_drafts", "spec_accept_token_num", "spec_accepted_tokens")
_PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num", "spec_draft_tokens")
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_LENGTH = ("spec_accept_length",)


@dataclass(frozen=True, slots=True)
class SpecCounts:
    """What one request did under speculation; None where the server did not say."""

    verify_steps: int
    correct: int | None = None
    proposed: int | None = None
    histogram: tuple[int, ...] | None = None
    """Element i: verify steps that accepted i drafts."""
    server_accept_length: float | None = None
    """The server's own figure. SGLang's is N / v: the prefill token is in it."""

    def trimmed(self, completion_tokens: int) -> int | None:
        """Tokens that the last step accepted beyond the stop point: 1 + v + c - N."""
        return None if self.correct is None else 1 + self.verify_steps + self.correct - completion_tokens

    def with_prefills(self, again: int) -> SpecCounts:
        """The counts with `again` steps more that had no draft: each prefill of a retracted request gives a token."""
        histogram = self.histogram
        if histogram is not None:
            histogram = (histogram[0] + again, *histogram[1:]) if histogram else (again,)
        return replace(self, verify_steps=self.verify_steps + again, histogram=histogram)

    @property
    def tau(self) -> float | None:
        """1 + c / v: the bonus token included, the prefill token not."""
        return None if self.correct is None else 1 + self.correct / self.verify_steps


def spec_counts(details: Mapping[str, Any]) -> SpecCounts | None:
    """Counts in `meta_info` or `spec_tokens_details`, under their new or old names.

    None if no verify step ran: the keys are absent without speculation and for answers of one token, or null.
    """
    steps = _first(details, _VERIFY)
    if not steps:
        return None
    histogram = _first(details, _HISTOGRAM)
    return SpecCounts(
        verify_steps=int(steps),
        correct=_first(details, _CORRECT),
        proposed=_first(details, _PROPOSED),
        histogram=None if histogram is None else tuple(histogram),
        server_accept_length=_first(details, _LENGTH),
    )


def _first(details: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((details[name] for name in names if details.get(name) is not None), None)


def broken_identities(
    counts: SpecCounts, completion_tokens: int, width: int | None = None, *, retractions: int = 0
) -> list[str]:
    """Each identity that `counts` breaks, in words with its numbers; empty if all hold.

    width: V, draft tokens of a verify step with its root; None: unknown, or it varies from step to step. retractions:
    times the request was begun anew; each prefill gives a token that no step counts.
    """
    return [*_broken_sums(counts, width), *_broken_emission(counts, completion_tokens, width, 1 + retractions)]


def _broken_sums(counts: SpecCounts, width: int | None) -> Iterator[str]:
    steps, correct, proposed, histogram = counts.verify_steps, counts.correct, counts.proposed, counts.histogram
    if histogram is not None and sum(histogram) != steps:
        yield f"the histogram has {sum(histogram)} steps, verify steps are {steps}"
    if histogram is not None and correct is not None and (weight := weighted(histogram)) != correct:
        yield f"the histogram accepts {weight} drafts, correct drafts are {correct}"
    if proposed is not None and correct is not None and correct > proposed:
        yield f"{correct} correct drafts exceed {proposed} proposed ones"
    if width is not None and proposed is not None and proposed != steps * (width - 1):
        yield f"proposed drafts {proposed} are not {steps} steps x ({width} - 1)"


def _broken_emission(counts: SpecCounts, completion_tokens: int, width: int | None, prefills: int) -> Iterator[str]:
    steps = counts.verify_steps
    trimmed = counts.trimmed(completion_tokens)  # if only the first prefill gave a token, else it is more
    if trimmed is not None and trimmed < 1 - prefills:
        yield f"{completion_tokens} tokens exceed {prefills} + {steps} steps + {counts.correct} correct drafts"
    if trimmed is not None and counts.histogram is not None and trimmed > deepest(counts.histogram):
        yield f"{trimmed} tokens were trimmed, the deepest step accepted {deepest(counts.histogram)}"
    if width is not None and (stepped := completion_tokens - prefills) > steps * width:
        yield f"{stepped} tokens in {steps} steps are more than {width} a step"
    if width is not None and counts.correct is not None and counts.correct > steps * (width - 1):
        yield f"{counts.correct} correct drafts in {steps} steps are more than {width - 1} a step"


def expected_reuse(before: Sequence[int], prompt: Sequence[int], *, page_size: int = 1, pair_keys: bool = False) -> int:
    """Prompt tokens that a radix cache should find after it served `before`, an earlier prompt with its answer.

    The last token's KV was never written, and at least one token is always run again. With pair_keys (EAGLE: the tree
    is keyed by token pairs) one token less is found. Whole pages only.
    """
    found = min(common_prefix(before, prompt), len(before) - 1, len(prompt) - 1) - pair_keys
    return max(found, 0) // page_size * page_size
