"""The command line: verbs over the library. Tables go to stderr, one JSON line comes last on stdout.

Exit codes: 0 fine; 1 the run is void or a check failed; 2 the input cannot be used; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentbench_spec.errors import AgentBenchError, ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from agentbench_spec.backends.sglang import ServedRun
    from agentbench_spec.rollout import Workload
    from agentbench_spec.run import Outcome
    from agentbench_spec.target import Target

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, help=__doc__)
rollouts_app = typer.Typer(no_args_is_help=True, help="Build, check and describe rollout files.")
app.add_typer(rollouts_app, name="rollouts")

console = Console(stderr=True)
P = ParamSpec("P")

Assignments = Annotated[list[str] | None, typer.Option("--set", help="A setting, section.key=value; repeatable.")]
Options = Annotated[list[str] | None, typer.Option("--set", help="An option of it, key=value; repeatable.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]
Limit = Annotated[int | None, typer.Option(min=1, help="Rollouts; a smaller limit is a subset of a larger one.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the selection.")]


def _say(text: str, style: str = "", label: str = "") -> None:
    """One line on stderr: never wrapped, and nothing in it taken for markup (a path may hold brackets or :100:)."""
    console.print(Text.assemble((label, f"bold {style}"), text) if label else Text(text, style), soft_wrap=True)


@contextmanager
def _errors() -> Iterator[None]:
    """User errors are one plain line and exit code 2; a void measurement or a broken plugin is exit code 1."""
    try:
        yield
    except ConfigError as error:
        _say(_one_line(error), "red", "error: ")
        raise typer.Exit(2) from None
    except AgentBenchError as error:
        _say(_one_line(error), "red", f"{type(error).__name__}: ")
        raise typer.Exit(1) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; say nothing at exit either
        raise typer.Exit(1) from None
    except OSError as error:
        _say(f"{error.strerror or error}: {error.filename or 'no file named'}", "red", "error: ")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        _say("interrupted", "yellow")
        raise typer.Exit(130) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _command(function: Callable[P, None]) -> Callable[P, None]:
    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        with _errors():
            if str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))  # so that "my_pkg.drafter:make" works from a checkout
            function(*args, **kwargs)

    return guarded


def _last_line(value: dict[str, Any]) -> None:
    print(json.dumps(value, allow_nan=False), flush=True)


@app.command()
@_command
def run(
    target: Annotated[str | None, typer.Option(help="Hub id, local folder, or smollm2-135m.")] = None,
    workload: Annotated[str | None, typer.Option(help="Installed workload, module:factory, or a .jsonl file.")] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="Name, module:factory, or NAME=CHECKPOINT; repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Rollouts to replay.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Turns per rollout.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Draft tokens per round.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Output cap of a turn.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    mode: Annotated[str | None, typer.Option(help="generate, or forced (the record is emitted).")] = None,
    history: Annotated[str | None, typer.Option(help="recorded, or self (the target's own words).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling and rollout selection.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float64, float32, bfloat16, float16.")] = None,
    backend: Annotated[str | None, typer.Option(help="engine (ours), or sglang (servers).")] = None,
    base_url: Annotated[list[str] | None, typer.Option(help="A running SGLang server; repeatable.")] = None,
    launch: Annotated[bool | None, typer.Option("--launch", help="Start an SGLang server per drafter.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Rollouts in flight on each server.")] = None,
    client: Annotated[str | None, typer.Option(help="generate (token ids), or chat (OpenAI route).")] = None,
    config: ConfigFile = None,
    set_: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default results/<time>-<target>-<workload>.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the killed run in --out, with the settings it was started with.")
    ] = False,
) -> None:
    """Replay rollouts turn by turn with every drafter and write a run folder."""
    from agentbench_spec.config import load_config
    from agentbench_spec.run import run as run_rollouts
    from agentbench_spec.runfolder import read_manifest

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
        "backend": backend or ("sglang" if base_url or launch else None),
        "sglang.base_urls": base_url or None,
        "sglang.launch": launch,
        "sglang.concurrency": concurrency,
        "sglang.client": client,
    }
    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the run to continue")
    begun = read_manifest(out).get("settings") if resume and out else None
    settings = load_config(config, set_ or (), flags, base=begun)
    unnamed = settings.backend == "sglang" and "source" not in settings.target.model_fields_set
    folder = out or _new_folder("sglang" if unnamed else settings.target.source, settings.workload.name)
    done: Outcome | ServedRun
    with _resumable(folder):
        if settings.backend == "sglang":
            done = _served()(settings, folder, resume=resume, tell=lambda line: _say(line, "dim"))
        else:
            done = run_rollouts(settings, folder, resume=resume, tell=lambda line: _say(line, "dim"))
    _show(done)


def _served() -> Callable[..., ServedRun]:
    try:
        from agentbench_spec.backends.sglang import run_served
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise ConfigError('backend sglang needs httpx: pip install "agentbench-spec[sglang]"') from None
    return run_served


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Tell whoever interrupts a run how to go on with it."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (folder / "manifest.json").is_file()
        way = (
            f"continue with: agentbench-spec run --resume --out {shlex.quote(str(folder))}"
            if begun
            else "nothing was written yet"
        )
        _say(f"interrupted; {way}", "yellow")
        raise typer.Exit(130) from None


def _show(done: Outcome | ServedRun) -> None:
    """The table and what to think of it; exit code 1 if the run is void."""
    from agentbench_spec.run import reasons
    from agentbench_spec.summary import render, summary_dict

    for line in done.card.lines(done.rows)[2:] if done.card else ():  # the first two stood there before the run
        _say(line)
    console.print(render(done.summary))
    for reason in reasons(done.rows):
        _say(reason, "yellow")
    for note in done.notes[:_MOST_NOTES]:
        _say(f"note: {note}", "yellow")
    if len(done.notes) > _MOST_NOTES:
        _say(f"note: {len(done.notes) - _MOST_NOTES} more in {done.folder / 'manifest.json'}", "yellow")
    _say(f"rows, manifest and summary: {done.folder}")
    _last_line(
        {
            "run": str(done.folder),
            "lossless": done.lossless,
            "measured": done.measured,
            "notes": done.notes,
            **summary_dict(done.summary),
        }
    )
    if done.lossless is False:
        _say("a greedy output differs from plain decoding by more than a near tie", "red", "void: ")
    if not done.measured:
        _say("not one turn could be decoded", "red", "void: ")
    if done.lossless is False or not done.measured:
        raise typer.Exit(1)


_MOST_NOTES = 5


def _new_folder(target: str, workload: str) -> Path:
    """A folder of this second that no run has yet."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    parts = [
        re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-.") for name in (target, workload.partition(".jsonl")[0])
    ]
    wanted = Path("results") / "-".join([stamp, *filter(None, parts)])
    others = (wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 1000))
    return next((folder for folder in (wanted, *others) if not folder.exists()), wanted)


