"""`reproduce figure4b --embedded` from end to end on a tiny model: train, be killed, go on, compare, lay out."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from localmodel import save_rollouts, session
from runkit import call

from agentbench_spec.errors import ConfigError
from agentbench_spec.reproduce.arms import FINISHED, split
from agentbench_spec.reproduce.trained import held_out_rows
from agentbench_spec.runs.presets import TrainingPreset, load_presets
from agentbench_spec.train.state import STATE

PRESETS = """
[settings]
[stated]
[open]
[checkpoints]
[embedded]
target = "{target}"
drafters = []
orientation = "Qwen3-4B"
[embedded.settings]
"decode.k" = 3
"decode.max_new_tokens" = 24
"target.fast_linears" = false
[training]
workload = "{rollouts}"
held_out = 4
train = 8
[training.settings]
steps = 80
batch = 1
anchors = 16
learning_rate = 1e-2
max_new_tokens = 24
min_supervised_tokens = 8
evaluate_every = 20
save_every = 5
threads = 1
feature_layers = [0, 1]
[figure4b]
title = "losses"
drafters = []
figures = ["tau_raw", "tau"]
arms = [
    {{ name = "learns", options = {{ {small}, loss = "kl_target" }} }},
    {{ name = "hardly learns", options = {{ {small}, loss = "ce" }}, settings = {{ learning_rate = 1e-7 }} }},
]
"""
SMALL = "single_stage = true, depth = 1, target_layer_ids = [0, 1], rank = 16, block_size = 4"


@pytest.fixture(scope="module")
def presets(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Presets with two arms, of which the second has a learning rate that changes nothing."""
    folder = tmp_path_factory.mktemp("presets")
    rollouts = save_rollouts(folder / "twelve.jsonl", *(session(f"s{i}", 2, pad=5 * i) for i in range(12)))
    path = folder / "presets.toml"
    path.write_text(PRESETS.format(target=tiny, rollouts=rollouts, small=SMALL), "utf-8")
    return path


