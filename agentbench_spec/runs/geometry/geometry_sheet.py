"""The rows of a geometry as a table; τ stands in it as what it is, an input."""

from __future__ import annotations

from collections.abc import Sequence

from agentbench_spec.results.export import Sheet
from agentbench_spec.runs.geometry.geometry_rows import GeometryRow

_LABELS = ("context", "rows", "method", "k")
_FIGURES = (
    "τ scripted", "round ms", "draft ms", "of its floor", "verify ms", "of memory speed", "append ms", "ingest ms",
    "state MB", "speed-up at that τ",
)  # fmt: skip


def sheet_of(geometry: str, rows: Sequence[GeometryRow]) -> Sheet:
    """One line a row; what was not measured is a dash, and what does not fit or fails says so."""
    notes = ["τ is scripted, weights are random: no acceptance was measured, a speed-up holds if τ were that"]
    if any(row.thin for row in rows):
        notes.append("thin: other widths than published, a test of the code; no figure says anything of the model")
    reasons = {f"{row.status.replace('_', ' ')}: {row.reason}" for row in rows if row.reason}
    lines = [[*_labels(row), *_figures(row)] for row in rows]
    title = f"{geometry}, random weights, scripted τ"
    return Sheet(title, (*_LABELS, *_FIGURES), lines, [*notes, *sorted(reasons)], labels=len(_LABELS))


def _labels(row: GeometryRow) -> list[str]:
    return [f"{row.context_tokens:,}", str(row.concurrency), row.drafter, str(row.k)]


def _figures(row: GeometryRow) -> list[str]:
    if row.status != "ok":
        return [f"{row.tau_scripted:g}", row.status.replace("_", " "), *["-"] * (len(_FIGURES) - 2)]
    times = row.draft_floor_s, row.draft_s
    over = None if None in times else (row.draft_s or 0.0) / (row.draft_floor_s or 1.0)
    gain = row.speedup_at_script
    return [
        f"{row.tau_scripted:g}",
        _ms(row.round_s),
        _ms(row.draft_s),
        "-" if over is None else f"{over:.2f}x",
        _ms(row.verify_s),
        "-" if row.memory_share is None else f"{row.memory_share:.0%}",
        _ms(row.draft_append_s),
        _ms(row.draft_ingest_s),
        "-" if row.state_bytes is None else f"{row.state_bytes / 1e6:.3g}",
        "-" if gain is None else f"{gain:.2f}",
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"
