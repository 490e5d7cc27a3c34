"""`reproduce`: a table of the paper, its values beside ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentbench_spec.cli import flags
from agentbench_spec.cli.console import interruptible, last_line, say, verb
from agentbench_spec.cli.dry_runs import refuse_speeds, show_table_plan
from agentbench_spec.cli.preflight import (
    check_backend,
    check_models,
    check_servers,
    refuse_server_options,
)
from agentbench_spec.cli.sheets import print_sheet
from agentbench_spec.config import load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.runs.early import check_drafters, checkpoints

if TYPE_CHECKING:
    from agentbench_spec.reproduce.plan import Request

_KNOWN = "table1 to table5, figure1b, figure4b, figure5 or ksweep."
_RESULTS = Path("results/reproduce")


@verb
def reproduce(
    table: Annotated[str, typer.Argument(help=_KNOWN, autocompletion=flags.tables)],
    target: flags.Target = None,
    embedded: Annotated[bool, typer.Option("--embedded", help="Offline data, and smollm2-135m if no target.")] = False,
    drafter: Annotated[list[str] | None, typer.Option(help="NAME=CHECKPOINT, or a further drafter.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rollouts a column, in place of the preset's.")] = None,
    concurrency: Annotated[str, typer.Option(help="For table4, such as 1,2,4.")] = "",
    backend: flags.Backend = None,
    base_url: flags.BaseUrls = None,
    launch: flags.Launch = None,
    api_key: flags.ApiKey = None,
    set_: flags.Assignments = None,
    presets: Annotated[Path | None, typer.Option(help="Presets file in place of the package's.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of runs and tables; finished runs are reused.")] = _RESULTS,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder of the table's files.")] = None,
    on: flags.On = None,
    dry_run: flags.DryRun = False,
    speeds: flags.Speeds = None,
) -> None:
    """Run, or reuse, what a table of the DLite paper needs, and print it beside the paper's values."""
    from agentbench_spec.reproduce.plan import Request, ServersAsked
    from agentbench_spec.results.machines.store import refuse_store

    refuse_speeds(speeds, dry_run)
    for option, folder in (("--results", results), ("--out", out)):
        refuse_store(option, folder)
    engine = check_backend(backend, base_url, launch)
    asked = None
    if engine is not None and engine != "engine":
        asked = ServersAsked(flags.urls(base_url), bool(launch), api_key, dict(os.environ), engine)
    request = Request(
        target=target,
        embedded=embedded,
        drafters=drafter or (),
        limit=limit,
        concurrency=_numbers(concurrency),
        assignments=set_ or (),
        presets=presets,
        results=results,
        servers=asked,
        on=on,
    )
    if asked is None:
        refuse_server_options({"--api-key": api_key})
    _check_early(table, request)
    if dry_run:
        show_table_plan(table, request, speeds)
        return
    _make(table, request, out)


def _check_early(table: str, request: Request) -> None:
    """Raises ConfigError for names and settings that would be refused after torch is loaded."""
    from agentbench_spec.reproduce.plan import check_served, check_spread, plan

    if request.servers is not None:
        check_served(table)
    wanted = plan(table, request)
    check_spread(wanted, request)
    if request.servers is None:
        check_drafters(dict.fromkeys(name for _, config in wanted.columns for name in config.drafters))
    else:
        asked = {"servers.base_urls": request.servers.base_urls, "servers.launch": request.servers.launch}
        served = {"backend": request.servers.backend, "target.source": wanted.target, **asked}
        check_servers(load_config(None, request.assignments, served))
    check_models(request.target if request.servers else wanted.target, *checkpoints(request.drafters))


def _make(table: str, request: Request, out: Path | None) -> None:
    from agentbench_spec.reproduce.output import write_everything
    from agentbench_spec.reproduce.tables123 import reproduce as reproduce_table
    from agentbench_spec.reproduce.tables123 import table_folder
    from agentbench_spec.results.export import sheet

    runs = request.results / "runs"
    with interruptible(lambda: f"the same command goes on; what is finished under {runs} is reused"):
        done = reproduce_table(table, request, lambda line: say(line, "dim"))
    folder = out or table_folder(request.results, done.plan)
    files = write_everything(done, folder)
    for found in done.tables:
        print_sheet(sheet(found))
    say(f"table, figures and report: {folder}; runs: {', '.join(map(str, done.runs))}")
    for line in done.missing:
        say(line, "yellow")
    made = {"files": list(map(str, files)), "runs": list(map(str, done.runs))}
    last_line({"table": table, **made, "missing": done.missing, "failed": done.failed})
    notes = [note for found in done.tables for note in found.notes]
    if any("NOT LOSSLESS" in note for note in notes):
        say("a greedy output differs from plain decoding by more than a near tie", "red", "void: ")
    if void := next((note for note in notes if "VOID: " in note), None):
        say(void.partition("VOID: ")[2], "red", "void: ")
    if done.failed:
        say(f"{', '.join(done.failed)}: the run failed", "red", "failed: ")
    if void or done.failed or any("NOT LOSSLESS" in note for note in notes):
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"--concurrency {text!r}: expected whole numbers with commas between, such as 1,2,4"
        ) from None
