"""Options that several verbs share, and the names a shell completes. Nothing of a plugin is imported for a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from agentbench_spec.config import parse_options
from agentbench_spec.plugins import Kind, available


def names(kind: Kind) -> Callable[[str], list[str]]:
    """A completion of the installed plugins of a kind."""

    def starting(incomplete: str) -> list[str]:
        return [name for name in available(kind) if name.startswith(incomplete)]

    return starting


def tables(incomplete: str) -> list[str]:
    """A completion of what `reproduce` knows."""
    from agentbench_spec.results.paper import TABLES

    return [name for name in TABLES if name.startswith(incomplete)]


def _draft_tokens(text: str) -> Any:
    """A whole number, or "auto" and what else the settings must judge."""
    return int(text) if text.removeprefix("-").isdecimal() else text


Target = Annotated[str | None, typer.Option(help="Hub id, local folder, or smollm2-135m.")]
Drafters = Annotated[
    list[str] | None,
    typer.Option(help="Name, module:factory, or NAME=CHECKPOINT; repeatable.", autocompletion=names("drafter")),
]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="A setting, section.key=value; repeatable.")]
Options = Annotated[list[str] | None, typer.Option("--set", help="An option of it, key=value; repeatable.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Rollouts; a smaller limit is a subset of a larger one.")]
Data = Annotated[Path | None, typer.Option(help="The workload's data: a file or folder; always wins.")]
Standin = Annotated[bool, typer.Option("--offline-standin", help="Generated rollouts of its shape, labelled as such.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")]
CudaGraphs = Annotated[str | None, typer.Option("--graphs", help="CUDA graphs of rounds, all or none: auto, on, off.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the selection.")]
Again = Annotated[bool | None, typer.Option("--aa", help="Decode with a second plain drafter, too: 1.00 or noise.")]
Backend = Annotated[str | None, typer.Option(help="engine (ours), or servers: sglang, vllm, openai.")]
BaseUrls = Annotated[
    list[str] | None, typer.Option(help="A running server; repeatable, or several with commas between.")
]
Launch = Annotated[bool | None, typer.Option("--launch", help="Start a server per drafter.")]
ApiKey = Annotated[
    str | None, typer.Option(help="The servers' key; better given as OPENAI_API_KEY in the environment. Never stored.")
]
Shard = Annotated[str | None, typer.Option(help="Only part i of n of the rollouts, i/n; join with `merge`.")]
On = Annotated[Literal["ray"] | None, typer.Option(help="Spread the run: ray, a GPU each for shards of rollouts.")]
Shards = Annotated[int | None, typer.Option(min=1, help="With --on ray: how many; default one a GPU.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what it will take, and decode nothing.")]
Speeds = Annotated[
    str | None, typer.Option(help="For --dry-run: a run folder, or tokens/s such as prefill=640,none=23.5,ngram=40.")
]
A_WORKLOAD = "Installed workload, module:factory, or a rollouts file."
Workload = Annotated[str | None, typer.Option(help=A_WORKLOAD, autocompletion=names("workload"))]
DraftTokens = Annotated[
    str | None,
    typer.Option(
        "--k", parser=_draft_tokens, metavar="N|auto", help="Draft tokens per round, auto[:MOST], or several: 1,3,auto."
    ),
]
RolloutsFile = Annotated[Path, typer.Option("-o", "--out", help="Rollouts file to write (.jsonl or .jsonl.gz).")]


def urls(given: list[str] | None) -> list[str]:
    """Addresses, however they were split over options and commas."""
    return [url.strip() for word in given or () for url in word.split(",") if url.strip()]


def workload_options(assignments: list[str] | None, data: Path | None, standin: bool) -> dict[str, Any]:
    """A workload's options: what is set, and what has a flag of its own."""
    given = {"data": str(data) if data else None, "offline_standin": standin or None}
    return parse_options(assignments or ()) | {name: value for name, value in given.items() if value is not None}
