"""`merge`: shards of a run, made on several GPUs or machines, to one run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentbench_spec.cli.console import console, last_line, say, verb


@verb
def merge(
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD...", help="Run folders, each made with --shard i/n.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Run folder to write.")],
) -> None:
    """Join the shards of a run: the same rows as one machine would have left. Unlike runs are refused by field."""
    from agentbench_spec.results.machines.merge import merge as join
    from agentbench_spec.results.machines.store import shown
    from agentbench_spec.results.summary import render, summary_dict

    run = join(shards, out)
    console.print(render(run.summary))
    for note in run.manifest.get("notes") or ():
        say(f"note: {note}", "yellow")
    say(f"rows, manifest and summary of {len(shards)} shards: {shown(run.folder)}")
    last_line({"run": shown(run.folder), "shards": len(shards), "faults": run.faults, **summary_dict(run.summary)})
    for fault in run.faults:
        say(fault, "red", "void: ")
    if run.faults:
        raise typer.Exit(1)
