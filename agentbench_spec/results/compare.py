"""Two runs of the same thing, before and after a change: what fell, per workload, drafter and context length.

Both runs must have decoded the same turns under the same settings, so every comparison is paired by turn. A pooled τ
can stand still while one stretch of contexts collapses; therefore every bucket of contexts is judged by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results import metrics
from agentbench_spec.results.export import Sheet, between
from agentbench_spec.results.intervals import Interval, cluster_of, clustered_interval, spread_text
from agentbench_spec.results.metrics import BASELINE, counted, turn_of
from agentbench_spec.results.provenance import differing_keys
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    import pandas as pd

Figure = Literal["tau", "speedup"]
Judgement = Literal["fell", "rose", "same", "unsure"]
Run = tuple[Mapping[str, Any], Sequence[TurnRow]]
"""Manifest and rows, as `runfolder.read_run` gives them."""

WHOLE = "all contexts"


@dataclass(frozen=True, slots=True)
class Change:
    """How one figure of one drafter moved in one stretch of contexts."""

    workload: str
    drafter: str
    bucket: str
    figure: Figure
    old: float
    new: float
    ratio: float
    """New over old; below 1 is worse."""
    interval: Interval | None
    """Of the ratio."""
    turns: int
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, and what else got worse."""

    changes: list[Change]
    losses: list[str]
    """Turns that no longer count, outputs that are no longer the baseline's."""
    notes: list[str]

    @property
    def regressions(self) -> list[str]:
        """Everything that got worse, in words."""
        fell = [found for found in self.changes if found.judgement == "fell"]
        return self.losses + [
            f"{f.workload}, {f.drafter}, {f.bucket}: {f.figure} {f.old:.3f} -> {f.new:.3f} ({f.ratio - 1:+.1%})"
            for f in fell
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "regressions": self.regressions}


def compare_runs(old: Run, new: Run, *, tolerance: float = 0.05) -> Comparison:
    """Compare two runs turn by turn.

    tolerance: a relative fall that is not one yet. Raises ConfigError if the runs' settings, data or conditions
    differ, or if there is no drafter's turn that both hold and that counted before.
    """
    refuse_unlike(old[0], new[0])
    _refuse_unlike_rows(old[1], new[1])
    notes = list(_machine_notes(old[0], new[0]))
    same_machine = not notes
    before, after = _by_turn(old[1]), _by_turn(new[1])
    _refuse_nothing(before, old[1], new[1])
    names = [{row.drafter for row in rows} for rows in (old[1], new[1])]
    notes += [f"{drafter} is in one run only" for drafter in sorted(names[0] ^ names[1])]
    if BASELINE not in names[0] & names[1]:
        notes.append(f"no speed-up can be compared: plain decoding ({BASELINE}) is not in both runs")
    notes += [line for name, rows in (("old", old[1]), ("new", new[1])) for line in _left_out_notes(name, rows)]
    changes = list(_changes(before, after, tolerance, timed=same_machine))
    return Comparison(changes, list(_losses(old[1], new[1])), notes)


def _refuse_unlike_rows(old: Sequence[TurnRow], new: Sequence[TurnRow]) -> None:
    try:
        metrics.one_condition([*old, *new])
    except MeasurementError as error:
        raise ConfigError(f"the runs did not measure the same thing: {error}") from error


def _refuse_nothing(before: Mapping[_Key, TurnRow], old: Sequence[TurnRow], new: Sequence[TurnRow]) -> None:
    """Raises ConfigError where "nothing fell" would only mean that nothing was compared."""
    shared = {_key(row) for row in old if row.drafter != BASELINE} & {_key(row) for row in new}
    if not shared:
        raise ConfigError(f"the two runs share no drafter and turn besides {BASELINE}: there is nothing to compare")
    if not shared & before.keys():
        reasons = ", ".join(metrics.left_out(row for row in old if _key(row) in shared))
        raise ConfigError(f"not one shared turn of the old run counts ({reasons}): there is nothing to compare")


