"""Train a drafter that the package ships for smollm2-135m, and put it there with its model card.

usage: python scripts/embedded_drafters.py {data,eagle3,dflash,dspark,dlite,cards} [--work FOLDER]

A drafter's name does everything that is missing: rollouts, the target's replies, target states, training (a killed one
goes on), the checkpoint in agentbench_spec/data/smollm2-135m/ and its card. All four have the same texts, steps and
blocks. `cards` writes the cards again, with the figures of the run recorded under results/.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentbench_spec.engine.embedded import NAME as TARGET
from agentbench_spec.jsonl import file_sha256
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Rollout, read_rollouts, write_rollouts
from agentbench_spec.train.fit import train
from agentbench_spec.train.options import TrainConfig
from agentbench_spec.train.regenerate import regenerate

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "agentbench_spec" / "data" / TARGET
RECORDED = ROOT / "results" / "recorded" / "bfcl-v3-smollm2-135m"

OPTIONS: dict[str, dict[str, Any]] = {
    "eagle3": {"draft_vocab_size": 4096, "start": "target"},
    "dflash": {"depth": 2, "taps": 3, "block_size": 8, "start": "target", "near": 48},
    "dspark": {"depth": 2, "taps": 3, "block_size": 7, "rank": 32, "tables": False, "start": "target", "near": 48},
    "dlite": {"depth": 2, "slots": 7, "rank": 56, "window": 32, "teacher_share": 0.5, "start": "target"},
}
"""Small enough for a CPU, and below 80 MB together."""
STEPS = 1200
TEXTS = 765
SHARED: dict[str, Any] = {
    "steps": STEPS,
    "batch": 2,
    "learning_rate": 1.5e-3,
    "anchors": 64,
    "loss_tokens": 8192,
    "max_tokens": 4096,
    "min_supervised_tokens": 8,
    "max_new_tokens": 96,
    "feature_layers": (0, 1, 8, 14, 15, 21, 26, 27, 28, 29),
    "checkpoint_dtype": "float16",
    "evaluate_every": 600,
    "save_every": 100,
    "threads": 1,
    "seed": 42,
}
PARTS = (range(40), range(99, 157))
"""Rollouts trained on, of those whose scenario is not held out: two processes had answered these when time was up."""
BUILT = 260
HELD_OUT_ROLLOUTS = 5
"""Of the shipped rollouts; measured during training, which makes no choice by them."""


def scenario(rollout: Rollout) -> Any:
    """BFCL's categories are variants of the same scenarios, so rollouts are told apart by it."""
    return rollout.labels["scenario"]


def write_data(work: Path) -> None:
    """The two rollout files and the target's replies to both, unless they are there."""
    train_file, held_out_file = work / "train.jsonl", work / "held_out.jsonl"
    if not (train_file.is_file() and held_out_file.is_file()):
        built = list(load_workload("bfcl_v3", tools="involved").rollouts(limit=BUILT, seed=0))
        shipped = list(read_rollouts(ROOT / "workloads" / "data" / "bfcl_v3_shipped.jsonl"))
        held_out = {scenario(rollout) for rollout in (*shipped, *built[:20])}
        usable = [rollout for rollout in built if scenario(rollout) not in held_out]
        write_rollouts(held_out_file, shipped[:HELD_OUT_ROLLOUTS])
        write_rollouts(train_file, [usable[index] for part in PARTS for index in part])
    for name in ("train", "held_out"):
        regenerate(TrainConfig(drafter="eagle3", data=str(work / f"{name}.jsonl"), **SHARED), replies(work, name))


def replies(work: Path, name: str) -> Path:
    """The token file of the target's replies."""
    return work / f"{name}_replies.jsonl"


def train_one(name: str, work: Path) -> None:
    """Train `name` to the end and copy the checkpoint into the package."""
    config = TrainConfig(
        drafter=name,
        options=OPTIONS[name],
        target=TARGET,
        data=str(replies(work, "train")),
        held_out=str(replies(work, "held_out")),
        features=str(work / "features"),
        **SHARED,
    )
    out, place = work / name, SHIPPED / name
    train(config, out, resume=(out / "train.json").is_file())
    place.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        shutil.copy2(out / file, place / file)
    (place / "training.json").write_text(json.dumps(facts(name, out, work), indent=1) + "\n", "utf-8")


