"""`swebench-predictions`: what sessions submitted, in the file that the package `swebench` grades."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from agentbench_spec.cli.console import last_line, say, verb
from agentbench_spec.errors import ConfigError

_MOST_LISTED = 50


@verb
def swebench_predictions(
    sessions: Annotated[
        Path, typer.Argument(metavar="RUN_OR_ROLLOUTS", help="Folder of a live run, or a rollouts file.")
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; default predictions.jsonl beside the sessions.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name in it; default: as the sessions say.")] = None,
    dataset: Annotated[
        str, typer.Option(help="Data set that the grading command names.")
    ] = "SWE-bench/SWE-bench_Verified",
) -> None:
    """Write the diffs that sessions submitted as predictions for SWE-bench, and print the command that grades them."""
    from agentbench_spec.rollout import read_rollouts
    from agentbench_spec.rollouts.predictions import predictions_of, read_by_swebench, write_predictions

    file = _sessions_of(sessions)
    made = predictions_of(read_rollouts(file), model)
    for what, why in made.left_out[:_MOST_LISTED]:
        say(f"left out: {what}: {why}", "yellow")
    if len(made.left_out) > _MOST_LISTED:
        say(f"left out: {len(made.left_out) - _MOST_LISTED} more, all in the JSON line", "yellow")
    if not made.found:
        raise ConfigError(f"{file}: not one session submitted a diff for an instance of SWE-bench")
    path = out or file.with_name("predictions.jsonl")
    if path.exists() and path.samefile(file):
        raise ConfigError(f"--out {path}: is the file that is read; name another")
    write_predictions(path, made.found)
    unread = read_by_swebench(path, made.found)
    say(f"{len(made.found)} predictions written to {path}" + ("" if unread else ", and read by swebench's own loader"))
    if unread:
        say(f"swebench could not be asked to read them: {unread}", "yellow")
    run_id = sessions.resolve().name.partition(".")[0]
    command = ["python", "-m", "swebench.harness.run_evaluation", "--dataset_name", dataset]
    command += ["--predictions_path", str(path), "--run_id", run_id]
    say(f"grade with: {shlex.join(command)}")
    last_line(
        {
            "file": str(path),
            "predictions": len(made.found),
            "left_out": [{"session": what, "why": why} for what, why in made.left_out],
            "read_by_swebench": unread is None,
            "command": command,
        },
        path,
    )


def _sessions_of(given: Path) -> Path:
    """The rollouts file that is meant. Raises ConfigError for a run in which nobody could submit anything."""
    if not given.is_dir():
        return given
    from agentbench_spec.results.folder import LIVE, read_manifest

    read_manifest(given)
    if parts := sorted(given.glob(f"parts/*/{LIVE}")):
        names = ", ".join(str(path.parent) for path in parts)
        raise ConfigError(f"{given}: each drafter has sessions of its own, in its part of the run; name one: {names}")
    if not (given / LIVE).is_file():
        raise ConfigError(
            f"{given}: holds no live sessions ({LIVE}), so its target submitted nothing; for recorded ones give the "
            "rollouts file that was replayed"
        )
    return given / LIVE
