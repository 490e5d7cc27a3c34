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
rollouts_app = typer.Typer(no_args_is_help=True, help="Build, import, check and describe rollout files.")
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
    """What is installed: drafters and workloads, and the package each comes from."""
    from agentbench_spec.plugins import Kind, available

    table = Table("kind", "name", "from")
    kinds: tuple[Kind, ...] = ("drafter", "workload")
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


@rollouts_app.command("import")
@_command
def import_(
    paths: Annotated[list[Path], typer.Argument(help="Trace files, or folders of them.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Rollouts file to write (.jsonl or .jsonl.gz).")],
    format: Annotated[str, typer.Option(help="auto: told by content, row by row; or a format's name.")] = "auto",
    name: Annotated[str | None, typer.Option(help="Workload name of the rollouts; default: that of --out.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first row that is no rollout.")] = False,
) -> None:
    """Read agent traces of any known format and write them as rollouts; repairs are noted, bad rows listed."""
    from agentbench_spec.importing import TraceImport
    from agentbench_spec.rollout import BadLine, write_rollouts

    def tell(bad: BadLine) -> None:
        console.print(f"[red]{_plain(str(bad))}[/]", highlight=False)

    source = TraceImport(paths, format, name or out.name.partition(".")[0], None if strict else tell, skip=[out])
    written = write_rollouts(out, source.with_progress())
    console.print(
        f"{written} rollouts written to {out}, {source.repaired} of them with notes; {source.bad_rows} bad rows",
        highlight=False,
    )
    counts = {"repaired": source.repaired, "bad": source.bad_rows, "formats": dict(source.formats)}
    _last_line({"rollouts": written, **counts, "file": str(out)})


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
    thinking: Annotated[bool | None, typer.Option(help="The template's thinking flag; default: its own.")] = None,
    windows: Annotated[str | None, typer.Option(help="Context windows in tokens, with commas between.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw growth and survival of the context (.png, .pdf).")] = None,
    output: Annotated[
        Literal["table", "csv", "turns"], typer.Option(help="Table, CSV of rollouts, or of turns.")
    ] = "table",
) -> None:
    """Turns, messages, tool calls; with --target also tokens, what of a turn's prefix survives, windows exceeded."""
    from agentbench_spec.models import load_tokenizer
    from agentbench_spec.render import Renderer
    from agentbench_spec.rollout_stats import summarize
    from agentbench_spec.turn_stats import WINDOWS, measure_rollouts, plot_turns, summarize_turns

    if target is None and (plot or windows or output == "turns"):
        raise ConfigError("--plot, --windows and --output turns count tokens: name the target that counts (--target)")
    sizes = tuple(_window(text) for text in windows.split(",")) if windows else WINDOWS
    renderer = Renderer(load_tokenizer(target), thinking) if target else None
    found = measure_rollouts(_workload(source, set_ or []).rollouts(limit=limit, seed=seed), renderer)
    if plot and found.turns is not None:
        console.print(f"plot: {plot_turns(found.turns, plot, sizes, title=f'{source} in tokens of {target}')}")
    if output != "table":
        print((found.rollouts if output == "csv" else found.turns).to_csv(index=False), end="")  # type: ignore[union-attr]
        return
    tables = {"groups": summarize(found.rollouts, by)}
    if found.turns is not None:
        tables["turns"] = summarize_turns(found.turns, by, sizes)
    for table in tables.values():
        console.print(table.T.to_string(), highlight=False)
    _last_line(
        {"rollouts": len(found.rollouts)}
        | {name: json.loads(table.to_json(orient="index")) for name, table in tables.items()}
    )


def _window(text: str) -> int:
    if not text.strip().isdigit():
        raise ConfigError(f"--windows: expected numbers of tokens, found {text!r}")
    return int(text)


if __name__ == "__main__":
    app()