@app.command("list")
@_command
def list_() -> None:
    """What is installed: drafters and workloads, and the package each comes from."""
    from agentbench_spec.plugins import Kind, available

    table = _table("kind", "name", "from")
    kinds: tuple[Kind, ...] = ("drafter", "workload")
    found = {kind: available(kind) for kind in kinds}
    for kind, names in found.items():
        for name, origin in names.items():
            table.add_row(Text(kind), Text(name), Text(origin))
    console.print(table)
    _last_line({kind: sorted(names) for kind, names in found.items()})


def _table(*headings: str) -> Table:
    return Table(*headings, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


@app.command()
@_command
def doctor(
    device: Annotated[str, typer.Option(help="Device whose memory is measured.")] = "auto",
) -> None:
    """Versions, device, threads, memory bandwidth; what is missing and the command that adds it."""
    from agentbench_spec.doctor import examine

    report = examine(device)
    table = _table("what")
    table.add_column("found", overflow="fold")
    for check in report.checks:
        missing = Text("missing", "yellow" if check.optional else "red")
        table.add_row(Text(check.name), Text(check.found) if check.found else missing)
    console.print(table)
    for check in report.checks:
        if not check.found:
            _say(f"{check.name} is missing{' (optional)' if check.optional else ''}: {check.remedy}", "yellow")
    _last_line(report.as_dict())


@app.command()
@_command
def check(
    drafter: Annotated[str, typer.Argument(help="Name, module:factory, or NAME=CHECKPOINT.")],
    on: Annotated[str, typer.Option(help="Targets to check on, comma-separated: toy, embedded.")] = "toy,embedded",
    target: Annotated[
        str | None, typer.Option(help="Check on this model instead: hub id or folder, for a drafter trained for it.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="A slow, plain drafter that must propose the same.")] = None,
    floor: Annotated[float | None, typer.Option(help="Least τ on the embedded target.")] = None,
    set_: Options = None,
) -> None:
    """Does a drafter keep its contract? Says which law broke, and at which call."""
    from tqdm import tqdm

    from agentbench_spec.config import parse_options
    from agentbench_spec.contract import check_drafter

    places = tuple(dict.fromkeys(name.strip() for name in on.split(",") if name.strip()))
    if not places:
        raise ConfigError(f"--on names no target: {on!r}; known: toy, embedded")
    with tqdm(unit="law", leave=False) as bar:

        def tried(law: str) -> None:
            bar.set_description(law)
            bar.update()

        report = check_drafter(
            drafter,
            on=places,
            target=_load_target(target) if target else None,
            reference=reference,
            floor=floor,
            options=parse_options(set_ or ()),
            progress=tried,
        )
    console.print(report)
    _last_line(report.as_dict())
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _load_target(source: str) -> Target:
    from agentbench_spec.models import load_model
    from agentbench_spec.target import Target

    return Target(load_model(source)[0], name=source, capacity=512)


@rollouts_app.command("build")
@_command
def build(
    workload: Annotated[str, typer.Argument(help="Installed workload, module:factory, or a rollouts file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Rollouts file to write (.jsonl or .jsonl.gz).")],
    limit: Limit = None,
    seed: Seed = 0,
    lenient: Annotated[bool, typer.Option("--lenient", help="Pass over bad lines of a file, listing them.")] = False,
    set_: Options = None,
) -> None:
    """Build a workload's rollouts and write them as JSON lines."""
    from agentbench_spec.rollout import write_rollouts
    from agentbench_spec.source import SUFFIXES, is_file, left_out, load_rollouts

    if not is_file(out.name):
        raise ConfigError(f"--out {out}: name it {' or '.join(SUFFIXES)}, or it cannot be read back")
    source = _workload(workload, set_ or [], lenient=lenient)
    written = write_rollouts(out, load_rollouts(source, limit=limit, seed=seed))
    for bad in left_out(source):
        _say(f"left out: {bad}", "yellow")
    _say(f"{written} rollouts written to {out}")
    _last_line({"rollouts": written, "file": str(out), "left_out": left_out(source)})


def _workload(name: str, assignments: list[str], *, lenient: bool = False) -> Workload:
    from agentbench_spec.config import parse_options
    from agentbench_spec.source import open_workload

    return open_workload(name, parse_options(assignments), lenient=lenient)


@rollouts_app.command("validate")
@_command
def validate(path: Annotated[Path, typer.Argument(help="Rollouts file.")]) -> None:
    """Check every line of a rollouts file; names line, field and reason of each bad one."""
    from agentbench_spec.rollout_stats import validate_rollouts

    report = validate_rollouts(path)
    for bad in report.bad:
        _say(str(bad), "red")
    for warning in report.warnings:
        _say(f"warning: {warning}", "yellow")
    _say(f"{report.rollouts} good rollouts, {report.decode_points} decode points, {len(report.bad)} bad lines")
    _last_line(
        {
            "ok": report.ok,
            "rollouts": report.rollouts,
            "decode_points": report.decode_points,
            "bad": [str(bad) for bad in report.bad],
            "sha256": report.sha256,
        }
    )
    if not report.ok:
        raise typer.Exit(1)


@rollouts_app.command("stats")
@_command
def stats(
    source: Annotated[str, typer.Argument(help="Rollouts file, installed workload, or module:factory.")],
    target: Annotated[str | None, typer.Option(help="Count tokens with this target's tokenizer and template.")] = None,
    limit: Limit = None,
    seed: Seed = 0,
    by: Annotated[Literal["category", "workload"], typer.Option(help="What to group by.")] = "category",
    set_: Options = None,
    output: Annotated[Literal["table", "csv"], typer.Option(help="What is shown; csv: one row per rollout.")] = "table",
) -> None:
    """Turns, messages, tool calls, and with --target prompt tokens, of a set of rollouts."""
    from tqdm import tqdm

    from agentbench_spec.models import load_tokenizer
    from agentbench_spec.render import Renderer
    from agentbench_spec.rollout_stats import rollout_stats, summarize
    from agentbench_spec.source import load_rollouts

    rollouts = load_rollouts(_workload(source, set_ or []), limit=limit, seed=seed)
    renderer = Renderer(load_tokenizer(target)) if target else None
    each = rollout_stats(
        tqdm(rollouts, desc="counting", unit="rollout", delay=1, leave=False),
        prompt_tokens=(lambda rollout, index: len(renderer.prompt(rollout, index))) if renderer else None,
    )
    if output == "csv":
        print(each.to_csv(index=False), end="", flush=True)
        return
    each[by] = each[by].fillna(f"(no {by})")
    grouped = summarize(each, by)
    for table in _stats_tables(grouped, by):
        console.print(table)
    _last_line({"rollouts": len(each), "groups": json.loads(grouped.to_json(orient="index"))})


def _stats_tables(grouped: pd.DataFrame, by: str) -> Iterator[Table]:
    """Counts, then sizes: the columns min, median and max of one quantity as one cell."""
    sizes = [str(name).removesuffix("_min") for name in grouped.columns if str(name).endswith("_min")]
    counts = [str(name) for name in grouped.columns if not str(name).endswith(("_min", "_median", "_max"))]
    yield _grouped_table(grouped, by, {name.replace("_", " "): [name] for name in counts})
    ends = ("min", "median", "max")
    yield _grouped_table(
        grouped,
        by,
        {f"{size.replace('_', ' ')}\n{' / '.join(ends)}": [f"{size}_{end}" for end in ends] for size in sizes},
    )


def _grouped_table(grouped: pd.DataFrame, by: str, columns: dict[str, list[str]]) -> Table:
    table = _table(by)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for group, row in grouped.iterrows():
        cells = (" / ".join(f"{row[name]:,.0f}" for name in names) for names in columns.values())
        table.add_row(Text(str(group)), *cells)
    return table


if __name__ == "__main__":
    app()
