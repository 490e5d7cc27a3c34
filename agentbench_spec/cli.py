"""The command line: verbs over the library. Tables go to stderr, one JSON line comes last on stdout.

Exit codes: 0 fine; 1 the run is void or a check failed; 2 the input cannot be used.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from agentbench_spec.errors import AgentBenchError, ConfigError

if TYPE_CHECKING:
    from agentbench_spec.rollout import Workload

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, help=__doc__)
rollouts_app = typer.Typer(no_args_is_help=True, help="Build, check and describe rollout files.")
app.add_typer(rollouts_app, name="rollouts")

console = Console(stderr=True)
P = ParamSpec("P")

Assignments = Annotated[list[str] | None, typer.Option("--set", help="A setting, section.key=value; repeatable.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]


@contextmanager
def _errors() -> Iterator[None]:
    """User errors are one plain line and exit code 2; a void measurement or a broken plugin is exit code 1."""
    try:
        yield
    except ConfigError as error:
        console.print(f"[bold red]error:[/] {_plain(str(error))}", highlight=False)
        raise typer.Exit(2) from None
    except AgentBenchError as error:
        console.print(f"[bold red]{type(error).__name__}:[/] {_plain(str(error))}", highlight=False)
        raise typer.Exit(1) from None


def _command(function: Callable[P, None]) -> Callable[P, None]:
    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # so that "my_pkg.drafter:make" works from a checkout
        with _errors():
            function(*args, **kwargs)

    return guarded


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


def _last_line(value: dict[str, Any]) -> None:
    print(json.dumps(value, allow_nan=False), flush=True)


@app.command()
@_command
def run(
    target: Annotated[str | None, typer.Option(help="Hub id, local folder, or smollm2-135m.")] = None,
    workload: Annotated[str | None, typer.Option(help="Installed workload, module:factory, or a .jsonl file.")] = None,
    drafter: Annotated[list[str] | None, typer.Option(help="Name, module:factory, or NAME=CHECKPOINT.")] = None,
    limit: Annotated[int | None, typer.Option(help="Rollouts to replay.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Turns per rollout.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Draft tokens per round.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Output cap of a turn.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    mode: Annotated[str | None, typer.Option(help="generate, or forced (the record is emitted).")] = None,
    history: Annotated[str | None, typer.Option(help="recorded, or self (the target's own words).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling and rollout selection.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16.")] = None,
    config: ConfigFile = None,
    set_: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default results/<time>-<target>-<workload>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the killed run in --out.")] = False,
) -> None:
    """Replay rollouts turn by turn with every drafter and write a run folder."""
    from agentbench_spec.config import load_config
    from agentbench_spec.run import run as run_rollouts
    from agentbench_spec.runfolder import read_run
    from agentbench_spec.summary import render, summary_dict

    flags = {
        "target.source": target,
        "target.device": device,
        "target.dtype": dtype,
        "workload.name": workload,
        "workload.limit": limit,
        "drafters": drafter or None,
        "decode.k": k,
        "decode.max_new_tokens": max_new_tokens,
        "decode.temperature": temperature,
        "decode.mode": mode,
        "replay.history": history,
        "replay.max_turns": max_turns,
        "measure.seed": seed,
    }
    settings = load_config(config, set_ or (), flags)
    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the run to continue")
    folder = out or _new_folder(settings.target.source, settings.workload.name)
    done = run_rollouts(settings, folder, resume=resume)
    for line in done.card.lines(read_run(done.folder)[1]):
        console.print(line, highlight=False)
    console.print(render(done.summary))
    console.print(f"rows, manifest and summary: {done.folder}", highlight=False)
    _last_line({"run": str(done.folder), "lossless": done.lossless, **summary_dict(done.summary)})
    if not done.lossless:
        console.print("[bold red]void:[/] a greedy output differs from plain decoding by more than a near tie")
        raise typer.Exit(1)


def _new_folder(target: str, workload: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("results") / f"{stamp}-{Path(target).name}-{Path(workload).name.partition('.')[0]}"


@app.command("list")
@_command
def list_() -> None:
    """What is installed: drafters, workloads and trainers, and the package each comes from."""
    from agentbench_spec.plugins import Kind, available

    table = Table("kind", "name", "from")
    kinds: tuple[Kind, ...] = ("drafter", "workload", "trainer")
    found = {kind: available(kind) for kind in kinds}
    for kind, names in found.items():
        for name, origin in names.items():
            table.add_row(kind, name, origin)
    console.print(table)
    _last_line({kind: sorted(names) for kind, names in found.items()})


@app.command()
@_command
def doctor(
    device: Annotated[str, typer.Option(help="Device whose memory is measured.")] = "auto",
) -> None:
    """Versions, device, threads, memory bandwidth; what is missing and the command that adds it."""
    from agentbench_spec.doctor import examine

    report = examine(device)
    table = Table("what", "found", "if missing")
    for check in report.checks:
        table.add_row(check.name, check.found or "[red]missing[/]", "" if check.found else _plain(check.remedy))
    console.print(table)
    _last_line(report.as_dict())


@app.command()
@_command
def check(
    drafter: Annotated[str, typer.Argument(help="Name, module:factory, or NAME=CHECKPOINT.")],
    on: Annotated[str, typer.Option(help="Targets to check on, comma-separated: toy, embedded.")] = "toy,embedded",
    reference: Annotated[str | None, typer.Option(help="A slow, plain drafter that must propose the same.")] = None,
    floor: Annotated[float | None, typer.Option(help="Least τ on the embedded target.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A drafter option, key=value; repeatable.")] = None,
) -> None:
    """Does a drafter keep its contract? Says which law broke, and at which call."""
    from agentbench_spec.config import parse_options
    from agentbench_spec.contract import check_drafter

    report = check_drafter(
        drafter, on=tuple(on.split(",")), reference=reference, floor=floor, options=parse_options(set_ or ())
    )
    console.print(report)
    _last_line(report.as_dict())
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@app.command()
@_command
def train(
    drafter: Annotated[str, typer.Argument(help="Installed trainer, such as dlite, or module:factory.")],
    data: Annotated[Path, typer.Option(help="Rollouts, conversations, or a token file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the checkpoint, the log and the state.")],
    target: Annotated[str | None, typer.Option(help="Hub id, local folder, or smollm2-135m.")] = None,
    held_out: Annotated[Path | None, typer.Option(help="Texts to measure on while training.")] = None,
    regenerate: Annotated[Path | None, typer.Option(help="Token file of the target's own replies.")] = None,
    features: Annotated[Path | None, typer.Option(help="Folder that keeps target features.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Texts per step.")] = None,
    anchors: Annotated[int | None, typer.Option(help="Blocks per text and step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Texts are cut here.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and anchors.")] = None,
    single_stage: Annotated[bool, typer.Option("--single-stage", help="DLite: no teacher.")] = False,
    option: Annotated[list[str] | None, typer.Option(help="A trainer option, key=value; repeatable.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A training setting, key=value; repeatable.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
) -> None:
    """Train a drafter for a target and write it in its published layout."""
    from agentbench_spec.config import parse_options
    from agentbench_spec.train.config import train_config
    from agentbench_spec.train.run import train as train_drafter

    flags = {
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
    settings = train_config(drafter, options, parse_options(set_ or ()), flags)
    done = train_drafter(settings, out, resume=resume, say=lambda text: console.print(text, highlight=False))
    if done["first"]:
        _last_line({key: value for key, value in done.items() if key != "first"})


@rollouts_app.command("build")
@_command
def build(
    workload: Annotated[str, typer.Argument(help="Installed workload or module:factory.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Rollouts file to write (.jsonl or .jsonl.gz).")],
    limit: Annotated[int | None, typer.Option(help="Rollouts; a smaller limit is a subset of a larger one.")] = None,
    seed: int = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A workload option, key=value; repeatable.")] = None,
) -> None:
    """Build a workload's rollouts and write them as JSON lines."""
    from agentbench_spec.rollout import write_rollouts

    source = _workload(workload, set_ or [])
    written = write_rollouts(out, source.rollouts(limit=limit, seed=seed))
    console.print(f"{written} rollouts written to {out}", highlight=False)
    _last_line({"rollouts": written, "file": str(out)})


