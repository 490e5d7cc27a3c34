"""The command line: verbs over the library. Tables go to stderr, one JSON line comes last on stdout.

Exit codes: 0 fine; 1 the run is void or a check failed; 2 the input cannot be used; 130 interrupted; 141 nobody reads
the output any more.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TextIO

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentbench_spec.errors import AgentBenchError, ConfigError, DataWarning, cause_of

if TYPE_CHECKING:
    import pandas as pd

    from agentbench_spec.engine.target import Target
    from agentbench_spec.reproduce.plan import ServersAsked
    from agentbench_spec.results.export import Sheet
    from agentbench_spec.rollout import Workload
    from agentbench_spec.runs.execute import Outcome
    from agentbench_spec.serving.sglang import ServedRun

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, help=__doc__)
rollouts_app = typer.Typer(no_args_is_help=True, help="Build, import, check and describe rollout files.")
app.add_typer(rollouts_app, name="rollouts")


class _Console(Console):
    def on_broken_pipe(self) -> None:  # rich's own would end the process, as if a plugin had
        raise BrokenPipeError


console = _Console(stderr=True)
P = ParamSpec("P")

Assignments = Annotated[list[str] | None, typer.Option("--set", help="A setting, section.key=value; repeatable.")]
Options = Annotated[list[str] | None, typer.Option("--set", help="An option of it, key=value; repeatable.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]
Limit = Annotated[int | None, typer.Option(min=1, help="Rollouts; a smaller limit is a subset of a larger one.")]
Data = Annotated[Path | None, typer.Option(help="The workload's data: a file or folder; always wins.")]
Standin = Annotated[bool, typer.Option("--offline-standin", help="Generated rollouts of its shape, labelled as such.")]
BaseUrls = Annotated[
    list[str] | None, typer.Option(help="A running SGLang server; repeatable, or several with commas between.")
]
ApiKey = Annotated[
    str | None, typer.Option(help="The servers' key; better given as OPENAI_API_KEY in the environment. Never stored.")
]
Backend = Annotated[str | None, typer.Option(help="engine (ours), or sglang (servers).")]
Launch = Annotated[bool | None, typer.Option("--launch", help="Start an SGLang server per drafter.")]
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
    except SystemExit as error:  # no command of ours raises it: some plugin would end the process, as if all were well
        _say(f"a plugin ended the command: {cause_of(error)}", "red", "ContractError: ")
        raise typer.Exit(1) from None
    except BrokenPipeError:
        _silence(sys.stdout, sys.stderr)
        raise typer.Exit(141) from None
    except OSError as error:
        _say(f"{error.strerror or error}: {error.filename or 'no file named'}", "red", "error: ")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        _say("interrupted", "yellow")
        raise typer.Exit(130) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@contextmanager
def _warnings() -> Iterator[None]:
    """A warning about the data is one plain line, like an error; all others look as they always do."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            _say(str(message), "yellow", "warning: ")
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("default", DataWarning)
        warnings.showwarning = show
        yield


def _command(function: Callable[P, None]) -> Callable[P, None]:
    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        with _errors(), _warnings():
            if str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))  # so that "my_pkg.drafter:make" works from a checkout
            function(*args, **kwargs)

    return guarded


def _mind_the_hub(*sources: str | None) -> None:
    """Say so, and go on with its cache, if a source is on the hub and the hub does not answer; retries take minutes."""
    from agentbench_spec.engine.hub_reach import go_offline_if_unreachable

    if "huggingface_hub" not in sys.modules and (told := go_offline_if_unreachable(sources, os.environ)):
        _say(told, "yellow", "warning: ")


def _checkpoints(drafters: Sequence[str]) -> Iterator[str]:
    """What follows the "=" of NAME=CHECKPOINT, where it can be a hub id."""
    yield from (checkpoint for name in drafters if "/" in (checkpoint := name.partition("=")[2]))