def facts(name: str, out: Path, work: Path) -> dict[str, Any]:
    """What the card says about the training, from what the trainer wrote."""
    manifest = json.loads((out / "train.json").read_text("utf-8"))
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text("utf-8").splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    measured = [row for row in rows if row["kind"] == "held_out"][-1]
    return {
        "options": OPTIONS[name],
        "parameters": manifest["model"]["parameters"],
        "bytes": (out / "model.safetensors").stat().st_size,
        "steps": {phase["name"]: phase["steps"] for phase in manifest["phases"]},
        "batch": SHARED["batch"],
        "seed": SHARED["seed"],
        "texts": manifest["data"]["texts"],
        "supervised_tokens": manifest["data"]["supervised_tokens"],
        "replies_sha256": file_sha256(replies(work, "train")),
        "blocks": sum(row["blocks"] for row in trained),
        "positions": sum(row["positions"] for row in trained),
        "seconds": round(sum(row["seconds"] for row in trained)),
        "held_out": {key: measured[key] for key in ("loss", "token_accuracy", "prefix_acc", "blocks")},
    }


def card(name: str) -> str:
    """The model card of a shipped drafter, from its training.json and the recorded run."""
    known = json.loads((SHIPPED / name / "training.json").read_text("utf-8"))
    options = ", ".join(f"`{key}={value}`" for key, value in known["options"].items())
    steps = ", ".join(f"{count} ({phase})" for phase, count in known["steps"].items())
    held = known["held_out"]
    lines = [
        f"# {name} for {TARGET}",
        "",
        f"A small {name} drafter for SmolLM2-135M-Instruct as this suite converts it (`{TARGET}`), trained by this "
        f"suite for its demo on CPUs: `agentbench-spec run --drafter {name}`. Published layout, float16, "
        f"{known['bytes'] / 1e6:.1f} MB.",
        "",
        "| | |",
        "|---|---|",
        f"| options | {options} |",
        f"| parameters in training | {known['parameters']:,} |",
        f"| data | BFCL-v3 multi-turn (bfcl-eval 2025.7.9, Apache-2.0), {sum(map(len, PARTS))} rollouts: the target's "
        f"own greedy replies, at most {SHARED['max_new_tokens']} tokens, to the recorded contexts up to "
        f"{SHARED['max_tokens']} tokens: {known['texts']} texts, {known['supervised_tokens']:,} supervised tokens, "
        f"SHA-256 {known['replies_sha256'][:16]}... |",
        "| split | by BFCL scenario: no scenario of the shipped rollouts (the demo's) is in the data |",
        f"| budget | steps: {steps}; {known['batch']} texts a step; learning rate "
        f"{SHARED['learning_rate']}; {known['blocks']:,} blocks, {known['positions']:,} "
        f"predicted positions, {known['seconds'] / 60:.0f} min on one thread of a busy two-core Xeon |",
        f"| losses over | {SHARED['loss_tokens']} tokens a step: frequent ones, labels, and a sample of the rest "
        "(EAGLE-3: its draft vocabulary) |",
        f"| seed | {known['seed']} |",
        f"| command | `python scripts/embedded_drafters.py {name}` |",
        f"| held out, teacher-forced | loss {held['loss']:.3f}, token accuracy {held['token_accuracy']:.3f}, "
        f"1 + leading correct run {held['prefix_acc']:.2f} ({held['blocks']} blocks of {HELD_OUT_ROLLOUTS} rollouts) |",
        *_decoded(name),
        "",
        "It has seen one kind of text and one target. It says nothing about how its method does on a large target; for "
        "that, take published checkpoints.",
    ]
    return "\n".join(lines) + "\n"


def write_card(name: str) -> None:
    """README.md beside the weights."""
    (SHIPPED / name / "README.md").write_text(card(name), "utf-8")


def _decoded(name: str) -> list[str]:
    """The table's lines about the recorded run; none if it did not have this drafter."""
    summary = json.loads((RECORDED / "summary.json").read_text("utf-8"))
    command = json.loads((RECORDED / "manifest.json").read_text("utf-8"))["argv"]
    found = [own for own in summary["drafters"] if own["drafter"] == name]
    return [
        f"| decoded, held-out rollouts | τ {own['tau']['pooled']:.2f} {_bounds(own['tau_interval'])}, decode speed-up "
        f"{own['speedup']['pooled']:.2f} {_bounds(own['speedup_interval'])}, k = {own['k']}, {own['turns']} turns of "
        f"{own['rollouts']} rollouts; `{' '.join(['agentbench-spec', *command[1:]])}`, recorded in "
        f"`{RECORDED.relative_to(ROOT)}` |"
        for own in found
    ]


def _bounds(interval: dict[str, Any]) -> str:
    return f"[{interval['low']:.2f}, {interval['high']:.2f}]"


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("data", *OPTIONS, "cards"))
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "drafters", help="rollouts, states and training")
    given = parser.parse_args(argv)
    if given.what == "cards":
        for name in OPTIONS:
            write_card(name)
        return
    given.work.mkdir(parents=True, exist_ok=True)
    write_data(given.work)
    if given.what != "data":
        train_one(given.what, given.work)
        write_card(given.what)


if __name__ == "__main__":
    main()
