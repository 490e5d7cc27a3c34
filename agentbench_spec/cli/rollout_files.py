"""`rollouts build`, `import` and `validate`: files of rollouts are made and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentbench_spec.cli import flags
from agentbench_spec.cli.console import last_line, say, verb
from agentbench_spec.cli.preflight import check_models, check_rollouts_file
from agentbench_spec.jsonl import BadLine, require_file
from agentbench_spec.rollout import write_rollouts
from agentbench_spec.rollouts.importing import TraceImport
from agentbench_spec.runs.source import check_workload, left_out, load_rollouts, open_workload


@verb
def build(
    workload: Annotated[str, typer.Argument(help=flags.A_WORKLOAD, autocompletion=flags.names("workload"))],
    out: flags.RolloutsFile,
    data: flags.Data = None,
    offline_standin: flags.Standin = False,
    limit: flags.Limit = None,
    seed: flags.Seed = 0,
    lenient: Annotated[bool, typer.Option("--lenient", help="Pass over bad lines of a file, listing them.")] = False,
    set_: flags.Options = None,
) -> None:
    """Build a workload's rollouts and write them as JSON lines."""
    options = flags.workload_options(set_, data, offline_standin)
    check_rollouts_file(out, [Path(workload)])
    check_workload(workload, options, lenient=lenient)
    check_models(None, options.get("tokenizer"))
    source = open_workload(workload, options, lenient=lenient)
    written = write_rollouts(out, load_rollouts(source, limit=limit, seed=seed))
    for bad in left_out(source):
        say(f"left out: {bad}", "yellow")
    say(f"{written} rollouts written to {out}")
    last_line({"rollouts": written, "file": str(out), "left_out": left_out(source)}, out)


@verb
def import_(
    paths: Annotated[list[Path], typer.Argument(help="Trace files, folders of them, or - for standard input.")],
    out: flags.RolloutsFile,
    format: Annotated[str, typer.Option(help="auto: told by content, row by row; or a format's name.")] = "auto",
    name: Annotated[str | None, typer.Option(help="Workload name of the rollouts; default: that of --out.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first row that is no rollout.")] = False,
) -> None:
    """Read agent traces of any known format and write them as rollouts; repairs are noted, bad rows listed."""

    def tell(bad: BadLine) -> None:
        say(str(bad), "red")

    check_rollouts_file(out, paths)
    source = TraceImport(paths, format, name or out.name.partition(".")[0], None if strict else tell, skip=[out])
    written = write_rollouts(out, source.with_progress())
    say(f"{written} rollouts written to {out}, {source.repaired} of them with notes; {source.bad_rows} bad rows")
    counts = {"repaired": source.repaired, "bad_rows": source.bad_rows, "formats": dict(source.formats)}
    last_line({"rollouts": written, **counts, "file": str(out)}, out)


@verb
def validate(path: Annotated[Path, typer.Argument(help="Rollouts file.")]) -> None:
    """Check every line of a rollouts file; names line, field and reason of each bad one."""
    require_file(path)
    from agentbench_spec.rollouts.sizes import validate_rollouts

    report = validate_rollouts(path)
    for bad in report.bad:
        say(str(bad), "red")
    for warning in report.warnings:
        say(f"warning: {warning}", "yellow")
    say(f"{report.rollouts} good rollouts, {report.decode_points} decode points, {len(report.bad)} bad lines")
    if report.rewritten_turns:
        say(
            f"turns that are not append-only: {report.rewritten_turns} (views: {report.views}, in {report.viewed} "
            f"rollouts; else the tools changed), so sections: {report.sections}"
        )
    last_line(
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