def _silence(*streams: TextIO) -> None:
    """The reader left: write to nowhere from now on, and say nothing at exit either."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _last_line(value: dict[str, Any], out: Path | None = None) -> None:
    """The result as one JSON object, on stdout unless `out` is that: what is written there is not to be mixed."""
    from agentbench_spec.writing import is_stdout

    try:
        print(json.dumps(value, allow_nan=False), flush=True, file=sys.stderr if out and is_stdout(out) else None)
    except BrokenPipeError:
        _silence(sys.stdout)  # and go on: the exit code still says what came out


@app.command()
@_command
def run(
    target: Annotated[str | None, typer.Option(help="Hub id, local folder, or smollm2-135m.")] = None,
    workload: Annotated[str | None, typer.Option(help="Installed workload, module:factory, or a .jsonl file.")] = None,
    data: Data = None,
    offline_standin: Standin = False,
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
    backend: Backend = None,
    base_url: BaseUrls = None,
    launch: Launch = None,
    api_key: ApiKey = None,
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
    from agentbench_spec.results.folder import read_manifest

    flags = {
        "target.source": target,
        "target.device": device,
        "target.dtype": dtype,
        "workload.name": workload,
        "workload.limit": limit,
        "workload.options.data": str(data) if data else None,
        "workload.options.offline_standin": offline_standin or None,
        "drafters": drafter or None,
        "decode.k": k,
        "decode.max_new_tokens": max_new_tokens,
        "decode.temperature": temperature,
        "decode.mode": mode,
        "replay.history": history,
        "replay.max_turns": max_turns,
        "measure.seed": seed,
        "backend": backend or ("sglang" if base_url or launch else None),
        "sglang.base_urls": _urls(base_url) or None,
        "sglang.launch": launch,
        "sglang.concurrency": concurrency,
        "sglang.client": client,
    }
    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the run to continue")
    begun = read_manifest(out).get("settings") if resume and out else None
    settings = load_config(config, set_ or (), flags, base=begun)
    _mind_the_hub(settings.target.source, *_checkpoints(settings.drafters), settings.workload.options.get("tokenizer"))
    from agentbench_spec.runs.execute import new_folder  # loads the hub's libraries
    from agentbench_spec.runs.execute import run as run_rollouts

    folder = out or new_folder(settings.named_target or "sglang", settings.workload.name)
    done: Outcome | ServedRun
    with _interruptible(lambda: _way_to_resume(folder)):
        if settings.backend == "sglang":
            say = partial(_say, style="dim")
            done = _served()(settings, folder, resume=resume, api_key=api_key, tell=say)
        else:
            done = run_rollouts(settings, folder, resume=resume, tell=lambda line: _say(line, "dim"))
    _show(done)


def _urls(given: list[str] | None) -> list[str]:
    return [url.strip() for word in given or () for url in word.split(",") if url.strip()]


def _served() -> Callable[..., ServedRun]:
    with _httpx():
        from agentbench_spec.serving.sglang import run_served
    return run_served


@contextmanager
def _httpx() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise ConfigError('backend sglang needs httpx: pip install "agentbench-spec[sglang]"') from None


def _servers_asked(
    backend: str | None, base_url: list[str] | None, launch: bool | None, api_key: str | None
) -> ServersAsked | None:
    """The servers named on a command line; None: our own engine."""
    named = bool(base_url or launch)
    if backend not in (None, "engine", "sglang"):
        raise ConfigError(f"--backend {backend}: expected engine or sglang")
    if backend == "engine" and named:
        raise ConfigError("--backend engine takes neither --base-url nor --launch; leave them out, or name sglang")
    if backend != "sglang" and not named:
        return None
    with _httpx():
        from agentbench_spec.reproduce.plan import ServersAsked
    return ServersAsked(_urls(base_url), bool(launch), api_key, dict(os.environ))


@contextmanager
def _interruptible(way_on: Callable[[], str]) -> Iterator[None]:
    """Tell whoever interrupts a command how to go on with it; way_on: the words, found out then."""
    try:
        yield
    except KeyboardInterrupt:
        _say(f"interrupted; {way_on()}", "yellow")
        raise typer.Exit(130) from None


def _way_to_resume(folder: Path) -> str:
    if not (folder / "manifest.json").is_file():
        return "nothing was written yet"
    return f"continue with: agentbench-spec run --resume --out {shlex.quote(str(folder))}"


def _show(done: Outcome | ServedRun) -> None:
    """The table and what to think of it; exit code 1 if the run is void."""
    from agentbench_spec.results.summary import render, summary_dict
    from agentbench_spec.results.verdict import failed_drafters, reasons

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
    failed = failed_drafters(done.rows) if done.measured else []
    for name in failed:
        _say(f"{name}: not one turn could be decoded", "red", "failed: ")
    if done.lossless is False or not done.measured or failed:
        raise typer.Exit(1)


_MOST_NOTES = 5


@app.command()
@_command
def reproduce(
    table: Annotated[str, typer.Argument(help="table1, table2, table3, table4, table5, figure1b or figure5.")],
    target: Annotated[str | None, typer.Option(help="Hub id, local folder, or smollm2-135m.")] = None,
    embedded: Annotated[bool, typer.Option("--embedded", help="Offline data, and smollm2-135m if no target.")] = False,
    drafter: Annotated[list[str] | None, typer.Option(help="NAME=CHECKPOINT, or a further drafter.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rollouts a column, in place of the preset's.")] = None,
    concurrency: Annotated[str, typer.Option(help="For table4, such as 1,2,4.")] = "",
    backend: Backend = None,
    base_url: BaseUrls = None,
    launch: Launch = None,
    api_key: ApiKey = None,
    set_: Assignments = None,
    presets: Annotated[Path | None, typer.Option(help="Presets file in place of the package's.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of runs and tables; finished runs there are reused.")] = Path(
        "results/reproduce"
    ),
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder of the table's files.")] = None,
) -> None:
    """Run, or reuse, what a table of the DLite paper needs, and print it beside the paper's values."""
    _mind_the_hub("Qwen/Qwen3-4B" if target is None and not embedded else target, *_checkpoints(drafter or ()))
    from agentbench_spec.reproduce.output import write_everything
    from agentbench_spec.reproduce.tables123 import Request, table_folder
    from agentbench_spec.reproduce.tables123 import reproduce as reproduce_table
    from agentbench_spec.results.export import sheet

    request = Request(
        target=target,
        embedded=embedded,
        drafters=drafter or (),
        limit=limit,
        concurrency=_numbers(concurrency),
        assignments=set_ or (),
        presets=presets,
        results=results,
        servers=_servers_asked(backend, base_url, launch, api_key),
    )
    with _interruptible(lambda: f"the same command goes on; what is finished under {results / 'runs'} is reused"):
        done = reproduce_table(table, request, lambda line: _say(line, "dim"))
    folder = out or table_folder(results, done.plan)
    files = write_everything(done, folder)
    for found in done.tables:
        _print_sheet(sheet(found))
    _say(f"table, figures and report: {folder}; runs: {', '.join(map(str, done.runs))}")
    notes = [note for found in done.tables for note in found.notes]
    lossless = not any("NOT LOSSLESS" in note for note in notes)
    _last_line({"table": table, "files": [str(file) for file in files], "runs": [str(run) for run in done.runs]})
    if not lossless:
        _say("a greedy output differs from plain decoding by more than a near tie", "red", "void: ")
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"--concurrency {text!r}: expected whole numbers with commas between, such as 1,2,4"
        ) from None


