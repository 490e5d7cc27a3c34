"""`plan-fleet`: GPUs, tokens per second and cost of so many agent sessions, by method, from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from agentbench_spec.cli.console import console, last_line, plain_table, say, verb
from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from agentbench_spec.runs.scale.fleet import PassCheck
    from agentbench_spec.runs.scale.planning import FleetPlan


@verb
def plan_fleet(
    run: Annotated[Path, typer.Argument(help="Run folder: how long turns take by each method.")],
    sessions: Annotated[int, typer.Option(min=1, help="Agent sessions at a time.")],
    turn_rate: Annotated[float, typer.Option(help="Turns a minute that each session asks for.")],
    batches: Annotated[
        Path | None, typer.Option(help="Throughput run of the same machine (table 4): how steps lengthen in a batch.")
    ] = None,
    mix: Annotated[str | None, typer.Option(help="Shares of contexts, such as '4K-8K=0.7,16K-32K=0.3'.")] = None,
    first_token_s: Annotated[
        float | None, typer.Option(help="Seconds that 95 of 100 first tokens come within.")
    ] = None,
    gpu_hour: Annotated[float | None, typer.Option(help="Price of a GPU hour.")] = None,
    gpu_memory_gb: Annotated[float | None, typer.Option(help="Memory of a GPU; default: as the run found it.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sessions.")] = 0,
) -> None:
    """How many GPUs serve so many agent sessions with each method, and what each method saves: an estimate."""
    from agentbench_spec.runs.scale.planning import plan_fleet as planned

    found = planned(
        run,
        sessions=sessions,
        turn_rate=turn_rate,
        batches=batches,
        mix=_mix(mix) if mix else None,
        first_token_s=first_token_s,
        gpu_hour=gpu_hour,
        gpu_memory_gb=gpu_memory_gb,
        seed=seed,
    )
    console.print(_table(found))
    console.print(_contexts(found.contexts, [need.method for need in found.needs]))
    if found.checked:
        console.print(_checks(found.checked))
    for line in _notes(found, batches):
        say(line)
    last_line(found.as_dict())


def _mix(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise ConfigError(
                f"--mix {part.strip()!r}: expected CONTEXT=SHARE, such as '4K-8K=0.7,16K-32K=0.3'"
            ) from None
    return found


def _table(found: FleetPlan) -> Table:
    table = plain_table("method")
    headings = ["GPUs [95 %]", "sessions\na GPU", "tokens/s", "first token\np50 / p95", "GPU s\na turn", "saves [95 %]"]
    for heading in headings + (["cost\nan hour"] if found.asked.gpu_hour else []):
        table.add_column(heading, justify="right")
    for own in found.needs:
        cells = [
            "-" if own.gpus is None else f"{own.gpus}{_spread(own.gpus_low, own.gpus_high)}",
            str(own.sessions_per_gpu or "-"),
            _number(own.tokens_per_s, ",.0f"),
            f"{_number(own.first_token_p50_s)} / {_number(own.first_token_p95_s)} s",
            f"{own.turn_s:.2f}",
            "" if own.saves is None else f"{own.saves:.0%}{_shares(own.saves_low, own.saves_high)}",
        ]
        cells += [_number(own.cost_per_hour)] if found.asked.gpu_hour else []
        table.add_row(Text(own.method), *cells)
    return table


def _contexts(contexts: Sequence[dict[str, Any]], methods: Sequence[str]) -> Table:
    table = plain_table("context")
    table.add_column("turns", justify="right")
    for method in methods:
        table.add_column(Text(f"{method}\nGPU s"), justify="right")
    for own in contexts:
        seconds = (f"{own['turn_s'][method]:.2f}" for method in methods)
        table.add_row(own["context"], f"{own['share']:.0%}", *seconds)
    return table


def _checks(checked: Sequence[PassCheck]) -> Table:
    """Measured points beside their simulation: from the steps of all points, and from those of the others alone."""
    table = plain_table("checked, tokens/s")
    for heading in ("rows", "measured [95 %]", "simulated", "foretold"):
        table.add_column(heading, justify="right")
    for own in checked:
        spread = "" if own.low is None or own.high is None else f" [{own.low:.1f}, {own.high:.1f}]"
        simulated = (_number(value, ".1f") for value in (own.simulated, own.foretold))
        table.add_row(Text(own.method), str(own.concurrency), f"{own.measured:.1f}{spread}", *simulated)
    return table


def _notes(found: FleetPlan, batches: Path | None) -> Iterator[str]:
    yield "an estimate: sessions stay on their GPU and keep their prefix there; nothing fails, load is spread evenly"
    if batches is None:
        yield "no batches were measured (--batches): every GPU serves one turn at a time, which a server need not"
    else:
        alone = [need.method for need in found.needs if need.batch == 1]
        if alone:
            yield f"{', '.join(alone)}: no batches measured, one turn at a time"
    if found.checked:
        yield _verdict(found.checked)
    for need in found.needs:
        if need.gpus is None:
            yield f"{need.method}: not even one session a GPU is served as asked; {need.bound_by} is short"
        elif need.bound_by == "memory":
            yield f"{need.method}: memory, not time, bounds the sessions of a GPU"
    if found.asked.memory_bytes is None:
        yield "the run names no GPU: memory bounds nothing (--gpu-memory-gb)"


def _verdict(checked: Sequence[PassCheck]) -> str:
    inside = sum(own.inside for own in checked)
    said = (
        f"checked: {inside} of {len(checked)} measured points are simulated within their interval, from their own steps"
    )
    foretold = [own.foretold / own.measured - 1 for own in checked if own.foretold is not None]
    if not foretold:
        return f"{said}; none lies between two others, so that none is foretold from them"
    return f"{said}; foretold from the other points: off by {min(foretold):+.0%} to {max(foretold):+.0%}"


def _spread(low: int | None, high: int | None) -> str:
    return "" if low is None or high is None else f" [{low}, {high}]"


def _shares(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.0%}, {high:.0%}]"


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
