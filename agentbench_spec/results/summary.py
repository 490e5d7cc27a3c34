"""What a run says on its last screen: one line a drafter, and everything that was left out of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.table import Table
from rich.text import Text

from agentbench_spec.results import costs, metrics
from agentbench_spec.results.clock_checks import clock_warnings
from agentbench_spec.results.derived.engines import by_engine, refuse_unlike_engines, unlike_turns
from agentbench_spec.results.intervals import Interval, share_interval, speedup_intervals, spread_text, tau_interval
from agentbench_spec.results.metrics import BASELINE, PLAIN, Losslessness, Mean
from agentbench_spec.results.rows import TurnRow

Share = tuple[int, int]
"""(turns for which it holds, turns in which it was judged)."""


@dataclass(frozen=True, slots=True)
class CallShares:
    """Turns by what is said of their calls, repetition loops included; the fields are columns of the rows."""

    call_valid: Share
    call_known: Share
    call_args_valid: Share
    call_same: Share


def call_shares(rows: Iterable[TurnRow]) -> CallShares | None:
    """The shares over turns with status ok; None if not one call was judged."""
    own = [row for row in rows if row.status == "ok"]
    names = [part.name for part in fields(CallShares)]
    judged = {name: [value for row in own if (value := getattr(row, name)) is not None] for name in names}
    return CallShares(**{n: (sum(v), len(v)) for n, v in judged.items()}) if any(judged.values()) else None


@dataclass(frozen=True, slots=True)
class DrafterSummary:
    """The figures of one drafter over one run; None where nothing was measured."""

    drafter: str
    k: int
    rollouts: int
    turns: int
    """Turns counted in the figures."""
    zero_round_turns: int
    """Of these, turns that ended on their prefill token: they have no τ and weigh nothing in it."""
    left_out: dict[str, int]
    """Turns not counted, by reason: a status, or `degenerate`."""
    degenerate_turns: int
    """Turns whose output is a repetition loop, counted or not."""
    tau: Mean
    tau_interval: Interval | None
    tau_macro_interval: Interval | None
    tau_raw: Mean
    tau_raw_interval: Interval | None
    tau_raw_macro_interval: Interval | None
    speedup: costs.Speedup
    speedup_interval: Interval | None
    speedup_macro_interval: Interval | None
    speedup_e2e_interval: Interval | None
    decode_s_per_token: float | None
    draft_share: float | None
    draft_share_interval: Interval | None
    draft_kv_share: float | None
    draft_kv_share_interval: Interval | None
    state_bytes_max: int | None
    state_bytes_per_token: float | None
    disturbed_turns: int
    """Of the counted turns, those whose clocks weigh nothing: something else disturbed them in every attempt."""
    losslessness: Losslessness
    """Over all turns with status ok, loops included."""
    acceptance_by_position: list[tuple[float, float | None]]
    """(unconditional, conditional) for draft position 1, 2, ..."""
    accepted_histogram: list[int]
    calls: CallShares | None
    """Tool calls in the outputs; None: not one was judged."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All drafters of a run and the reasons to distrust its figures."""

    drafters: list[DrafterSummary]
    warnings: list[str]