def _print_sheet(found: Sheet) -> None:
    table, screen = _sheet_table(found), console
    least = Measurement.get(console, console.options.update(max_width=1000), table).minimum
    if least > console.width:  # a table wider than a narrow screen, so that no figure is cut
        table, screen = _sheet_table(found, least=True), _Console(stderr=True, width=2 * least)
    screen.print(table)
    for note in found.notes:
        _say(note, "yellow" if "NOT LOSSLESS" in note or note.startswith("warning") else "dim")


def _sheet_table(found: Sheet, *, least: bool = False) -> Table:
    """least: each column as wide as its longest word."""
    table = _table()
    table.title, table.title_justify = found.title, "left"
    for i, heading in enumerate(found.headings):
        words = [word for text in (heading, *(line[i] for line in found.lines)) for word in text.split()]
        table.add_column(Text(heading), width=max(map(cell_len, words), default=1) if least else None)
    for line in found.lines:
        table.add_row(*map(Text, line))
    return table


@app.command()
@_command
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write: .csv, .parquet, .md or .tex.")],
) -> None:
    """Write the table of a run as CSV, parquet, markdown or LaTeX."""
    from agentbench_spec.results.export import write_summary
    from agentbench_spec.results.folder import read_turns
    from agentbench_spec.results.manifest import counting
    from agentbench_spec.results.summary import summarise

    manifest, rows = read_turns(run)
    _warn_unfinished(run, manifest)
    summary = summarise(rows, **counting(manifest))
    file = write_summary(summary, run.resolve().name, out)
    _say(f"written: {file}")
    _last_line({"file": str(file), "drafters": [own.drafter for own in summary.drafters]}, out)


def _warn_unfinished(folder: Path, manifest: Mapping[str, Any]) -> None:
    if "finished" not in manifest:
        _say(f"{folder} was not finished: rows are missing", "yellow", "warning: ")


