"""Table 5, figures 4b and 5 in their offline form: train the arms, decode held-out rollouts with all, lay out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.report.plots.canvas import Plot
from agentbench_spec.report.plots.curves import CurvePoint, curve_plot
from agentbench_spec.reproduce.arms import arm_config, trained_arm, training_data
from agentbench_spec.reproduce.plan import Plan, Request, column_config
from agentbench_spec.reproduce.reuse import measured_run
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.tables import Column, Table, replay_table
from agentbench_spec.runs.contention import note
from agentbench_spec.runs.presets import ArmPreset, ColumnPreset, Presets, load_presets
from agentbench_spec.runs.setup import Tell, drafter_makers

HELD_OUT = "held-out rollouts"


def measure_trained(wanted: Plan, request: Request, tell: Tell) -> tuple[Table, Path, list[Plot]]:
    """The table of the arms, the run it is from, and their curves. Raises ConfigError as `train` and `run` do."""
    presets = load_presets(request.presets)
    if presets.training is None:
        raise ConfigError(f"the presets say which arms {wanted.name} has, and not how they are trained: add [training]")
    base, _ = column_config(presets, wanted.preset, _column(presets.training.workload), request, wanted.target, ())
    data = training_data(presets.training, base, request.results, tell)
    folders = {}
    for arm in wanted.preset.arms:
        config = arm_config(presets.training, arm, data, wanted.target)
        folders[arm.name] = trained_arm(config, arm.name, request.results, tell)
    if len(set(folders.values())) < len(folders):
        raise ConfigError(f"{wanted.name}: two arms have the same settings")
    run, table = _compared(wanted, presets, request, data.held_out, folders, tell)
    plot = curves(wanted, folders)
    return table, run, [plot] if plot else []


def _column(workload: str) -> ColumnPreset:
    return ColumnPreset(title=HELD_OUT, workload=workload)


def _compared(
    wanted: Plan, presets: Presets, request: Request, held_out: Path, folders: Mapping[str, Path], tell: Tell
) -> tuple[Path, Table]:
    """All arms on the same turns."""
    column = _column(str(held_out))
    drafters = [f"{arm.drafter}={folders[arm.name]}" for arm in wanted.preset.arms]
    config, _ = column_config(presets, wanted.preset, column, request, wanted.target, drafters)
    run = measured_run(config, request.results, tell)
    manifest, rows = read_run(run)
    names = dict(zip(drafter_makers(config), (BASELINE, *folders), strict=True))
    named = [replace(row, drafter=names[row.drafter]) for row in rows]
    doubts = [note(manifest.get("other_cores"))] if manifest.get("contended") else []
    table = replay_table(
        wanted.name,
        wanted.title,
        [Column(HELD_OUT, named, notes=doubts)],
        [BASELINE, *folders],
        wanted.preset.figures,
        target=wanted.target,
    )
    arms = [f"{arm.name}: {_options(arm)}; {folders[arm.name].name}" for arm in wanted.preset.arms]
    return run, replace(table, notes=[*arms, _WHAT, *table.notes])


_WHAT = (
    "small drafters for a small target, trained for a small part of the paper's steps on other data, one seed each: "
    "what comes out better here need not be what the paper found"
)


def _options(arm: ArmPreset) -> str:
    return ", ".join(f"{name}={value}" for name, value in {**arm.options, **arm.settings}.items())


def curves(wanted: Plan, folders: Mapping[str, Path]) -> Plot | None:
    """Held-out acceptance over the steps of each arm's own phase; None if nothing was measured while training."""
    logs = {name: held_out_rows(folder) for name, folder in folders.items()}
    figures = {
        "1 + leading correct run": [p for name, rows in logs.items() for p in _points(name, rows, "prefix_acc")],
        "first token accepted": [p for name, rows in logs.items() for p in _points(name, rows, "accept_1")],
    }
    ends = [f"{name} {rows[-1]['prefix_acc']:.2f}" for name, rows in logs.items() if rows and rows[-1]["prefix_acc"]]
    words = (
        "Measured under teacher forcing on held-out texts while training. Leading correct run + 1 at the end: "
        f"{'; '.join(ends)}. A teacher's own steps come before those of its student and are not drawn."
    )
    return curve_plot(wanted.name, f"{wanted.preset.title}: over training", words, "steps", figures)


def held_out_rows(folder: Path) -> list[dict[str, Any]]:
    """The held-out rows of the last phase in an arm's log; `step` counts from that phase's beginning."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    own = [row for row in rows if row["phase"] == rows[-1]["phase"]]
    before = min(row["step"] for row in own) - 1
    return [{**row, "step": row["step"] - before} for row in own if row["kind"] == "held_out"]


def _points(name: str, rows: Sequence[dict[str, Any]], figure: str) -> Iterator[CurvePoint]:
    yield from (CurvePoint(name, row["step"], row[figure]) for row in rows if row[figure] is not None)
