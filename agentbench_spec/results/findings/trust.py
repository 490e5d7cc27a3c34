"""What the figures rest on: how much was accepted, whether outputs were the same, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentbench_spec.results.findings.fastest import methods
from agentbench_spec.results.findings.wording import Finding, listed, many
from agentbench_spec.results.intervals import spread_text
from agentbench_spec.results.metrics import BASELINE, Losslessness
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import DrafterSummary, Summary

REASONS = {
    "degenerate": ("repetition loop", "repetition loops"),
    "oversized": ("prompt longer than the target's window", "prompts longer than the target's window"),
    "draft_limit": ("prompt longer than the drafter's window", "prompts longer than the drafter's window"),
    "no_reference": ("turn without a recorded reply to force", "turns without a recorded reply to force"),
    "not_reached": ("turn that was not reached", "turns that were not reached"),
    "retracted": ("request that the server began again", "requests that the server began again"),
    "invalid": ("answer that cannot be right", "answers that cannot be right"),
    "error": ("failure", "failures"),
}
"""Why turns are in no figure: of one, and of several."""


def acceptance_finding(summary: Summary) -> Finding | None:
    """The longest and the shortest τ; None where no method had a round."""
    known = [own for own in methods(summary) if own.tau.pooled is not None]
    if not known:
        return None
    most, *_, least = sorted(known, key=lambda own: -(own.tau.pooled or 0.0)) * (2 if len(known) == 1 else 1)
    text = f"{most.drafter} commits {_tau(most)} tokens a round (τ)"
    text += f", the most; {least.drafter}, with {_tau(least)}, the fewest" if len(known) > 1 else ""
    return Finding("Acceptance", f"{text}.")


def _tau(own: DrafterSummary) -> str:
    return f"{own.tau.pooled:.2f}{spread_text(own.tau_interval)}"


def outputs_finding(rows: Sequence[TurnRow], summary: Summary) -> Finding:
    """Whether every output was that of plain decoding."""
    return Finding("Outputs", _outputs_text(rows, summary))


def _outputs_text(rows: Sequence[TurnRow], summary: Summary) -> str:
    found = [own.losslessness for own in summary.drafters if own.drafter != BASELINE]
    whole = Losslessness(*(sum(getattr(own, n) for own in found) for n in ("compared", "identical", "ties", "errors")))
    if not whole.compared:
        if not methods(summary):
            return "There was no output to compare with plain decoding's."
        sampled = not all(row.greedy or row.decode_mode == "forced" for row in rows)
        why = "they were drawn at random" if sampled else "plain decoding did not decode the same turns"
        return f"Outputs were not compared with plain decoding's: {why}."
    if whole.identical == whole.compared == 1:
        return "The one output compared is identical to plain decoding's."
    if whole.identical == whole.compared:
        return f"All {many(whole.compared, 'output')} compared are identical to plain decoding's."
    text = f"{whole.identical:,} of {many(whole.compared, 'output')} compared are identical to plain decoding's"
    if whole.ties:
        text += f"; {whole.ties:,} part{'s' if whole.ties == 1 else ''} from them at a near tie of the target's logits"
    if whole.errors:
        text += f"; {whole.errors:,} part{'s' if whole.errors == 1 else ''} from them elsewhere, which is an error"
    return f"{text}."


def excluded_finding(rows: Sequence[TurnRow], summary: Summary) -> Finding:
    """What is in no figure, and why; and how many warnings there are."""
    return Finding("Left out", " ".join(_excluded_parts(summary)))


def _excluded_parts(summary: Summary) -> Iterator[str]:
    totals = {own.turns + sum(own.left_out.values()) for own in summary.drafters}
    turns = max(totals)
    left = {own.drafter: own.left_out for own in summary.drafters if own.left_out}
    kinds = list(left.values())
    if not left:
        whole = f"all {many(turns, 'turn')} of every method count" if turns > 1 else "the turn counts"
        yield f"Nothing: {whole if len(totals) == 1 else 'every turn that was decoded counts'}."
    elif len(left) == len(summary.drafters) and all(kind == kinds[0] for kind in kinds):
        yield f"{sum(kinds[0].values()):,} of {many(turns, 'turn')} of every method: {_reasons(kinds[0])}."
    else:
        yield "; ".join(f"{name}: {_reasons(own)}" for name, own in left.items()) + f" (of {many(turns, 'turn')})."
    if disturbed := {own.drafter: own.disturbed_turns for own in summary.drafters if own.disturbed_turns}:
        each = listed([f"{many(count, 'turn')} of {name}" for name, count in disturbed.items()])
        yield f"Disturbed by other work each time, so that their clocks weigh nothing: {each}."
    if summary.warnings:
        count = len(summary.warnings)
        yield f"{many(count, 'warning')} stand{'s' if count == 1 else ''} below the results."


def _reasons(left_out: dict[str, int]) -> str:
    return listed([f"{count:,} {reason_words(reason, count)}" for reason, count in left_out.items()])


def reason_words(reason: str, count: int = 1) -> str:
    """Why `count` turns were left out, in words; a reason without any stands for itself."""
    return REASONS.get(reason, (reason, reason))[count != 1]