@app.command()
@_command
def compare(
    old: Annotated[Path, typer.Argument(help="Run folder before the change.")],
    new: Annotated[Path, typer.Argument(help="Run folder after it.")],
    tolerance: Annotated[float, typer.Option(min=0, max=1, help="A relative fall that is not one yet.")] = 0.05,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the table: .csv, .parquet, .md or .tex.")
    ] = None,
) -> None:
    """What fell between two runs of the same settings, per workload, drafter and context length; exit 1 if any did."""
    from agentbench_spec.results.compare import compare_runs, comparison_frame, comparison_sheet
    from agentbench_spec.results.export import write_sheet
    from agentbench_spec.results.folder import read_turns

    before, after = read_turns(old), read_turns(new)
    if old.resolve() == new.resolve():
        _say(f"{old} and {new} are one folder: nothing in it can have changed", "yellow", "warning: ")
    _warn_unfinished(old, before[0])
    _warn_unfinished(new, after[0])
    found = compare_runs(before, after, tolerance=tolerance)
    sheet = comparison_sheet(found)
    _print_sheet(sheet)
    if out is not None:
        _say(f"table: {write_sheet(sheet, lambda: comparison_frame(found), out)}", "dim")
    for line in found.regressions:
        _say(line, "red", "fell: ")
    _last_line(found.as_dict(), out)
    if found.regressions:
        raise typer.Exit(1)


@app.command("list")
@_command
def list_() -> None:
    """What is installed: drafters, workloads and trainers, and the package each comes from."""
    from agentbench_spec.plugins import Kind, available

    table = _table("kind", "name", "from")
    kinds: tuple[Kind, ...] = ("drafter", "workload", "trainer")
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
    from agentbench_spec.runs.doctor import examine

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
    _mind_the_hub(target, *_checkpoints([drafter, reference or ""]))
    from tqdm import tqdm

    from agentbench_spec.config import parse_options
    from agentbench_spec.conformance.kit import check_drafter

    places = tuple(dict.fromkeys(name.strip() for name in on.split(",") if name.strip()))
    if not places:
        raise ConfigError(f"--on names no target: {on!r}; known: toy, embedded")
    with tqdm(unit="law", leave=False) as bar:

        def tried(law: str) -> None:
            bar.set_description_str(law)
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
    from agentbench_spec.engine.loading import load_model
    from agentbench_spec.engine.target import Target

    return Target(load_model(source)[0], name=source, capacity=512)


@app.command()
@_command
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Page to write; default RUN/report.html, of several report.html.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write every figure as svg and png into this folder.")
    ] = None,
) -> None:
    """Turn runs into one self-contained HTML page."""
    from agentbench_spec.report.page import save_figures, write_report

    page = write_report(runs, out or (runs[0] if len(runs) == 1 else Path()) / "report.html")
    saved = save_figures(runs, figures) if figures else []
    _say(f"report: {page}")
    if figures:
        _say(f"{len(saved)} figure files in {figures}")
    _last_line({"report": str(page), "runs": [str(run) for run in runs], "figures": [str(path) for path in saved]}, out)


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
    _mind_the_hub(target)
    from agentbench_spec.config import parse_options
    from agentbench_spec.train.fit import train as train_drafter
    from agentbench_spec.train.options import train_config

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
    workload: Annotated[str, typer.Argument(help="Installed workload, module:factory, or a rollouts file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Rollouts file to write (.jsonl or .jsonl.gz).")],
    data: Data = None,
    offline_standin: Standin = False,
    limit: Limit = None,
    seed: Seed = 0,
    lenient: Annotated[bool, typer.Option("--lenient", help="Pass over bad lines of a file, listing them.")] = False,
    set_: Options = None,
) -> None:
    """Build a workload's rollouts and write them as JSON lines."""
    options = _options(set_, data, offline_standin)
    _mind_the_hub(options.get("tokenizer"))
    from agentbench_spec.rollout import write_rollouts
    from agentbench_spec.runs.source import left_out, load_rollouts

    _check_out(out, [Path(workload)])
    source = _workload(workload, options, lenient=lenient)
    written = write_rollouts(out, load_rollouts(source, limit=limit, seed=seed))
    for bad in left_out(source):
        _say(f"left out: {bad}", "yellow")
    _say(f"{written} rollouts written to {out}")
    _last_line({"rollouts": written, "file": str(out), "left_out": left_out(source)}, out)


