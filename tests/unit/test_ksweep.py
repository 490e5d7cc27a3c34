"""`reproduce ksweep` from hand-made rows, and from end to end on a tiny model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from localmodel import save_rollouts, session
from reportkit import timed
from runkit import call

from agentbench_spec.errors import MeasurementError
from agentbench_spec.reproduce.ksweep import sweep_plots, sweep_tables
from agentbench_spec.reproduce.plan import Plan, Request, plan
from agentbench_spec.results.derived.k_arms import arm_name
from agentbench_spec.results.tables import Column, Table

PRESETS = """
[settings]
[stated]
[open]
[checkpoints]
[embedded]
target = "{target}"
drafters = ["ngram"]
orientation = "Qwen3-4B"
[embedded.settings]
"decode.k" = 7
"decode.max_new_tokens" = 12
"target.fast_linears" = false
[ksweep]
title = "over K"
drafters = ["dlite"]
figures = ["speedup", "tau_raw"]
k = [1, 3, "auto"]
[[ksweep.embedded]]
title = "hand"
workload = "{rollouts}"
"""


def wanted(*ks: int | Literal["auto"]) -> Plan:
    """The shipped sweep over `ks` alone."""
    whole = plan("ksweep", Request(embedded=True))
    assert [config.decode.sweep for _, config in whole.columns] == [(1, 2, 3, 4, 5, 6, 7, "auto")]
    assert [config.decode.k for _, config in whole.columns] == [7]
    return replace(whole, preset=whole.preset.model_copy(update={"k": ks}), drafters=["ngram"])


def column(*arms: tuple[int | str, float], every_other: float = 1.0, **fields: object) -> Column:
    """Six rollouts: plain decoding at 10 ms a token; a drafter that accepts up to two of k, with several K.

    arms: K and milliseconds of its rounds, times `every_other` in every other rollout where K is chosen.
    """
    rows = []
    for i in range(6):
        rows.append(timed(f"r{i}", 0, "none", [0] * 6, (0.0, 9.0, 0.5, 0.0, 0.5), **fields))
        for arm, ms in arms:
            k = 7 if arm == "auto" else int(arm)
            matched = [min(k, 2)] * 3 + [i % 2]
            own_ms = ms * (every_other if arm == "auto" and i % 2 else 1)
            row = timed(f"r{i}", 0, arm_name("ngram", arm), matched, (0.0, own_ms, 0.0, 0.0, 0.0), k=k, **fields)
            rows.append(replace(row, k_policy="auto" if arm == "auto" else "fixed"))
    return Column("BFCL-v3", rows)


def swept(auto_ms: float = 10, every_other: float = 1.0) -> Table:
    """K = 1 and 2 in rounds as long as plain decoding's, K = 7 in rounds three times as long, and a chosen K."""
    arms = column((1, 10), (2, 10), (7, 30), ("auto", auto_ms), every_other=every_other)
    (table,) = sweep_tables(wanted(1, 2, 7, "auto"), [arms])
    return table


def test_each_k_has_its_column_and_the_best_one_is_named() -> None:
    """Fails if columns of different K change places, or the K of the highest speed-up is not said."""
    table = swept()
    assert list(table.columns) == ["K = 1", "K = 2", "K = 7", "K = auto"]
    tau = [table.cell("ngram", "tau_raw", name).value for name in table.columns]
    assert tau[0] is not None and tau[0] < 2 and tau[1] == tau[2] == tau[3] == pytest.approx(2.625)
    assert table.notes[0].startswith("ngram: highest speed-up 2.6") and "at K = 2; 0.8" in table.notes[0]
    assert table.notes[0].endswith("with a K chosen round by round") and "auto" not in table.notes[0]
    assert table.cell("none", "speedup", "K = auto").value == 1


@pytest.mark.parametrize(
    ("auto_ms", "every_other", "said"),
    [
        (10, 1.0, "1.000 [1.000, 1.000] of the time a token that K = 2 takes, .*: within 3 %"),
        (9, 1.0, "0.900 .*: faster"),
        (12, 1.0, "1.200 .*: more than 3 % slower"),
        (9, 1.3, ".*: not told whether within 3 %"),
    ],
)
def test_a_chosen_k_is_held_against_the_best_fixed_one(auto_ms: float, every_other: float, said: str) -> None:
    """Fails if the pairing takes another K than the fastest, or noise is read as a verdict."""
    pattern = said.replace("[", r"\[").replace("]", r"\]")
    assert re.fullmatch(f"ngram: a K chosen round by round takes {pattern}", swept(auto_ms, every_other).notes[1])


def test_the_figure_draws_tau_and_speedup_over_k() -> None:
    """Fails if the baseline is drawn as a drafter, or a panel is empty."""
    (plot,) = sweep_plots([swept()])
    assert {row[0] for row in plot.data} == {"τ raw", "speed-up"} and {row[1] for row in plot.data} == {"ngram"}
    assert [row[2] for row in plot.data if row[0] == "τ raw"] == [1, 2, 7] and "<svg" in plot.svg()


def test_other_conditions_than_k_still_do_not_mix() -> None:
    """Fails if a run with another thinking flag is set beside the others because their K differs anyway."""
    one, other = column((1, 10), thinking=False), column((2, 10), thinking=True)
    with pytest.raises(MeasurementError, match="thinking"):
        sweep_tables(wanted(1, 2), [replace(one, rows=[*one.rows, *other.rows])])
    mixed = [replace(row, drafter=row.drafter.replace("@2", "@1")) for row in column((1, 10), (2, 10)).rows]
    with pytest.raises(MeasurementError, match="k"):
        sweep_tables(wanted(1), [Column("BFCL-v3", mixed)])


def test_the_sweep_runs_once_and_is_reused(tiny: Path, tmp_path: Path) -> None:
    """Fails if the K are runs of their own, a finished run is measured again, or the figure is not written."""
    rollouts = save_rollouts(tmp_path / "four.jsonl", *(session(f"s{i}", 2, pad=10 * i) for i in range(4)))
    presets = tmp_path / "presets.toml"
    presets.write_text(PRESETS.format(target=tiny, rollouts=rollouts), "utf-8")
    words = ("reproduce", "ksweep", "--embedded", "--presets", presets, "--results", tmp_path / "results")
    first, second = call(*words), call(*words)
    assert first.code == 0 and second.err.count("reusing") == 1, first.err
    assert len(second.last["runs"]) == 1
    (folder,) = (tmp_path / "results").glob("ksweep-*")
    read = pd.read_csv(folder / "ksweep.csv").set_index(["drafter", "figure", "column"])
    assert read.loc[("ngram", "tau_raw", "K = 3")]["pooled"] >= read.loc[("ngram", "tau_raw", "K = 1")]["pooled"] >= 1
    assert read.loc[("ngram", "tau_raw", "K = auto")]["pooled"] >= 1
    assert set(read["paper"].isna()) == {True}
    assert (folder / "figures" / "ksweep.png").is_file() and (folder / "ksweep_curves.csv").is_file()
