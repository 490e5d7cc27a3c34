"""What `--dry-run` shows: downloads, memory, turns and tokens by context, time by method."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from agentbench_spec.cli.console import console, last_line, plain_table, say
from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from agentbench_spec.reproduce.ahead import Ahead
    from agentbench_spec.reproduce.plan import Request
    from agentbench_spec.runs.scale.dry_run import DryRun
    from agentbench_spec.runs.scale.footprint import Download, Memory
    from agentbench_spec.runs.scale.forecast import Forecast
    from agentbench_spec.runs.scale.shards import Shard


def show_dry_run(settings: RunConfig, speeds: str | None, begun: Path | None, shard: Shard | None) -> None:
    """`run --dry-run`: the plan of one run, or of a shard of it, on screen and as the JSON line.

    begun: the run that would be continued.
    """
    from agentbench_spec.results.folder import completed_rollouts
    from agentbench_spec.runs.scale.dry_run import dry_run
    from agentbench_spec.runs.scale.speeds import read_speeds

    known = read_speeds(speeds) if speeds else None
    done = completed_rollouts(begun) if begun else {}
    found = dry_run(settings, known, done=done, shard=shard, tell=_tell)
    show(found, set())
    _say_source(known.source if known else None)
    last_line({"dry_run": found.as_dict(), "speeds": known.source if known else None})


def show_table_plan(table: str, request: Request, speeds: str | None) -> None:
    """`reproduce --dry-run`: what each column still takes, all of them together, and the JSON line."""
    from agentbench_spec.reproduce.ahead import columns_ahead
    from agentbench_spec.results.costs import total_of
    from agentbench_spec.runs.scale.speeds import read_speeds

    known = read_speeds(speeds) if speeds else None
    columns, said = [], set[str]()
    for own in columns_ahead(table, request, known, _tell):
        say(f"{own.column}: {_state(own)}", "bold")
        if own.dry:
            show(own.dry, said)
        columns.append(own)
    totals = [own.dry.forecast.totals_s() for own in columns if own.dry]
    ends = [total_of([pair[i] for pair in totals]) for i in (0, 1)]
    if ends[0] is not None:
        say(f"all that is still to be run: {duration(ends[0])}, at most {duration(ends[1])}")
    _say_source(known.source if known else None)
    last_line(
        {
            "table": table,
            "columns": [own.as_dict() for own in columns],
            "recorded_s": ends[0],
            "most_s": ends[1],
            "speeds": known.source if known else None,
        }
    )


def _state(own: Ahead) -> str:
    if own.missing:
        return f"cannot be run: {own.missing}"
    return f"finished, {own.folder} is reused" if own.finished else f"to be run into {own.folder}"


def refuse_speeds(speeds: str | None, dry_run: bool) -> None:
    """Raises ConfigError for --speeds without --dry-run, which alone uses them."""
    if speeds is not None and not dry_run:
        raise ConfigError(
            "--speeds says how fast --dry-run takes the machine to be; give it --dry-run, or leave it out"
        )


def _tell(line: str) -> None:
    say(line, "dim")


def _say_source(source: str | None) -> None:
    if source is None:
        say("no time is told: --speeds RUN takes the speeds of a run, --speeds prefill=640,none=23.5 given ones", "dim")
    else:
        say(f"speeds: {source}; warm-up and turns that are decoded again come on top", "dim")


def show(found: DryRun, said: set[str]) -> None:
    """One run's plan, without the JSON line. said: lines about models that stand there already; grows."""
    for line in (*map(_download_line, found.downloads), *(_memory_lines(found.memory) if found.memory else ())):
        if line not in said:
            say(line)
        said.add(line)
    say(f"{found.forecast.workload}: {found.forecast.rollouts} rollouts, {found.forecast.turns} turns")
    for table in _tables(found.forecast):
        console.print(table)
    for note in found.forecast.notes:
        say(f"note: {note}", "yellow")


def _download_line(own: Download) -> str:
    what = f"{own.what}: {own.source}" if own.what != own.source else own.source
    if own.files is None:
        return f"{what}: downloads not known: {own.note}"
    here = f"{own.files} files to fetch, {size(own.fetch_bytes)}" if own.files else "nothing to fetch"
    return f"{what}: {here}{f' ({own.note})' if own.note else ''}"


def _memory_lines(need: Memory) -> Iterator[str]:
    drafters = "".join(f", {name} {size(own)}" for name, own in need.drafter_bytes.items())
    yield (
        f"memory: at least {size(need.total_bytes)} on the device, and activations: weights {size(need.weight_bytes)} "
        f"({need.dtype}), KV {size(need.kv_bytes)} for {need.capacity_tokens:,} tokens{drafters}"
    )


def _tables(found: Forecast) -> Iterator[Table]:
    if found.stretches is None:
        return
    tokens = plain_table("context")
    for heading in ("turns", "prompt tokens", "to prefill", "output, as recorded", "output, at most"):
        tokens.add_column(heading, justify="right")
    for own in found.stretches:
        counts = (own.turns, own.prompt_tokens, own.new_tokens, own.recorded_tokens, own.most_tokens)
        tokens.add_row(own.context, *(f"{count:,}" for count in counts))
    yield tokens
    if any(own.recorded_s is not None for own in found.methods.values()):
        yield _times(found)


def _times(found: Forecast) -> Table:
    table = plain_table("method")
    for heading in ("replies as recorded", "replies at their cap"):
        table.add_column(heading, justify="right")
    table.add_column("")
    table.add_row("prefill, shared", duration(found.prefill_s), duration(found.prefill_s), "")
    for name, own in found.methods.items():
        table.add_row(Text(name), duration(own.recorded_s), duration(own.most_s), own.source or "")
    recorded_s, most_s = found.totals_s()
    table.add_row("all", duration(recorded_s), duration(most_s), "each decodes twice" if found.passes == 2 else "")
    return table


def size(count: int | None) -> str:
    """Bytes for a reader."""
    if count is None:
        return "size not known"
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def duration(seconds: float | None) -> str:
    """Seconds for a reader; "-" where nothing is known."""
    if seconds is None:
        return "-"
    hours, minutes = int(seconds // 3600), int(seconds % 3600 // 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds % 60:02.0f} s"
