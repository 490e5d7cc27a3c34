"""Whether rounds are captured: all drafters or none, said in rows and manifest, refused where it cannot be had."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
import torch
from replaykit import replayed, replayer, three_turns
from rowkit import make_row

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.engine.spans import Board
from agentbench_spec.engine.steps.capturing import capture
from agentbench_spec.engine.steps.graphs import Graphs
from agentbench_spec.engine.steps.recorded import recorded
from agentbench_spec.engine.steps.round_attention import RoundAttention
from agentbench_spec.engine.steps.static_target import Static
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.plugins import load_drafter
from agentbench_spec.results.metrics import one_condition
from agentbench_spec.results.rows import CLOCK_FIELDS
from agentbench_spec.runs.graph_mode import static_rounds
from agentbench_spec.testing import PlainDrafter, row_sampler, toy_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def config(graphs: str, **decode: Any) -> RunConfig:
    return load_config(trees=[{"target": {"graphs": graphs}, "decode": decode}])


class Unsaid(Drafter):
    """Works on the device and does not say that it can be captured."""


def test_a_cpu_has_no_graphs() -> None:
    """Fails if a CPU run changes, or says a word about graphs, or is promised some."""
    plain = {"none": load_drafter("none")}
    assert static_rounds(config("auto"), plain, CPU) == (None, None)
    assert static_rounds(config("off"), plain, CPU) == (None, None)
    with pytest.raises(ConfigError, match="only CUDA has graphs"):
        static_rounds(config("on"), plain, CPU)


def test_one_drafter_that_cannot_be_captured_keeps_all_from_it() -> None:
    """Fails if the others are captured, and measured against it; or if it is not named."""
    mixed = {"none": load_drafter("none"), "mine": Unsaid()}
    static, why = static_rounds(config("auto"), mixed, CUDA)
    assert static is None and why is not None and "'mine'" in why and "none is captured" in why
    with pytest.raises(ConfigError, match="'mine' does not say"):
        static_rounds(config("on"), mixed, CUDA)


@pytest.mark.parametrize(("k", "setting"), [("auto", "decode.k=auto"), ("1,3", "decode.sweep")])
def test_rounds_of_varying_k_are_not_captured(k: str, setting: str) -> None:
    """Fails if rounds of several k are given graphs of one."""
    static, why = static_rounds(config("auto", k=k), {"none": PlainDrafter()}, CUDA)
    assert static is None and why is not None and setting in why
    with pytest.raises(ConfigError, match=rf"target\.graphs=on and {setting}"):
        config("on", k=k)


def test_rows_with_and_without_graphs_do_not_mix() -> None:
    """Fails if a speed-up could be taken of a captured method over an eager baseline."""
    rows = [make_row("a", matched=[1]), make_row("b", matched=[1], graphs=True)]
    with pytest.raises(MeasurementError, match="graphs: False, True"):
        one_condition(rows)


def rows_of(*, replays: bool, **conditions: Any) -> list[dict[str, Any]]:
    """The rows of a rollout, but for their clocks; replays: from a recording."""
    static = Static(RoundAttention("masked"), Graphs(recorded), Board(CPU)) if replays else None
    target = Target(toy_model(), name="toy", capacity=512, static=static)
    drafters = {name: load_drafter(name) for name in ("ngram", "suffix")}
    each = replayer(drafters, target=target, graphs=replays, **conditions)
    forced, sampling = each.conditions.decode_mode == "forced", each.conditions.sampling
    for drafter in each.drafters.values() if replays else ():
        limits, sampler = each.conditions.limits, partial(row_sampler, target, sampling, 0)
        capture(target, drafter, limits, sampler, rows=1, forced=forced)
    rows = [asdict(row) for turn in replayed(each, three_turns()) for row in turn.rows]
    return [{name: value for name, value in row.items() if name not in CLOCK_FIELDS} for row in rows]


@pytest.mark.parametrize(
    "conditions",
    [{}, {"decode_mode": "forced"}, {"sampling": Sampling(temperature=1.0)}],
    ids=["greedy", "forced", "sampled"],
)
def test_a_replayed_run_has_the_rows_of_a_launched_one(conditions: dict[str, Any]) -> None:
    """Fails if a turn's end, its stop token, a cut back or the next turn's prefill meets state that a replay left."""
    launched, replays = (rows_of(replays=each, **conditions) for each in (False, True))
    assert [row.pop("graphs") for row in launched] == [False] * len(launched)
    assert [row.pop("graphs") for row in replays] == [True] * len(replays)
    for row in (*launched, *replays):
        row.pop("divergence_margin")
    assert replays == launched


def test_an_untouched_setting_is_not_stored() -> None:
    """Fails if runs from before there were graphs cannot be resumed."""
    assert "graphs" not in config("auto").model_dump()["target"]
    assert config("off").model_dump()["target"]["graphs"] == "off"
