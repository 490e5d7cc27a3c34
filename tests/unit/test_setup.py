"""What replay and throughput runs set up alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import odd_plugins
import pytest
from localmodel import save_rollouts, session

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import read_manifest
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.rollout import Message
from agentbench_spec.runs.execute import run
from agentbench_spec.runs.presets import ThroughputPreset
from agentbench_spec.runs.setup import drafter_makers
from agentbench_spec.runs.throughput import run_throughput

DRAFTER = "odd_plugins:netted"


def settings(
    tiny: Path, rollouts: Path, *, drafters: tuple[str, ...] = (DRAFTER,), fast: bool = True, **more: object
) -> RunConfig:
    """Two short turns of one rollout."""
    tree = {
        "target.source": str(tiny),
        "target.fast_linears": fast,
        "workload.name": str(rollouts),
        "workload.limit": 1,
        "drafters": drafters,
        "replay.max_turns": 2,
        "decode.max_new_tokens": 4,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return load_config(flags=tree)


def test_both_kinds_of_run_give_every_network_fast_linears(
    tiny: Path, rollouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the batched engine decodes with a drafter's stock linears, or a second network hides the first."""
    monkeypatch.setenv("AGENTBENCH_SPEC_CACHE", str(tmp_path / "cache"))
    config = settings(tiny, rollouts)
    run(config, tmp_path / "replay")
    before = odd_plugins.Netted.asked
    run_throughput(config, ThroughputPreset(concurrency=(1, 2), passes=1), tmp_path / "throughput")
    assert odd_plugins.Netted.asked == before + 3  # tried once, then loaded anew for each concurrency
    for folder in ("replay", "throughput"):
        kernels = read_manifest(tmp_path / folder)["kernels"]
        assert set(kernels) == {str(tiny), DRAFTER} and set(kernels[DRAFTER]) == {"48 x 16", "24 x 16"}


def test_stock_linears_stay_where_they_are_asked_for(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if `target.fast_linears=false` leaves the drafters' linears raced."""
    before = odd_plugins.Netted.asked
    run_throughput(settings(tiny, rollouts, fast=False), ThroughputPreset(passes=1), tmp_path / "run")
    assert odd_plugins.Netted.asked == before and read_manifest(tmp_path / "run")["kernels"] == {}


def test_two_checkpoints_of_one_drafter_are_two_passes(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if the second checkpoint is taken for the first, and so never served."""
    names = ("odd_plugins:repeat=1", "odd_plugins:repeat=2")
    config = settings(tiny, rollouts, drafters=names, fast=False)
    assert list(drafter_makers(config)) == [BASELINE, *names]
    rows = run_throughput(config, ThroughputPreset(passes=1), tmp_path / "run")
    assert [row.drafter for row in rows] == [BASELINE, *names]


def test_a_drafter_that_does_not_fit_is_refused_before_a_pass(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if the baseline is measured for minutes before a wrong drafter ends the run."""
    config = settings(tiny, rollouts, drafters=("odd_plugins:misfit",), fast=False)
    with pytest.raises(ConfigError, match="another hidden size"):
        run_throughput(config, ThroughputPreset(passes=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["quits", "quits_at_once", "misfit_for_two"])
def test_a_drafter_that_fails_costs_its_own_passes_only(tiny: Path, rollouts: Path, tmp_path: Path, name: str) -> None:
    """Fails if a plugin's sys.exit(0), or its refusal of more rows, ends the passes of all others too."""
    config = settings(tiny, rollouts, drafters=(f"odd_plugins:{name}", "odd_plugins:repeat"), fast=False)
    rows = run_throughput(config, ThroughputPreset(concurrency=(2,), passes=1), tmp_path / "run")
    assert [row.status for row in rows] == ["ok", "error", "ok"]
    why = "two rows are too many" if name == "misfit_for_two" else "it called sys.exit(0) (at odd_plugins.py:"
    assert why in str(rows[1].error)


def test_a_pass_is_warmed_up_even_where_the_first_token_ends_a_turn(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if the warm-up heeds stop tokens: the start of a prompt may be answered by one, and nothing was decoded."""
    model = shutil.copytree(tiny, tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(300))}), "utf-8")
    odd_plugins.Counting.asked = 0
    config = settings(model, rollouts, drafters=("odd_plugins:counting",), fast=False)
    rows = run_throughput(config, ThroughputPreset(passes=1), tmp_path / "run")
    assert [row.emitted for row in rows] == [0, 0], "every token ends a turn"
    assert odd_plugins.Counting.asked > 0


def test_the_memory_guard_counts_what_a_drafter_keeps(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a drafter is served at rows that only the target fits into, or the table is not told why not, or still
    is once there was room."""
    config = settings(tiny, rollouts, drafters=("odd_plugins:hoarder", "odd_plugins:repeat"), fast=False)
    told: list[str] = []
    odd_plugins.Hoarder.kept_bytes = 10**15
    rows = run_throughput(config, ThroughputPreset(passes=1), tmp_path / "run", told.append)
    assert [row.drafter for row in rows] == [BASELINE, "odd_plugins:repeat"]
    (note,) = read_manifest(tmp_path / "run")["notes"]
    assert note.startswith("odd_plugins:hoarder at concurrency 1 was not run: 1 rows x ") and note in told
    odd_plugins.Hoarder.kept_bytes = 0
    again = run_throughput(config, ThroughputPreset(passes=1), tmp_path / "run")
    assert again[:2] == rows and again[2].drafter == "odd_plugins:hoarder"
    assert read_manifest(tmp_path / "run")["notes"] == []


def test_a_rollout_that_does_not_render_leaves_the_others_served(tiny: Path, tmp_path: Path) -> None:
    """Fails if one rollout that the template refuses ends the table, though a run goes on with the others."""
    model = shutil.copytree(tiny, tmp_path / "model")
    template = model / "chat_template.jinja"
    refusal = "{% if messages[-1].content == 'odd' %}{{ raise_exception('no odd ones') }}{% endif %}"
    template.write_text(refusal + template.read_text("utf-8"), "utf-8")
    odd = session("odd", 2)
    odd = odd.model_copy(update={"messages": (*odd.messages[:4], Message(role="user", content="odd"), odd.messages[1])})
    mixed = save_rollouts(tmp_path / "mixed.jsonl", odd, session("even", 2))
    config = settings(model, mixed, drafters=(), fast=False, workload__limit=2, replay__max_turns=3)
    (row,) = run_throughput(config, ThroughputPreset(passes=1), tmp_path / "run")
    assert set(row.outputs) == {"odd#0", "odd#1", "even#0", "even#1"}
    (note,) = read_manifest(tmp_path / "run")["notes"]
    assert note.startswith("1 rollouts end before a turn that does not render") and "no odd ones" in note
    only = save_rollouts(tmp_path / "only.jsonl", odd.model_copy(update={"messages": odd.messages[4:]}))
    with pytest.raises(ConfigError, match=r"none of the 1 rollouts has a turn to serve: .*no odd ones"):
        run_throughput(settings(model, only, drafters=(), fast=False), ThroughputPreset(passes=1), tmp_path / "other")