def summarise(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> Summary:
    """The summary of `rows`; of several engines, a line for each drafter of each, named "ngram (vllm 0.32.0)".

    Raises MeasurementError if they were measured under different conditions.
    """
    rows = list(rows)
    if len(engines := by_engine(rows)) > 1:
        return _side_by_side(engines, include_degenerate=include_degenerate)
    metrics.one_condition(rows)
    drafters = [
        _summarise_drafter(rows, own, include_degenerate=include_degenerate)
        for own in metrics.by_drafter(rows).values()
    ]
    warnings = [*metrics.warnings(rows, include_degenerate=include_degenerate), *clock_warnings(rows)]
    return Summary(drafters, warnings)


def _side_by_side(engines: dict[str, list[TurnRow]], *, include_degenerate: bool) -> Summary:
    refuse_unlike_engines(engines)
    parts = {label: summarise(rows, include_degenerate=include_degenerate) for label, rows in engines.items()}
    drafters = [
        replace(own, drafter=f"{own.drafter} ({label})") for label, part in parts.items() for own in part.drafters
    ]
    warnings = [f"{label}: {line}" for label, part in parts.items() for line in part.warnings]
    return Summary(drafters, [*unlike_turns(engines, include_degenerate=include_degenerate), *warnings])


def _summarise_drafter(rows: Sequence[TurnRow], own: Sequence[TurnRow], *, include_degenerate: bool) -> DrafterSummary:
    drafter = own[0].drafter
    kept = metrics.counted(own, include_degenerate=include_degenerate)
    pairs = costs.paired(rows, drafter, include_degenerate=include_degenerate)
    intervals = speedup_intervals([] if drafter == BASELINE else pairs)
    drafting = [] if drafter in PLAIN else kept  # plain decoding has no draft share
    return DrafterSummary(
        drafter=drafter,
        k=own[0].k,
        rollouts=len({metrics.rollout_of(row) for row in kept}),
        turns=len(kept),
        zero_round_turns=sum(row.rounds == 0 for row in kept),
        left_out=metrics.left_out(own, include_degenerate=include_degenerate),
        degenerate_turns=sum(row.status == "ok" and metrics.looped(row) for row in own),
        tau=metrics.tau(kept),
        tau_interval=tau_interval(kept),
        tau_macro_interval=tau_interval(kept, macro=True),
        tau_raw=metrics.tau_raw(kept),
        tau_raw_interval=tau_interval(kept, raw=True),
        tau_raw_macro_interval=tau_interval(kept, raw=True, macro=True),
        speedup=costs.speedup(pairs),
        speedup_interval=intervals.pooled,
        speedup_macro_interval=intervals.macro,
        speedup_e2e_interval=intervals.e2e,
        decode_s_per_token=costs.decode_s_per_token(kept),
        draft_share=costs.draft_share(drafting),
        draft_share_interval=share_interval(drafting, costs.draft_parts),
        draft_kv_share=costs.draft_kv_share(drafting),
        draft_kv_share_interval=share_interval(drafting, costs.draft_kv_parts),
        state_bytes_max=costs.state_bytes_max(kept),
        state_bytes_per_token=costs.state_bytes_per_token(kept),
        disturbed_turns=sum(bool(row.disturbed) for row in kept),
        losslessness=metrics.losslessness(row for row in own if row.status == "ok"),
        acceptance_by_position=metrics.acceptance_by_position(kept),
        accepted_histogram=metrics.accepted_histogram(kept),
        calls=call_shares(own),
    )


def summary_dict(summary: Summary) -> dict[str, Any]:
    """The summary as JSON-able values: the last line `run` prints, and `summary.json`."""
    return asdict(summary)


_HEADINGS = ("drafter", "τ", "τ raw", "speed-up [95 %]", "draft", "draft-KV", "identical", "turns")


_OPTIONAL = ("draft-KV", "draft", "τ raw", "turns")
"""Columns that a narrow screen goes without, the first one first."""
_LEAST_NAME = 12
"""Cells a drafter's name is given before a column is dropped."""


class _Table:
    """The table at the width of the screen: optional columns go first, then the middle of long names."""

    def __init__(self, lines: Sequence[tuple[str, ...]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        shown = list(range(len(_HEADINGS)))
        widths = [max(map(cell_len, column)) for column in zip(_HEADINGS, *self._lines, strict=True)]
        room = options.max_width
        for heading in _OPTIONAL:
            if room - sum(widths[i] + 2 for i in shown[1:]) - 1 >= min(widths[0], _LEAST_NAME):
                break
            shown.remove(_HEADINGS.index(heading))
        names = shortened([line[0] for line in self._lines], room - sum(widths[i] + 2 for i in shown[1:]) - 1)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for i in shown:
            table.add_column(_HEADINGS[i], justify="right" if i else "left", no_wrap=True)
        for name, line in zip(names, self._lines, strict=True):
            table.add_row(Text(name), *(Text(line[i]) for i in shown[1:]))
        yield table


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Names within `width` cells (at least 8), the middle of long ones left out; those that differ stay different."""
    width, unlike = max(width, 8), list(dict.fromkeys(names))
    short = [_without_middle(name, width) for name in unlike]
    shown = {
        name: f"{_without_middle(name, width - len(f'#{i}'))}#{i}" if short.count(text) > 1 else text
        for i, (name, text) in enumerate(zip(unlike, short, strict=True), 1)
    }
    return [shown[name] for name in names]


def _without_middle(name: str, width: int) -> str:
    if cell_len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def render(summary: Summary) -> Group:
    """The table on screen, with what was left out and every warning below it."""
    return Group(_Table([_cells(own) for own in summary.drafters]), *(Text(note) for note in notes(summary)))


def _cells(own: DrafterSummary) -> tuple[str, ...]:
    return (
        own.drafter,
        _number(own.tau.pooled),
        _number(own.tau_raw.pooled),
        _speedup_cell(own),
        _share(own.draft_share),
        _share(own.draft_kv_share),
        _identical_cell(own.losslessness),
        turns_cell(own),
    )


def _speedup_cell(own: DrafterSummary) -> str:
    return _number(own.speedup.pooled) + spread_text(own.speedup_interval)


def turns_cell(own: DrafterSummary) -> str:
    """ "34 of 36" where turns were left out, else "36"."""
    missing = sum(own.left_out.values())
    return f"{own.turns} of {own.turns + missing}" if missing else str(own.turns)


def _identical_cell(found: Losslessness) -> str:
    if not found.compared:
        return "-"
    if found.errors:
        return f"{found.identical}/{found.compared} ({_count(found.errors, 'ERROR')})"
    return f"{found.identical}/{found.compared}" + (f" ({_count(found.ties, 'tie')})" if found.ties else "")


def notes(summary: Summary) -> list[str]:
    """The lines below the table: turns left out, turns without a round, thin intervals, warnings."""
    lines = _shared([(own.drafter, note) for own in summary.drafters for note in _drafter_notes(own)])
    thin = {own.speedup_interval.note for own in summary.drafters if own.speedup_interval and own.speedup_interval.note}
    lines += [f"intervals: {note}" for note in sorted(thin)]
    return lines + [f"warning: {text}" for text in summary.warnings]


def _shared(notes: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each different note, with all the drafters it is about."""
    about: dict[str, list[str]] = {}
    for name, note in notes:
        about.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in about.items()]


def _drafter_notes(own: DrafterSummary) -> Iterator[str]:
    for reason, count in own.left_out.items():
        yield f"{_count(count, 'turn')} left out: {reason}"
    if own.disturbed_turns:
        yield f"clocks of {_count(own.disturbed_turns, 'turn')} left out: disturbed in every attempt"
    if own.zero_round_turns:
        yield f"{_count(own.zero_round_turns, 'turn')} ended on the prefill token, without a τ"
    if own.degenerate_turns and "degenerate" not in own.left_out:
        yield f"{_count(own.degenerate_turns, 'repetition loop')} counted, as asked for"
    if own.losslessness.errors:
        yield (
            f"NOT LOSSLESS: {_count(own.losslessness.errors, 'turn')} differing from the baseline beyond a near tie, "
            f"{_count(own.losslessness.ties, 'turn')} at one"
        )
    if own.draft_kv_share is None and own.draft_share is not None and own.drafter != BASELINE:
        yield "draft-KV unknown: maintenance is fused into proposing, or a part of it was not timed"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s" if noun.islower() else "S")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