def _check_out(out: Path, read: Sequence[Path]) -> None:
    """Raises ConfigError for a rollouts file that could not be read back, or that takes the place of its own source."""
    from agentbench_spec.runs.source import SUFFIXES, is_file
    from agentbench_spec.writing import is_special

    if not is_file(out.name) and not is_special(out):
        raise ConfigError(f"--out {out}: name it {' or '.join(SUFFIXES)}, or it cannot be read back")
    if out.exists() and any(path.exists() and path.samefile(out) for path in read):
        raise ConfigError(f"--out {out}: is the file that is read; what is left out of it would be lost: name another")


def _options(assignments: list[str] | None, data: Path | None, standin: bool) -> dict[str, Any]:
    """A workload's options: what is set, and what has a flag of its own."""
    from agentbench_spec.config import parse_options

    flags = {"data": str(data) if data else None, "offline_standin": standin or None}
    return parse_options(assignments or ()) | {name: value for name, value in flags.items() if value is not None}


def _workload(name: str, options: dict[str, Any], *, lenient: bool = False, target: str | None = None) -> Workload:
    from agentbench_spec.runs.source import open_workload

    return open_workload(name, options, lenient=lenient, target=target)


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
    from agentbench_spec.rollout import BadLine, write_rollouts
    from agentbench_spec.rollouts.importing import TraceImport

    def tell(bad: BadLine) -> None:
        _say(str(bad), "red")

    _check_out(out, paths)
    source = TraceImport(paths, format, name or out.name.partition(".")[0], None if strict else tell, skip=[out])
    written = write_rollouts(out, source.with_progress())
    _say(f"{written} rollouts written to {out}, {source.repaired} of them with notes; {source.bad_rows} bad rows")
    counts = {"repaired": source.repaired, "bad_rows": source.bad_rows, "formats": dict(source.formats)}
    _last_line({"rollouts": written, **counts, "file": str(out)}, out)


