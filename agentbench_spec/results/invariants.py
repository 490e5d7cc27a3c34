"""What must hold in every row; a run that breaks one of these measured something other than it says."""

from __future__ import annotations

from collections.abc import Iterable

from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.rows import CLOCK_FIELDS, COLUMNS, TurnRow

_WHOLE = tuple(name for name, kind in COLUMNS.items() if kind in (int, list[int]))
_LARGEST = 2**63 - 1
"""What a column of whole numbers holds."""
_PHASES = ("draft_s", "verify_s", "accept_s", "draft_append_s", "other_s")


def check_row(row: TurnRow) -> None:
    """Raises MeasurementError naming every invariant of the row schema that `row` breaks."""
    broken = list(_broken_sizes(row)) or [*_broken_counts(row), *_broken_clocks(row)]
    if broken:
        raise MeasurementError(f"{row.rollout} turn {row.turn} {row.drafter}: {'; '.join(broken)}")


def _broken_sizes(row: TurnRow) -> Iterable[str]:
    for name in _WHOLE:
        value = getattr(row, name)
        numbers = value if isinstance(value, list) else () if value is None else (value,)
        if numbers and min(numbers) < 0:
            yield f"{name} holds {min(numbers)}, less than none"
        if numbers and max(numbers) > _LARGEST:
            yield f"{name} holds a number over 64 bits"


def _broken_counts(row: TurnRow) -> Iterable[str]:
    rounds, emitted, raw, matched, proposed = row.rounds, row.emitted, row.emitted_raw, row.matched, row.proposed
    if row.status == "error" and not row.error:
        yield "status is error but no error is given"
    if rounds is not None and matched is not None and raw is not None and raw != matched + rounds:
        yield f"emitted_raw {raw} is not matched {matched} + rounds {rounds}"
    if emitted is not None and raw is not None and emitted > raw:
        yield f"emitted {emitted} exceeds emitted_raw {raw}"
    if emitted is not None and row.output_tokens is not None and row.output_tokens != emitted + 1:
        yield f"output_tokens {row.output_tokens} is not the prefill token + emitted {emitted}"
    if matched is not None and proposed is not None and matched > proposed:
        yield f"matched {matched} exceeds proposed {proposed}"
    if rounds is not None and proposed is not None and proposed > row.k * rounds:
        yield f"proposed {proposed} exceeds k {row.k} x rounds {rounds}"
    if rounds and emitted is not None and emitted > rounds * (row.k + 1):
        yield (
            f"{emitted} tokens in {rounds} rounds is more than k + 1 = {row.k + 1} a round; chunks were counted as "
            "rounds, so the row is invalid"
        )
    for name, lengths, total in (
        ("matched", row.matched_lengths, matched),
        ("proposed", row.proposed_lengths, proposed),
    ):
        if lengths is not None and (len(lengths) != rounds or sum(lengths) != total):
            yield f"{name}_lengths do not add up to {name} {total} in {rounds} rounds"
    asked = row.asked_lengths
    if asked is not None and (
        len(asked) != rounds or any(n > k for n, k in zip(row.proposed_lengths or (), asked, strict=False))
    ):
        yield f"asked_lengths {asked} are not those of {rounds} rounds that proposed {row.proposed_lengths}"
    if row.scope == "server" and any(v is not None for v in (row.tau, row.tau_raw, rounds, matched, proposed)):
        yield "scope is server: acceptance that is known only as a total of the server has no place in a turn's row"
    if row.trimmed is not None and raw is not None and emitted is not None and row.trimmed != raw - emitted:
        yield f"trimmed {row.trimmed} is not emitted_raw {raw} - emitted {emitted}"
    if row.matched_histogram is not None and sum(row.matched_histogram) != rounds:
        yield f"matched_histogram counts {sum(row.matched_histogram)} rounds, not {rounds}"
    for name, tau, tokens in (("tau", row.tau, emitted), ("tau_raw", row.tau_raw, raw)):
        if tau is not None and (not rounds or tokens is None or abs(tau - tokens / rounds) > 1e-9 * tau):
            yield f"{name} {tau} is not {tokens} tokens / {rounds} rounds"


def _broken_clocks(row: TurnRow) -> Iterable[str]:
    for name in sorted(CLOCK_FIELDS - {"other_s", "machine"}):
        value = getattr(row, name)
        if any(number < 0 for number in (value if isinstance(value, list) else [value]) if number is not None):
            yield f"{name} {value} is negative"
    phases = [getattr(row, name) for name in _PHASES]
    total = row.attributed_decode_s
    if total is not None and None not in phases and abs(sum(phases) - total) > 1e-6 + 1e-6 * total:
        yield f"phases sum to {sum(phases)} s, attributed_decode_s is {total} s"
