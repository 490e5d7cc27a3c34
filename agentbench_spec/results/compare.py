"""Two runs of the same thing, before and after a change: what fell, per workload, drafter and context length.

Both runs must have decoded the same turns under the same settings, so every comparison is paired by turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results import metrics
from agentbench_spec.results.changes import Change, Key, by_turn, changes_between, key_of
from agentbench_spec.results.export import Sheet, between
from agentbench_spec.results.intervals import FEW_CLUSTERS, spread_text
from agentbench_spec.results.metrics import BASELINE, counted
from agentbench_spec.results.provenance import differing_keys
from agentbench_spec.results.rows import TurnRow

if TYPE_CHECKING:
    import pandas as pd

Run = tuple[Mapping[str, Any], Sequence[TurnRow]]
"""Manifest and rows, as `folder.read_run` gives them."""


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


def compare_runs(old: Run, new: Run, *, tolerance: float = 0.05, all_drafters: bool = False) -> Comparison:
    """Compare two runs turn by turn.

    tolerance: a relative fall that is not one yet; all_drafters: a drafter that the new run lacks is a loss. Raises
    ConfigError if the runs' settings, data or conditions differ, or if there is no drafter's turn that both hold and
    that counted before.
    """
    refuse_unlike(old[0], new[0])
    _refuse_unlike_rows(old[1], new[1])
    notes = [*_machine_notes(old[0], new[0]), *_contention_notes(old[0], new[0])]
    timed = not notes
    before, after = by_turn(old[1]), by_turn(new[1])
    _refuse_nothing(before, old[1], new[1])
    names = [{row.drafter for row in rows} for rows in (old[1], new[1])]
    notes += [f"{drafter} is in one run only" for drafter in sorted(names[0] ^ names[1])]
    if BASELINE not in names[0] & names[1]:
        notes.append(f"no speed-up can be compared: plain decoding ({BASELINE}) is not in both runs")
    notes += _unshared_notes(old[1], new[1])
    notes += [line for name, rows in (("old", old[1]), ("new", new[1])) for line in _left_out_notes(name, rows)]
    changes = changes_between(before, after, tolerance, timed=timed)
    notes += _few_notes(changes)
    gone = [f"{drafter}: not in the new run" for drafter in sorted(names[0] - names[1]) if all_drafters]
    return Comparison(changes, [*gone, *_losses(old[1], new[1])], notes)


def _refuse_unlike_rows(old: Sequence[TurnRow], new: Sequence[TurnRow]) -> None:
    try:
        metrics.one_condition([*old, *new])
    except MeasurementError as error:
        raise ConfigError(f"the runs did not measure the same thing: {error}") from error


def _refuse_nothing(before: Mapping[Key, TurnRow], old: Sequence[TurnRow], new: Sequence[TurnRow]) -> None:
    """Raises ConfigError where "nothing fell" would only mean that nothing was compared."""
    shared = {key_of(row) for row in old if row.drafter != BASELINE} & {key_of(row) for row in new}
    if not shared:
        raise ConfigError(f"the two runs share no drafter and turn besides {BASELINE}: there is nothing to compare")
    if not shared & before.keys():
        reasons = ", ".join(metrics.left_out(row for row in old if key_of(row) in shared))
        raise ConfigError(f"not one shared turn of the old run counts ({reasons}): there is nothing to compare")


def _left_out_notes(name: str, rows: Sequence[TurnRow]) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for drafter, own in metrics.by_drafter(rows).items():
        for reason, count in metrics.left_out(own).items():
            said.setdefault(f"{count} of {len(own)} turns left out: {reason}", []).append(drafter)
    yield from (f"{name} run: {', '.join(drafters)}: {line}" for line, drafters in said.items())


def _unshared_notes(old: Sequence[TurnRow], new: Sequence[TurnRow]) -> Iterator[str]:
    """Turns, of drafters that both runs have, that only one of them has."""
    was, now = ({key_of(row) for row in rows} for rows in (old, new))
    shared = {drafter for _, drafter in was} & {drafter for _, drafter in now}
    for name, alone in (("old", was - now), ("new", now - was)):
        counts = Counter(drafter for _, drafter in alone if drafter in shared)
        by_count: dict[int, list[str]] = {}
        for drafter, count in sorted(counts.items()):
            by_count.setdefault(count, []).append(drafter)
        for count, drafters in by_count.items():
            yield f"{', '.join(drafters)}: {count} turns are in the {name} run only, and in no figure here"


def _few_notes(changes: Sequence[Change]) -> Iterator[str]:
    few = [c for c in changes if c.interval is None or c.interval.clusters < FEW_CLUSTERS]
    if any(c.judgement == "unsure" for c in few):
        yield f"what has noise is judged from {FEW_CLUSTERS} independent rollouts on; below, it is shown as unsure"


_FREE = (
    "drafters",
    "drafter_options",
    "measure.threads",
    "measure.rounds",
    "measure.repeats",
    "measure.aa",
    "target.device",
    "target.fast_linears",
)
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


def _contention_notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if contended := [name for name, manifest in (("old", old), ("new", new)) if manifest.get("contended")]:
        runs = "run" if len(contended) == 1 else "runs"
        yield f"speed-ups are shown and not judged, other work slowed the {' and the '.join(contended)} {runs}"


def _losses(old: Sequence[TurnRow], new: Sequence[TurnRow]) -> Iterator[str]:
    """Turns that counted before and do not now, and outputs that are no longer the baseline's."""
    now = {key_of(row): row for row in new}
    there = {row.drafter for row in new}
    for drafter, own in metrics.by_drafter(old).items():
        keys = [key_of(row) for row in counted(own)] if drafter in there else []
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
            "" if c.p is None else f"{c.p:.3f}",
            str(c.turns),
            c.judgement,
        ]
        for c in found.changes
    ]
    headings = ("workload", "drafter", "context", "figure", "old", "new", "new / old [90 %]", "p", "turns", "judgement")
    return Sheet("new run against old", headings, lines, [*found.losses, *found.notes], labels=4)


def comparison_frame(found: Comparison) -> pd.DataFrame:
    """The changes as a data frame, the interval of the ratio as `low` and `high`."""
    import pandas as pd

    lines = []
    for change in found.changes:
        line = asdict(change)
        del line["interval"]
        lines.append({**line, **between("", change.interval)})
    return (
        pd.DataFrame(lines).astype({"p": "float64", "low": "float64", "high": "float64"}) if lines else pd.DataFrame()
    )


def _ratio_text(change: Change) -> str:
    return f"{change.ratio:.2f}{spread_text(change.interval)}"