@rollouts_app.command("validate")
@_command
def validate(path: Annotated[Path, typer.Argument(help="Rollouts file.")]) -> None:
    """Check every line of a rollouts file; names line, field and reason of each bad one."""
    from agentbench_spec.rollouts.sizes import validate_rollouts

    report = validate_rollouts(path)
    for bad in report.bad:
        _say(str(bad), "red")
    for warning in report.warnings:
        _say(f"warning: {warning}", "yellow")
    _say(f"{report.rollouts} good rollouts, {report.decode_points} decode points, {len(report.bad)} bad lines")
    if report.rewritten_turns:
        _say(
            f"turns that are not append-only: {report.rewritten_turns} (views: {report.views}, in {report.viewed} "
            f"rollouts; else the tools changed), so sections: {report.sections}"
        )
    _last_line(
        {
            "ok": report.ok,
            "rollouts": report.rollouts,
            "decode_points": report.decode_points,
            "viewed": report.viewed,
            "views": report.views,
            "rewritten_turns": report.rewritten_turns,
            "sections": report.sections,
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
    data: Data = None,
    offline_standin: Standin = False,
    limit: Limit = None,
    seed: Seed = 0,
    by: Annotated[Literal["category", "workload"], typer.Option(help="What to group by.")] = "category",
    set_: Options = None,
    thinking: Annotated[bool | None, typer.Option(help="The template's thinking flag; default: its own.")] = None,
    windows: Annotated[str | None, typer.Option(help="Context windows in tokens, with commas between.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw growth and survival of the context (.png, .pdf).")] = None,
    output: Annotated[
        Literal["table", "csv", "turns"], typer.Option(help="What is shown; csv: one row per rollout; turns: per turn.")
    ] = "table",
) -> None:
    """Turns, messages, calls; with --target also tokens, what of a turn's prefix survives, and windows exceeded."""
    _mind_the_hub(target)
    from tqdm import tqdm

    from agentbench_spec.engine.loading import load_tokenizer
    from agentbench_spec.rollouts.growth import WINDOWS, measure_rollouts, plot_turns
    from agentbench_spec.rollouts.render import Renderer
    from agentbench_spec.runs.source import load_rollouts

    if target is None and (plot or windows or output == "turns"):
        raise ConfigError("--plot, --windows and --output turns count tokens: name the target that counts (--target)")
    sizes = tuple(map(_window, windows.split(","))) if windows else WINDOWS
    workload = _workload(source, _options(set_, data, offline_standin), target=target)
    rollouts = load_rollouts(workload, limit=limit, seed=seed)
    renderer = Renderer(load_tokenizer(target), thinking) if target else None
    found = measure_rollouts(tqdm(rollouts, desc="counting", unit="rollout", delay=1, leave=False), renderer)
    if plot and found.turns is not None:
        _say(f"plot: {plot_turns(found.turns, plot, sizes, title=f'{source} in tokens of {target}')}")
    chosen = found.turns if output == "turns" else found.rollouts
    if output != "table" and chosen is not None:
        print(chosen.to_csv(index=False), end="", flush=True)
        return
    _show_stats(found.rollouts, found.turns, by, sizes)


def _window(text: str) -> int:
    if not text.strip().isdigit():
        raise ConfigError(f"--windows: expected numbers of tokens, found {text!r}")
    return int(text)


def _show_stats(rollouts: pd.DataFrame, turns: pd.DataFrame | None, by: str, windows: Sequence[int]) -> None:
    from agentbench_spec.rollouts.growth import summarize_turns
    from agentbench_spec.rollouts.sizes import summarize

    missing = f"(no {by})"
    rollouts[by] = rollouts[by].fillna(missing)
    grouped = summarize(rollouts, by)
    for table in _stats_tables(grouped, by):
        console.print(table)
    last: dict[str, Any] = {"rollouts": len(rollouts), "groups": json.loads(grouped.to_json(orient="index"))}
    if turns is not None:
        turns[by] = turns[by].fillna(missing)
        per_turn = summarize_turns(turns, by, windows)
        for table in _turns_tables(per_turn, by, windows):
            console.print(table)
        last["turns"] = json.loads(per_turn.to_json(orient="index"))
    _last_line(last)


def _turns_tables(per_turn: pd.DataFrame, by: str, windows: Sequence[int]) -> Iterator[Table]:
    """What a turn adds and loses, to what, and how many turns exceed each window (tokens); one line a group."""
    spreads = ("reply_tokens", "new_tokens", "lost_tokens")
    growth, survival, over = (_grouping_table(by) for _ in range(3))
    for name in spreads:
        growth.add_column(f"{name.replace('_', ' ')}\nmedian / p90 / max", justify="right", no_wrap=True)
    for heading in ("append-\nonly", "reuse", *(f"lost tokens\nto {why}" for why in ("history", "tools", "template"))):
        survival.add_column(heading, justify="right", no_wrap=True)
    for window in windows:
        over.add_column(f"turns over\n{window:,}", justify="right", no_wrap=True)
    for group, row in per_turn.iterrows():
        cells = [" / ".join(_number(row[f"{name}_{end}"]) for end in ("median", "p90", "max")) for name in spreads]
        growth.add_row(Text(str(group)), *cells)
        shares = (_number(row[name], ".1%") for name in ("append_only", "reuse"))
        lost = (_number(row[f"lost_to_{why}"]) for why in ("history", "tools", "template"))
        survival.add_row(Text(str(group)), *shares, *lost)
        over.add_row(Text(str(group)), *(_number(row[f"over_{window}"]) for window in windows))
    yield from (growth, survival, over)


def _number(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def _stats_tables(grouped: pd.DataFrame, by: str) -> Iterator[Table]:
    """Counts, then sizes: the columns min, median and max of one quantity as one cell."""
    sizes = [str(name).removesuffix("_min") for name in grouped.columns if str(name).endswith("_min")]
    counts = [str(name) for name in grouped.columns if not str(name).endswith(("_min", "_median", "_max"))]
    yield _grouped_table(grouped, by, {name.replace("_", "\n"): [name] for name in counts})
    if not grouped["views"].any():
        sizes.remove("max_prompt_characters")  # without views it is the first column but for the last reply
    ends = ("min", "median", "max")
    for pair in (sizes[i : i + 2] for i in range(0, len(sizes), 2)):  # three are wider than a terminal
        columns = {f"{size.replace('_', ' ')}\n{' / '.join(ends)}": [f"{size}_{end}" for end in ends] for size in pair}
        yield _grouped_table(grouped, by, columns)


def _grouping_table(by: str) -> Table:
    table = _table()
    table.add_column(by, no_wrap=True)
    return table


def _grouped_table(grouped: pd.DataFrame, by: str, columns: dict[str, list[str]]) -> Table:
    table = _grouping_table(by)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for group, row in grouped.iterrows():
        cells = (" / ".join(f"{row[name]:,.0f}" for name in names) for names in columns.values())
        table.add_row(Text(str(group)), *cells)
    return table