def _workload(name: str, assignments: list[str]) -> Workload:
    from agentbench_spec.config import parse_options
    from agentbench_spec.run import open_workload

    return open_workload(name, parse_options(assignments))


@rollouts_app.command("validate")
@_command
def validate(path: Annotated[Path, typer.Argument(help="Rollouts file.")]) -> None:
    """Check every line of a rollouts file; names line, field and reason of each bad one."""
    from agentbench_spec.rollout_stats import validate_rollouts

    report = validate_rollouts(path)
    for bad in report.bad:
        console.print(f"[red]{_plain(str(bad))}[/]", highlight=False)
    for warning in report.warnings:
        console.print(f"[yellow]{_plain(warning)}[/]", highlight=False)
    console.print(
        f"{report.rollouts} good rollouts, {report.decode_points} decode points, {len(report.bad)} bad lines",
        highlight=False,
    )
    _last_line({"ok": report.ok, "rollouts": report.rollouts, "bad": len(report.bad), "sha256": report.sha256})
    if not report.ok:
        raise typer.Exit(1)


@rollouts_app.command("stats")
@_command
def stats(
    source: Annotated[str, typer.Argument(help="Rollouts file, installed workload, or module:factory.")],
    target: Annotated[str | None, typer.Option(help="Count tokens with this target's tokenizer and template.")] = None,
    limit: int | None = None,
    seed: int = 0,
    by: Annotated[Literal["category", "workload"], typer.Option(help="What to group by.")] = "category",
    set_: Annotated[list[str] | None, typer.Option("--set", help="A workload option, key=value; repeatable.")] = None,
    output: Annotated[Literal["table", "csv"], typer.Option(help="What is shown.")] = "table",
) -> None:
    """Turns, messages, tool calls, and with --target prompt tokens, of a set of rollouts."""
    from agentbench_spec.models import load_tokenizer
    from agentbench_spec.render import Renderer
    from agentbench_spec.rollout_stats import rollout_stats, summarize

    renderer = Renderer(load_tokenizer(target)) if target else None
    each = rollout_stats(
        _workload(source, set_ or []).rollouts(limit=limit, seed=seed),
        prompt_tokens=(lambda rollout, index: len(renderer.prompt(rollout, index))) if renderer else None,
    )
    grouped = summarize(each, by)
    if output == "csv":
        print(each.to_csv(index=False), end="")
        return
    console.print(grouped.to_string(), highlight=False)
    _last_line({"rollouts": len(each), "groups": json.loads(grouped.to_json(orient="index"))})


if __name__ == "__main__":
    app()
