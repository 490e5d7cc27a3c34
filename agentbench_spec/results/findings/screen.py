"""The first screen of a report: every finding of one run, in the order in which a reader asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agentbench_spec.results.derived.tasks import task_lines, tasks_by_drafter
from agentbench_spec.results.findings.draft_costs import cost_findings
from agentbench_spec.results.findings.fastest import speed_findings
from agentbench_spec.results.findings.trust import acceptance_finding, excluded_finding, outputs_finding
from agentbench_spec.results.findings.wording import Finding, capital, listed, many
from agentbench_spec.results.metrics import rollout_of, turn_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import Summary, summarise
from agentbench_spec.results.verdict import void_because


def findings(
    rows: Iterable[TurnRow], summary: Summary | None = None, *, include_degenerate: bool = False
) -> list[Finding]:
    """What the rows of one run say, a sentence a finding; of a void run only why, and what was left out.

    summary: of these rows, where it was made before. Raises MeasurementError if the rows were measured under different
    conditions.
    """
    rows = list(rows)
    summary = summary or summarise(rows, include_degenerate=include_degenerate)
    return list(_findings(rows, summary, include_degenerate=include_degenerate))


def _findings(rows: Sequence[TurnRow], summary: Summary, *, include_degenerate: bool) -> Iterator[Finding]:
    if void := void_because(rows, summary):
        yield Finding("Void", f"No figure of this run may be quoted: {'; '.join(void)}.")
    else:
        speed, *more = speed_findings(rows, summary, include_degenerate=include_degenerate)
        costs = list(cost_findings(rows, summary, include_degenerate=include_degenerate))
        yield from (speed, *costs[:1], *more, *costs[1:])
        if (accepted := acceptance_finding(summary)) is not None:
            yield accepted
        if lines := task_lines(tasks_by_drafter(rows)):
            each = "each drafter by its own calls: " if len(lines) > 1 else ""
            yield Finding("Tasks", f"{capital(each + '; '.join(lines))}.")
    yield outputs_finding(rows, summary)
    yield excluded_finding(rows, summary)


def measured_on(rows: Sequence[TurnRow]) -> str:
    """What was decoded, in one line: target, workload, how much of it, and at which contexts."""
    row = rows[0]
    contexts = [own.context_tokens for own in rows if own.status == "ok" and own.context_tokens]
    ends = sorted({min(contexts), max(contexts)}) if contexts else []
    asked = sorted({own.k for own in rows if own.k})
    prompts = f"prompts of {' to '.join(f'{end:,}' for end in ends)} tokens" if ends else ""
    rollouts, turns = {rollout_of(own) for own in rows}, {turn_of(own) for own in rows}
    parts = [
        f"{row.target or 'Target not recorded'} on {listed(sorted({own.workload for own in rows}))}",
        f"{many(len(rollouts), 'rollout')}, {many(len(turns), 'turn')}",
        prompts,
        "greedy" if row.greedy else f"temperature {row.temperature:g}",
        f"k = {', '.join(map(str, asked))}" if asked else "",
        "" if row.backend == "engine" else f"served by {row.backend}",
        f"{row.concurrency} at once" if (row.concurrency or 1) > 1 else "",
    ]
    return ", ".join(filter(None, parts))
