"""The worked example of docs/metrics.md is what the code computes."""

from __future__ import annotations

from pathlib import Path

from rowkit import make_row

from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import DrafterSummary, summarise

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def _tables() -> tuple[list[list[str]], dict[str, str]]:
    """Cells of the example's turns, and value by figure."""
    lines = DOC.read_text(encoding="utf-8").split("## Worked example")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    turns = [row for row in cells if "/" in row[0]]
    return turns, {row[0].strip("`"): row[1] for row in cells if row[0].startswith("`")}


def _rows(turns: list[list[str]]) -> list[TurnRow]:
    rows = []
    for name, matched, emitted, base_s, own_s, draft_s, append_s in turns:
        rollout, turn = name.split("/")
        shared = {"prefill_s": 0.3, "k": 3}
        rows.append(make_row(rollout, int(turn), "none", [0] * int(emitted), decode_s=float(base_s), **shared))
        clocks = {"decode_s": float(own_s), "attributed_decode_s": float(own_s), "draft_ingest_s": 0.05}
        clocks |= {"draft_s": float(draft_s), "draft_append_s": float(append_s)}
        lengths = [int(length) for length in matched.split()]
        rows.append(make_row(rollout, int(turn), "toy", lengths, emitted=int(emitted), **shared, **clocks))
    return rows


def _figure(own: DrafterSummary, name: str) -> str:
    if name == "accepted_histogram":
        return " ".join(map(str, own.accepted_histogram))
    if name in ("acceptance_by_position", "conditional"):
        return " ".join(f"{pair[name == 'conditional']:.3f}" for pair in own.acceptance_by_position)
    value: object = own
    for part in name.split("."):
        value = getattr(value, part)
    return f"{value:.3f}"


def test_worked_example_is_computed() -> None:
    """Fails if a definition in the document and the code drift apart."""
    turns, figures = _tables()
    own = summarise(_rows(turns)).drafters[1]
    assert len(turns) == 4 and len(figures) == 13
    assert {name: _figure(own, name) for name in figures} == figures