def _left_out_notes(name: str, rows: Sequence[TurnRow]) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for drafter, own in metrics.by_drafter(rows).items():
        for reason, count in metrics.left_out(own).items():
            said.setdefault(f"{count} of {len(own)} turns left out: {reason}", []).append(drafter)
    yield from (f"{name} run: {', '.join(drafters)}: {line}" for line, drafters in said.items())


_FREE = ("drafters", "drafter_options", "measure.threads", "measure.rounds", "target.device", "target.fast_linears")
"""Settings in which a new version may differ: which drafters, and how they are run."""


def refuse_unlike(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises ConfigError naming the settings or data in which two manifests differ."""
    unlike = [
        line
        for part in ("settings", "data")
        for line in differing_keys(old.get(part) or {}, new.get(part) or {})
        if part == "data" or not line.startswith(_FREE)
    ]
    unlike += differing_keys(_target(old), _target(new))
    if unlike:
        raise ConfigError(f"the runs did not measure the same thing: {'; '.join(unlike[:6])}")


def _target(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (manifest.get("model") or {}).items() if name not in ("drafters", "device")}


def _machine_notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    parts = ("cpu", "cpus", "threads", "gpus")
    facts = [{name: (run.get("host") or {}).get(name) for name in parts} for run in (old, new)]
    if different := differing_keys(*facts):
        yield f"speed-ups are shown and not judged, the machines differ: {'; '.join(different)}"


_Key = tuple[tuple[str, str, int], str]


def _by_turn(rows: Sequence[TurnRow]) -> dict[_Key, TurnRow]:
    return {_key(row): row for row in counted(rows)}


def _key(row: TurnRow) -> _Key:
    return turn_of(row), row.drafter


def _changes(
    before: Mapping[_Key, TurnRow], after: Mapping[_Key, TurnRow], tolerance: float, *, timed: bool
) -> Iterator[Change]:
    groups: dict[tuple[str, str, str], list[_Key]] = {}
    for key in before:
        if key in after and key[1] != BASELINE:
            for bucket in (WHOLE, bucket_of(before[key].context_tokens)):
                groups.setdefault((before[key].workload, key[1], bucket), []).append(key)
    figures: dict[Figure, Callable[[Mapping[_Key, TurnRow], _Key], tuple[float, ...] | None]] = {
        "tau": _tau_parts,
        "speedup": _speedup_parts,
    }
    for name, keys in sorted(groups.items(), key=lambda item: (*item[0][:2], _order(item[0][2]))):
        for figure, parts_of in figures.items():
            pairs = [(cluster_of(before[k]), parts_of(before, k), parts_of(after, k)) for k in keys]
            found = [(cluster, (*was, *now)) for cluster, was, now in pairs if was and now]
            if found:
                yield _change(
                    name, figure, found, tolerance, exact=figure == "tau" and _exact(before, keys), judged=timed
                )


def _change(
    name: tuple[str, str, str],
    figure: Figure,
    found: Sequence[tuple[Any, tuple[float, ...]]],
    tolerance: float,
    *,
    exact: bool,
    judged: bool,
) -> Change:
    parts = [own for _, own in found]
    width = len(parts[0]) // 2
    sums = [sum(column) for column in zip(*parts, strict=True)]
    old, new = _value(sums[:width]), _value(sums[width:])
    interval = clustered_interval(
        parts, [cluster for cluster, _ in found], lambda s: _value(s[:, width:].T) / _value(s[:, :width].T)
    )
    judgement = judge(new / old, interval, tolerance, exact=exact) if judged or exact else "unsure"
    return Change(*name, figure, old, new, new / old, interval, len(found), judgement)


def judge(ratio: float, interval: Interval | None, tolerance: float, *, exact: bool) -> Judgement:
    """What a change of a figure is.

    exact: the figure has no noise, as greedy τ on the same turns; then the ratio alone decides. Else the interval must
    lie on one side of 1 as well.
    """
    if abs(ratio - 1) <= tolerance:
        return "same"
    if exact:
        return "fell" if ratio < 1 else "rose"
    if interval is None or interval.low <= 1 <= interval.high:
        return "unsure"
    return "fell" if ratio < 1 else "rose"


def _value(sums: Any) -> Any:
    """tokens / rounds, or baseline's seconds per token over the drafter's."""
    return sums[0] / sums[1] if len(sums) == 2 else (sums[0] / sums[1]) / (sums[2] / sums[3])


def _tau_parts(rows: Mapping[_Key, TurnRow], key: _Key) -> tuple[float, ...] | None:
    row = rows[key]
    return (float(row.emitted), float(row.rounds)) if row.rounds and row.emitted else None


def _speedup_parts(rows: Mapping[_Key, TurnRow], key: _Key) -> tuple[float, ...] | None:
    plain, row = rows.get((key[0], BASELINE)), rows[key]
    if plain is None or not (plain.decode_s and plain.emitted and row.decode_s and row.emitted):
        return None
    return plain.decode_s, float(plain.emitted), row.decode_s, float(row.emitted)


def _exact(rows: Mapping[_Key, TurnRow], keys: Sequence[_Key]) -> bool:
    return all(rows[key].greedy or rows[key].decode_mode == "forced" for key in keys)


def bucket_of(context_tokens: int | None) -> str:
    """The octave of contexts a turn is in: "under 1K", "1K-2K", "2K-4K", ...; "unknown" without a length."""
    if context_tokens is None:
        return "unknown"
    if context_tokens < 1024:
        return "under 1K"
    low = 1 << ((context_tokens // 1024).bit_length() - 1)
    return f"{low}K-{2 * low}K"


def _order(bucket: str) -> int:
    known = {WHOLE: -1, "under 1K": 0, "unknown": 1 << 30}
    return known[bucket] if bucket in known else int(bucket.partition("K")[0])


def _losses(old: Sequence[TurnRow], new: Sequence[TurnRow]) -> Iterator[str]:
    """Turns that counted before and do not now, and outputs that are no longer the baseline's."""
    now = {_key(row): row for row in new}
    there = {row.drafter for row in new}
    for drafter, own in metrics.by_drafter(old).items():
        keys = [_key(row) for row in counted(own)] if drafter in there else []
        reasons = [metrics.left_out_because(now[key]) if key in now else "missing" for key in keys]
        if gone := Counter(reason for reason in reasons if reason):
            yield f"{drafter}: {gone.total()} turns that counted are now left out: {', '.join(sorted(gone))}"
        was, is_now = (
            metrics.losslessness(row for row in rows if row.drafter == drafter and row.status == "ok").errors
            for rows in (old, new)
        )
        if is_now > was:
            yield f"{drafter}: {is_now} outputs differ from plain decoding beyond a near tie, {was} did before"


def comparison_sheet(found: Comparison) -> Sheet:
    """The comparison as a table."""
    lines = [
        [
            c.workload,
            c.drafter,
            c.bucket,
            c.figure,
            f"{c.old:.2f}",
            f"{c.new:.2f}",
            _ratio_text(c),
            str(c.turns),
            c.judgement,
        ]
        for c in found.changes
    ]
    headings = ("workload", "drafter", "context", "figure", "old", "new", "new / old", "turns", "judgement")
    return Sheet("new run against old", headings, lines, [*found.losses, *found.notes])


def comparison_frame(found: Comparison) -> pd.DataFrame:
    """The changes as a data frame, the interval of the ratio as `low` and `high`."""
    import pandas as pd

    lines = []
    for change in found.changes:
        line = asdict(change)
        del line["interval"]
        lines.append({**line, **between("", change.interval)})
    return pd.DataFrame(lines).astype({"low": "float64", "high": "float64"}) if lines else pd.DataFrame()


def _ratio_text(change: Change) -> str:
    return f"{change.ratio:.2f}{spread_text(change.interval)}"