@pytest.fixture(scope="module")
def results(presets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results folder with the figure in it, made without a break."""
    folder = tmp_path_factory.mktemp("results")
    done = call("reproduce", "figure4b", "--embedded", "--presets", presets, "--results", folder)
    assert done.code == 0, done.err
    return folder


def test_the_better_arm_comes_out_better(results: Path) -> None:
    """Fails if arms are mixed up on the way from training to the table, or the curve is not the arm's."""
    (folder,) = results.glob("figure4b-*")
    table = pd.read_csv(folder / "figure4b.csv").set_index(["drafter", "figure"])["pooled"]
    assert table["learns", "tau_raw"] > table["hardly learns", "tau_raw"] + 0.2
    drawn = pd.read_csv(folder / "figure4b_curves.csv")
    drawn = drawn[drawn["figure"] == "1 + leading correct run"].set_index("method")
    assert list(drawn.loc["learns", "steps"]) == [20, 40, 60, 80]
    assert drawn.loc["learns", "value"].iloc[-1] > drawn.loc["hardly learns", "value"].iloc[-1] + 0.1
    text = (folder / "figure4b.md").read_text("utf-8")
    assert "in form only" in text and "loss=kl_target" in text
    assert (folder / "figures" / "figure4b.svg").is_file() and "losses: over training" in (
        folder / "figure4b.html"
    ).read_text("utf-8")


def arms(results: Path) -> dict[str, Path]:
    """Arm's folder by the beginning of its name."""
    found = [path for path in (results / "training").iterdir() if not path.name.startswith("data-")]
    return {path.name.rpartition("-")[0]: path for path in found}


def test_a_killed_arm_goes_on_and_a_finished_one_is_reused(results: Path, presets: Path, tmp_path: Path) -> None:
    """Killed in the second arm, the same command ends with the weights of an unbroken run.

    Fails if an arm is begun anew, counted as finished while it is not, or trained twice.
    """
    kept = tmp_path / "results"
    words = ("reproduce", "figure4b", "--embedded", "--presets", str(presets), "--results", str(kept))
    process = subprocess.Popen(
        [sys.executable, "-m", "agentbench_spec", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while not list(kept.glob(f"training/hardly*/{STATE}")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    broken = arms(kept)
    assert (broken["learns"] / FINISHED).is_file() and not (broken["hardly_learns"] / FINISHED).is_file()
    done = call(*words)
    assert done.code == 0, done.err
    assert "learns: reusing" in done.err and "hardly learns: going on in" in done.err
    for name, folder in arms(results).items():
        whole, again = ((path / "model.safetensors").read_bytes() for path in (folder, broken[name]))
        assert whole == again, name
        log = [json.loads(line) for line in (broken[name] / "log.jsonl").read_text("utf-8").splitlines()]
        assert [row["step"] for row in log if row["kind"] == "train"] == list(range(1, 81))


def test_an_arm_without_a_state_begins_anew_and_other_texts_are_refused(
    results: Path, presets: Path, tmp_path: Path
) -> None:
    """Fails if a folder left by a kill before the first state stops the command, or an arm outlives its data."""
    kept = shutil.copytree(results, tmp_path / "results")
    words = ("reproduce", "figure4b", "--embedded", "--presets", str(presets), "--results", str(kept))
    hardly = arms(kept)["hardly_learns"]
    for name in (FINISHED, STATE):
        (hardly / name).unlink()
    done = call(*words)
    assert done.code == 0 and "hardly learns: training in" in done.err, done.err
    manifest = hardly / "train.json"
    tree = json.loads(manifest.read_text("utf-8"))
    manifest.write_text(json.dumps({**tree, "data": {**tree["data"], "sha256": "0" * 64}}), "utf-8")
    assert "other texts" in call(*words).error


def test_a_teachers_own_steps_are_not_its_students(tmp_path: Path) -> None:
    """Fails if a two-stage arm is drawn to the right of the others by as many steps as its teacher took."""
    rows = [
        {"kind": kind, "step": step, "phase": phase}
        for step, phase in enumerate(("teacher", "teacher", "student", "student"), 1)
        for kind in ("train", "held_out")
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert [row["step"] for row in held_out_rows(tmp_path)] == [1, 2]


def test_no_scenario_is_on_both_sides() -> None:
    """Fails if a variant of a held-out scenario is trained on."""
    rollouts = [session(f"r{i}", labels={"scenario": i % 3}) for i in range(9)]
    preset = TrainingPreset(workload="w", held_out=2, train=5, settings={})
    held_out, learnt = split(rollouts, preset)
    assert [rollout.id for rollout in held_out] == ["r0", "r1"]
    assert [rollout.id for rollout in learnt] == ["r2", "r5", "r8"]
    with pytest.raises(ConfigError, match="none to train on"):
        split(rollouts[:2], preset)


def test_shipped_arms_fit_the_embedded_target_and_share_their_states() -> None:
    """Fails if an arm's options are not the trainer's, two arms of a table are one, or states would be stored twice."""
    import torch

    from agentbench_spec.testing import toy_target
    from agentbench_spec.train.interface import Setting
    from agentbench_spec.train.trainees import load_trainee

    presets = load_presets()
    assert presets.training is not None
    stored = set(presets.training.settings["feature_layers"])
    target = toy_target(layers=30, hidden=64, dtype=torch.float32)
    for name in ("table5", "figure4b", "figure5"):
        own = presets.tables[name].arms  # type: ignore[index]
        assert len({repr((arm.options, arm.settings)) for arm in own}) == len(own) >= 2
        for arm in own:
            options = {**arm.options, "start": "random"}
            setting = Setting(target.info, torch.zeros(target.info.vocab_size), torch.Generator().manual_seed(0))
            trainee = load_trainee("dlite", setting, **options)
            assert {*trainee.hidden_layers, target.info.num_layers - 1} <= stored, arm.name
