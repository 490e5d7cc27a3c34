"""The commands that `reproduce table5` and `figure5` name, put to the parsers and factories they are meant for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, cast

import click
import pytest
import torch
import typer
from runkit import call

from agentbench_spec.cli import app
from agentbench_spec.config import load_config, parse_options
from agentbench_spec.plugins import available, load_drafter
from agentbench_spec.runs.setup import drafter_makers
from agentbench_spec.runs.trained_variants import VARIANTS, needs_training
from agentbench_spec.testing import toy_target
from agentbench_spec.train.interface import Setting
from agentbench_spec.train.options import train_config
from agentbench_spec.train.trainees import load_trainee

TABLES = sorted(VARIANTS)


def commands(table: str) -> list[list[str]]:
    """The words of each command in the refusal of a table."""
    refusal = call("reproduce", table)
    assert refusal.code == 2
    return [shlex.split(found) for found in re.findall(r"`(agentbench-spec [^`]+)`", refusal.error)]


def parsed(words: list[str]) -> dict[str, Any]:
    """What the command line makes of a command. Fails as it would for a user."""
    assert words[0] == "agentbench-spec"
    group = cast(click.Group, typer.main.get_command(app))
    command = group.commands[words[1]]
    return command.make_context(words[1], list(words[2:])).params


@pytest.mark.parametrize("table", TABLES)
def test_each_training_command_makes_what_its_run_command_loads(table: str, tmp_path: Path) -> None:
    """Fails if an option or value is not the trainer's, or the drafter named does not load what is written."""
    *training, running, _ = commands(table)
    assert len(training) == len(VARIANTS[table]) and running[1] == "run"  # type: ignore[index]
    drafters = dict(name.split("=")[::-1] for name in parsed(running)["drafter"])
    target = toy_target(layers=36, hidden=16, dtype=torch.float32)
    for words in training:
        given = parsed(words)
        flags = {"target": given["target"], "data": str(given["data"])}
        options = parse_options(given["option"]) | ({"single_stage": True} if given["single_stage"] else {})
        config = train_config(given["drafter"], options, {}, flags)
        setting = Setting(target.info, torch.zeros(target.info.vocab_size), torch.Generator().manual_seed(0))
        trainee = load_trainee(config.drafter, setting, **config.options)
        folder = tmp_path / str(given["out"])
        trainee.write(folder, trainee.phases[-1], trainee.state_dict())
        load_drafter(f"{drafters[str(given['out'])]}={folder}").open(target.info, rows=1, capacity=64)


@pytest.mark.parametrize("table", TABLES)
def test_the_run_command_compares_all_variants(table: str) -> None:
    """Fails if a variant is trained and not run, or two of them share a label and so a row."""
    running = parsed(commands(table)[-2])
    config = load_config(flags={"target.source": running["target"], "drafters": running["drafter"]})
    assert len(drafter_makers(config)) == len(VARIANTS[table]) + 1  # type: ignore[index]
    assert running["workload"] in available("workload")


def test_tables_of_published_drafters_need_no_training() -> None:
    """Fails if a table that a run can fill is refused."""
    assert needs_training("table3") is None


def test_commands_name_the_target_asked_for() -> None:
    """Fails if someone who asks for one target is told to train for another, or not of the offline form."""
    error = call("reproduce", "table5", "--target", "my/model").error
    assert error.count("--target my/model ") == len(VARIANTS["table5"]) + 1 and "Qwen" not in error
    assert "`agentbench-spec reproduce table5 --embedded`" in error
