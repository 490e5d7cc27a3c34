"""`train`: a drafter for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentbench_spec.cli import flags
from agentbench_spec.cli.console import console, interruptible, last_line, verb
from agentbench_spec.cli.preflight import check_models
from agentbench_spec.config import parse_options
from agentbench_spec.jsonl import require_file
from agentbench_spec.plugins import check_name
from agentbench_spec.train.options import check_folder, train_config


@verb
def train(
    drafter: Annotated[
        str,
        typer.Argument(
            help="Installed trainer, such as dlite, or module:factory.", autocompletion=flags.names("trainer")
        ),
    ],
    data: Annotated[Path, typer.Option(help="Rollouts, conversations, or a token file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the checkpoint, the log and the state.")],
    target: flags.Target = None,
    held_out: Annotated[Path | None, typer.Option(help="Texts to measure on while training.")] = None,
    regenerate: Annotated[Path | None, typer.Option(help="Token file of the target's own replies.")] = None,
    features: Annotated[Path | None, typer.Option(help="Folder that keeps target features.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Texts per step.")] = None,
    anchors: Annotated[int | None, typer.Option(help="Blocks per text and step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Texts are cut here.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    device: flags.Device = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and anchors.")] = None,
    single_stage: Annotated[bool, typer.Option("--single-stage", help="DLite: no teacher.")] = False,
    option: Annotated[list[str] | None, typer.Option(help="A trainer option, key=value; repeatable.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A training setting, key=value; repeatable.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
) -> None:
    """Train a drafter for a target and write it in its published layout."""
    given = {
        "data": str(data),
        "target": target,
        "held_out": held_out and str(held_out),
        "regenerate": regenerate and str(regenerate),
        "features": features and str(features),
        "steps": steps,
        "batch": batch,
        "anchors": anchors,
        "learning_rate": lr,
        "max_tokens": max_tokens,
        "precision": precision,
        "device": device,
        "seed": seed,
    }
    options = parse_options(option or ()) | ({"single_stage": True} if single_stage else {})
    settings = train_config(drafter, options, parse_options(set_ or ()), given)
    check_name("trainer", drafter)
    check_folder(out, resume=resume)
    for file in filter(None, (data, held_out)):
        require_file(file)
    check_models(target)
    from agentbench_spec.train.fit import train as train_drafter

    with interruptible(lambda: _way_on(out)):
        done = train_drafter(settings, out, resume=resume, say=lambda text: console.print(text, highlight=False))
    if done["first"]:
        last_line({key: value for key, value in done.items() if key != "first"})


def _way_on(folder: Path) -> str:
    if not folder.is_dir():
        return "nothing was written yet"
    if not any(folder.glob("state*")):
        return f"no state was saved yet: remove {folder} and start again"
    return "the same command with --resume goes on from the last state that was saved"
