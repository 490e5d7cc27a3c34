"""Acceptance of one request as vLLM reports it, and the decode steps that its report leaves out.

Notation: N completion tokens, v reported steps, c accepted drafts, d drafted, h[i] steps that accepted i drafts, a and
p accepted and drafted in each step. vLLM reports only steps that had a draft, so N = 1 + v + c + e + r - z - T with

    e  decode steps without a draft: a look-up that found nothing, or no room in the window
    r  prefills begun anew after a preemption, each of which emits a token
    z  1 if the first reported step is padding: the whole prompt but its last token was cached
    T  accepted tokens beyond the stop: vLLM counts before it trims

Source: vLLM 0.32.0, v1/core/sched/scheduler.py and v1/metrics/stats.py. Pure functions; nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agentbench_spec.serving.counts import deepest, weighted


@dataclass(frozen=True, slots=True)
class Report:
    """`metrics.speculative_decoding` of one answer."""

    steps: int
    accepted: int
    drafted: int
    width: int
    """Most drafts of a step."""
    histogram: tuple[int, ...] | None = None
    mean: float | None = None
    """The server's own mean: 1 + c / v, which leaves steps without a draft out."""
    per_step_accepted: tuple[int, ...] | None = None
    per_step_drafted: tuple[int, ...] | None = None

    @property
    def detailed(self) -> bool:
        """True if each step is told, or there is none."""
        return self.per_step_accepted is not None or not self.steps


def read_report(details: Mapping[str, Any]) -> Report | None:
    """The report in an answer's details; None where it is absent, null, or not of the form that 0.32 has."""
    told = details.get("speculative_decoding")
    if not isinstance(told, Mapping):
        return None
    counts = _integers([told.get(name) for name in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")])
    if counts is None:
        return None
    steps, accepted, drafted = counts
    histogram = _integers(told.get("acceptance_histogram"))
    width = told.get("num_spec_tokens")
    return Report(
        steps,
        accepted,
        drafted,
        width=width if isinstance(width, int) else max(len(histogram or ()) - 1, 0),
        histogram=histogram,
        mean=told.get("mean_acceptance_length"),
        per_step_accepted=_integers(told.get("per_step_accepted")),
        per_step_drafted=_integers(told.get("per_step_drafted")),
    )


def _integers(values: Any) -> tuple[int, ...] | None:
    whole = isinstance(values, list) and all(isinstance(value, int) for value in values)
    return tuple(values) if whole else None


def broken_sums(report: Report) -> Iterator[str]:
    """Each identity within the report that it breaks, in words with its numbers."""
    v, c, d, h = report.steps, report.accepted, report.drafted, report.histogram
    a, p = report.per_step_accepted, report.per_step_drafted
    if h is not None and sum(h) != v:
        yield f"the histogram has {sum(h)} steps, num_spec_steps is {v}"
    if h is not None and weighted(h) != c:
        yield f"the histogram accepts {weighted(h)} drafts, num_accepted_draft_tokens is {c}"
    if a is not None and (len(a), sum(a)) != (v, c):
        yield f"per_step_accepted has {len(a)} steps and {sum(a)} drafts, the totals are {v} and {c}"
    if p is not None and (len(p), sum(p)) != (v, d):
        yield f"per_step_drafted has {len(p)} steps and {sum(p)} drafts, the totals are {v} and {d}"
    if a is not None and p is not None and any(one > other for one, other in zip(a, p, strict=False)):
        yield "a step accepted more drafts than it had"
    if c > d:
        yield f"{c} accepted drafts exceed {d} drafted ones"
    if v and report.mean is not None and abs(report.mean - (1 + c / v)) > 1e-6:
        yield f"mean_acceptance_length {report.mean} is not 1 + {c} / {v}"


@dataclass(frozen=True, slots=True)
class Decoding:
    """What the report and the answer's length say together."""

    padded: int
    """z."""
    unreported: int
    """e + r: steps that emitted one token each and are in no report."""
    trimmed: int
    """T."""


def solve(
    report: Report, tokens: int, *, padded: bool | None, always_drafts: bool, chunks: Sequence[int] | None
) -> Decoding | str | None:
    """What the report leaves out; in words, the identity that no choice of it meets; None if several choices do.

    tokens: N. padded: whether the first step is padding; None: unknown. always_drafts: a step without a draft is not
    expected. chunks: ids in each event of the stream, the first token's own first.
    """
    if padded is None and report.steps and _may_be_padding(report):
        return None
    z = int(bool(padded and report.steps))
    if z and not _may_be_padding(report):
        return "the prompt was cached but for its last token, and the first step is not the padded one that follows it"
    excess = tokens - 1 - (report.steps - z) - report.accepted  # e + r - T
    most = _last_accepted(report, z)
    if -excess > most:
        return f"{-excess} tokens were trimmed, the last step accepted {most}"
    choices = range(max(0, -excess), most + 1)
    if always_drafts or len(choices) == 1:
        return Decoding(z, excess + choices[0], choices[0])
    seen = [cut for cut in choices if chunks and _explained(report, z, excess + cut, cut, chunks)]
    return Decoding(z, excess + seen[0], seen[0]) if len(seen) == 1 else None


def _may_be_padding(report: Report) -> bool:
    a, p = report.per_step_accepted, report.per_step_drafted
    return (not a or a[0] == 0) and (not p or p[0] == report.width)


def _last_accepted(report: Report, padded: int) -> int:
    """The most tokens that can have been trimmed: those of the last step; without arrays, of the deepest one."""
    if report.steps <= padded:
        return 0
    if report.per_step_accepted:
        return report.per_step_accepted[-1]
    return report.width if report.histogram is None else deepest(report.histogram)


def _explained(report: Report, padded: int, unreported: int, trimmed: int, chunks: Sequence[int]) -> bool:
    """True if every event after the first is one step: as many, and of the sizes that the steps emitted, in order.

    Steps may arrive merged, so this can fail for the right choice; another one is then not taken in its place unless
    its steps are as many as the events.
    """
    accepted = report.per_step_accepted
    steps = report.steps - padded + unreported
    if accepted is None or not chunks or chunks[0] != 1 or len(chunks) - 1 != steps:
        return False
    emitted = [matched + 1 for matched in accepted[padded:]]
    if trimmed:
        emitted[-1] -= trimmed
        if chunks[-1] != emitted[-1]:
            return False
    seen, told = _runs(chunks[1:]), _runs(emitted)
    return [big for big, _ in seen] == [big for big, _ in told] and all(
        ones >= least for (_, ones), (_, least) in zip(seen, told, strict=True)
    )


def _runs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Each size above 1 with the ones before it, and 0 with the ones at the end: a step without a draft is a one."""
    runs, ones = [], 0
    for one, group in groupby(sizes, lambda size: size == 1):
        if one:
            ones = len(list(group))
            continue
        for size in group:
            runs.append((size, ones))
            ones = 0
    return [*runs, (0, ones)]
