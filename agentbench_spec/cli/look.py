"""`list`, `doctor`: what is there. `report`, `export`, `compare`: finished runs, read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from agentbench_spec.cli.console import console, last_line, plain_table, say, verb
from agentbench_spec.cli.sheets import print_sheet


@verb
def list_(
    registry: Annotated[
        bool, typer.Option("--registry", help="Instead: published draft checkpoints and the targets they are for.")
    ] = False,
) -> None:
    """What is installed: drafters, workloads and trainers, and the package each comes from."""
    if registry:
        _list_pairs()
        return
    from agentbench_spec.plugins import Kind, available

    table = plain_table("kind", "name", "from")
    kinds: tuple[Kind, ...] = ("drafter", "workload", "trainer")
    found = {kind: available(kind) for kind in kinds}
    for kind, names in found.items():
        for name, origin in names.items():
            table.add_row(Text(kind), Text(name), Text(origin))
    console.print(table)
    last_line({kind: sorted(names) for kind, names in found.items()})


def _list_pairs() -> None:
    from agentbench_spec.cli.published import FIELDS, published_pairs

    table, pairs = plain_table(), published_pairs()
    for name in FIELDS:
        table.add_column(name, overflow="fold")
    for pair in pairs:
        known = {**pair, "revision": (pair["revision"] or "")[:12]}  # whole in the JSON line
        table.add_row(*(Text(known[name] or "-") for name in FIELDS))
    console.print(table)
    last_line({"pairs": pairs})


@verb
def doctor(
    device: Annotated[str, typer.Option(help="Device whose memory is measured.")] = "auto",
) -> None:
    """Versions, device, threads, memory bandwidth; what is missing and the command that adds it."""
    from agentbench_spec.runs.doctor import examine

    report = examine(device)
    table = plain_table("what")
    table.add_column("found", overflow="fold")
    for check in report.checks:
        missing = Text("missing", "yellow" if check.optional else "red")
        table.add_row(Text(check.name), Text(check.found) if check.found else missing)
    console.print(table)
    for check in report.checks:
        if not check.found:
            say(f"{check.name} is missing{' (optional)' if check.optional else ''}: {check.remedy}", "yellow")
    last_line(report.as_dict())


@verb
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Page to write; default RUN/report.html, of several report.html.")
    ] = None,
) -> None:
    """Turn runs into one self-contained HTML page."""
    from agentbench_spec.results.folder import read_manifest
    from agentbench_spec.results.machines.store import reading

    runs = [reading(run) for run in runs]
    for run in runs:
        read_manifest(run)
    from agentbench_spec.report.engine_grids import pass_engine_grids
    from agentbench_spec.report.page import write_report
    from agentbench_spec.report.pass_cards import holds_passes, pass_policy_grids, throughput_card

    passes = [run for run in runs if holds_passes(run)]
    tables = [*pass_policy_grids(passes), *pass_engine_grids(passes)]
    turned = [run for run in runs if run not in passes] if tables else runs
    cards = [throughput_card(run) for run in passes] if tables else []
    page = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    write_report(turned, page, tables=tables, cards=cards)
    say(f"report: {page}")
    last_line({"report": str(page), "runs": [str(run) for run in runs]}, out)


@verb
def figures(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for the files; of several runs one within for each.")
    ],
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="pdf (default), svg or png; repeatable.")
    ] = None,
    width: Annotated[
        str, typer.Option(help="one-column (85 mm), two-column (175 mm), or inches; report: as on the page, titled.")
    ] = "one-column",
    style: Annotated[
        str | None, typer.Option(help="A .mplstyle file or a style of matplotlib, on top of ours.")
    ] = None,
) -> None:
    """Write every figure of runs, and their tables as LaTeX, markdown and CSV, as a paper takes them."""
    from agentbench_spec.report.figure_files import write_figures
    from agentbench_spec.results.machines.store import reading

    size = None if width == "report" else width
    files = write_figures(list(map(reading, runs)), out, formats=formats or ("pdf",), width=size, style=style)
    say(f"{len(files)} files in {out}")
    last_line({"files": list(map(str, files))}, out)


@verb
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write: .csv, .parquet, .md or .tex.")],
    profile: Annotated[
        bool, typer.Option("--profile", help="Write acceptance by position and context: .json or .yaml.")
    ] = False,
) -> None:
    """Write the table of a run as CSV, parquet, markdown or LaTeX, or its acceptance profile as JSON or YAML."""
    from agentbench_spec.results.export import write_summary
    from agentbench_spec.results.folder import read_turns
    from agentbench_spec.results.machines.store import reading
    from agentbench_spec.results.manifest import counting
    from agentbench_spec.results.summary import summarise

    run = reading(run)
    manifest, rows = read_turns(run)
    _warn_unfinished(run, manifest)
    if profile:
        from agentbench_spec.results.derived.profile import profile_of, write_profile

        found = profile_of(rows, **counting(manifest))
        say(f"written: {write_profile(found, out)}")
        last_line({"file": str(out), "drafters": [own.drafter for own in found.profiles]}, out)
        return
    summary = summarise(rows, **counting(manifest))
    file = write_summary(summary, run.resolve().name, out)
    say(f"written: {file}")
    last_line({"file": str(file), "drafters": [own.drafter for own in summary.drafters]}, out)


def _warn_unfinished(folder: Path, manifest: Mapping[str, Any]) -> None:
    if "finished" not in manifest:
        say(f"{folder} was not finished: rows are missing", "yellow", "warning: ")


@verb
def compare(
    old: Annotated[Path, typer.Argument(help="Run folder before the change.")],
    new: Annotated[Path, typer.Argument(help="Run folder after it.")],
    tolerance: Annotated[float, typer.Option(min=0, max=1, help="A relative fall that is not one yet.")] = 0.05,
    all_drafters: Annotated[
        bool, typer.Option("--all-drafters", help="A drafter that the new run lacks counts as a fall.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the table: .csv, .parquet, .md or .tex.")
    ] = None,
) -> None:
    """What fell between two runs of the same settings, per workload, drafter and context length; exit 1 if any did."""
    from agentbench_spec.results.compare import compare_runs, comparison_frame, comparison_sheet
    from agentbench_spec.results.export import write_sheet
    from agentbench_spec.results.folder import read_turns
    from agentbench_spec.results.machines.store import reading

    old, new = reading(old), reading(new)
    before, after = read_turns(old), read_turns(new)
    if old.resolve() == new.resolve():
        say(f"{old} and {new} are one folder: nothing in it can have changed", "yellow", "warning: ")
    _warn_unfinished(old, before[0])
    _warn_unfinished(new, after[0])
    found = compare_runs(before, after, tolerance=tolerance, all_drafters=all_drafters)
    sheet = comparison_sheet(found)
    print_sheet(sheet)
    if out is not None:
        say(f"table: {write_sheet(sheet, lambda: comparison_frame(found), out)}", "dim")
    for line in found.regressions:
        say(line, "red", "fell: ")
    last_line(found.as_dict(), out)
    if found.regressions:
        raise typer.Exit(1)
