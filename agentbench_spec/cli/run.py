"""`run`: rollouts turn by turn with every drafter, into a run folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentbench_spec.cli import flags
from agentbench_spec.cli.console import console, interruptible, last_line, say, verb
from agentbench_spec.cli.dry_runs import refuse_speeds, show_dry_run
from agentbench_spec.cli.preflight import (
    check_backend,
    check_servers,
    refuse_server_options,
    warn,
)
from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import check_name
from agentbench_spec.runs.early import check_drafters, check_hub
from agentbench_spec.runs.keywords import PLACES
from agentbench_spec.runs.scale.shards import Shard, begun_at, begun_shards
from agentbench_spec.runs.source import check_workload, configured_workload
from agentbench_spec.serving.anywhere import How, run_anywhere

if TYPE_CHECKING:
    from agentbench_spec.runs.execute import Outcome
    from agentbench_spec.runs.scale.on_ray import Joined
    from agentbench_spec.serving.served_run import ServedRun

_MOST_NOTES = 5


@verb
def run(
    target: flags.Target = None,
    workload: flags.Workload = None,
    data: flags.Data = None,
    offline_standin: flags.Standin = False,
    drafter: flags.Drafters = None,
    limit: Annotated[int | None, typer.Option(help="Rollouts to replay.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Turns per rollout.")] = None,
    k: flags.DraftTokens = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Output cap of a turn.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    mode: Annotated[str | None, typer.Option(help="generate, or forced (the record is emitted).")] = None,
    history: Annotated[str | None, typer.Option(help="recorded, or self (the target's own words).")] = None,
    live: Annotated[bool, typer.Option("--live", help="Carry out the target's own calls: tasks, not records.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling and rollout selection.")] = None,
    aa: flags.Again = None,
    device: flags.Device = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float64, float32, bfloat16, float16.")] = None,
    graphs: flags.CudaGraphs = None,
    backend: flags.Backend = None,
    base_url: flags.BaseUrls = None,
    launch: flags.Launch = None,
    api_key: flags.ApiKey = None,
    concurrency: Annotated[int | None, typer.Option(help="Rollouts in flight on each server.")] = None,
    client: Annotated[str | None, typer.Option(help="generate (token ids), or chat (OpenAI route).")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")] = None,
    set_: flags.Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default results/<time>-<target>-<workload>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, with its own settings.")] = False,
    shard: flags.Shard = None,
    on: flags.On = None,
    shards: flags.Shards = None,
    dry_run: flags.DryRun = False,
    speeds: flags.Speeds = None,
) -> None:
    """Replay rollouts turn by turn with every drafter and write a run folder."""
    check_backend(backend, base_url, launch)
    refuse_speeds(speeds, dry_run)
    asked = locals() | {
        "data": str(data) if data else None,
        "offline_standin": offline_standin or None,
        "drafters": drafter or None,
        "history": "live" if live else history,
        "base_urls": flags.urls(base_url) or None,
    }
    given = {place: asked[name] for name, place in PLACES.items()}
    out = out if out is None or dry_run else _place(out)
    settings = _settings(given, config, set_, out, resume=resume)
    if settings.backend == "engine":
        refuse_server_options({"--concurrency": concurrency, "--client": client, "--api-key": api_key})
    part = Shard.parse(shard) if shard else None
    how = How(resume=resume, api_key=api_key, shard=part, on=on, shards=shards)
    _check_early(settings, out, how)
    if dry_run:
        show_dry_run(settings, speeds, out if resume else None, part)
        return
    _show(_replay(settings, out, how))


def _place(out: Path) -> Path:
    from agentbench_spec.results.machines.store import writing

    return writing(out)


def _settings(
    given: Mapping[str, Any], file: Path | None, assignments: list[str] | None, out: Path | None, *, resume: bool
) -> RunConfig:
    if not resume:
        return load_config(file, assignments or (), given)
    if out is None:
        raise ConfigError("--resume needs --out, the folder of the run to continue")
    from agentbench_spec.results.folder import read_manifest

    return load_config(file, assignments or (), given, base=read_manifest(begun_at(out)).get("settings"))


def _check_early(settings: RunConfig, out: Path | None, how: How) -> None:
    """Raises ConfigError for names, folders, data and servers that would be refused after torch is loaded."""
    wanted = settings.workload
    how.refuse(settings, out)
    if settings.replay.history == "live":
        check_name("environment", wanted.name)
    else:
        check_workload(wanted.name, wanted.options, lenient=wanted.lenient)
    if settings.backend != "engine":
        check_servers(settings)
    else:
        check_drafters(settings.drafters)
    if out is not None and not how.on and not (how.resume and settings.backend != "engine"):
        from agentbench_spec.results.writer import refuse_early

        refuse_early(out, settings.model_dump(mode="json"), resume=how.resume)
    check_hub(settings, warn)
    if settings.replay.history != "live":
        configured_workload(settings)


def _replay(settings: RunConfig, out: Path | None, how: How) -> Outcome | ServedRun | Joined:
    from agentbench_spec.runs.execute import new_folder  # loads torch

    folder = out or new_folder(settings.named_target or settings.backend, settings.workload.name)
    with interruptible(lambda: _way_to_resume(folder)):
        return run_anywhere(settings, folder, how, lambda line: say(line, "dim"))


def _way_to_resume(folder: Path) -> str:
    from agentbench_spec.results.machines.store import shown

    if begun_shards(folder):
        return f"continue with: agentbench-spec run --on ray --resume --out {shlex.quote(shown(folder))}"
    if not (folder / "manifest.json").is_file():
        return "nothing was written yet"
    return f"continue with: agentbench-spec run --resume --out {shlex.quote(shown(folder))}"


def _show(done: Outcome | ServedRun | Joined) -> None:
    """The table and what to think of it; exit code 1 if the run is void."""
    from agentbench_spec.results.derived.tasks import task_lines, tasks_by_drafter
    from agentbench_spec.results.machines.store import shown
    from agentbench_spec.results.summary import render, summary_dict
    from agentbench_spec.results.verdict import failed_drafters, reasons

    stood_there = len(done.card.lines(())) if done.card else 0  # before the run
    for line in done.card.lines(done.rows)[stood_there:] if done.card else ():
        say(line)
    console.print(render(done.summary))
    for line in task_lines(tasks_by_drafter(done.rows)):
        say(line)
    for reason in reasons(done.rows):
        say(reason, "yellow")
    for note in done.notes[:_MOST_NOTES]:
        say(f"note: {note}", "yellow")
    if len(done.notes) > _MOST_NOTES:
        say(f"note: {len(done.notes) - _MOST_NOTES} more in {done.folder / 'manifest.json'}", "yellow")
    say(f"rows, manifest and summary: {shown(done.folder)}")
    last_line(
        {
            "run": shown(done.folder),
            "lossless": done.lossless,
            "measured": done.measured,
            "void": done.void,
            "notes": done.notes,
            **summary_dict(done.summary),
        }
    )
    for reason in done.void:
        say(reason, "red", "void: ")
    failed = failed_drafters(done.rows) if done.measured else []
    for name in failed:
        say(f"{name}: not one turn could be decoded", "red", "failed: ")
    if done.void or failed:
        raise typer.Exit(1)
