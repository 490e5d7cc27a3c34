"""`plan-fleet`: GPUs, tokens per second and cost of so many agent sessions, by method, from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from agentbench_spec.cli.console import console, last_line, plain_table, say, verb
from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from agentbench_spec.results.throughput.pass_rows import ThroughputRow
    from agentbench_spec.runs.scale.fleet import Asked, Need, PassCheck


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
    _refuse(turn_rate=turn_rate, first_token_s=first_token_s, gpu_hour=gpu_hour, gpu_memory_gb=gpu_memory_gb)
    from agentbench_spec.results.folder import read_turns
    from agentbench_spec.results.machines.store import reading
    from agentbench_spec.runs.scale.fleet import Asked, by_context, check_passes, needs, with_mix
    from agentbench_spec.runs.scale.service import services_of

    manifest, rows = read_turns(reading(run), lenient=True)
    passes = _passes(batches, manifest)
    services = services_of(rows, passes)
    if mix:
        services = with_mix(services, _mix(mix))
    memory = int(gpu_memory_gb * 1e9) if gpu_memory_gb else _memory(manifest)
    weights = int((manifest.get("card") or {}).get("weight_bytes") or 0)
    asked = Asked(sessions, 60 / turn_rate, first_token_s, gpu_hour, memory, weights, seed)
    found, contexts, checked = needs(services, asked), by_context(services), check_passes(passes)
    console.print(_table(found, asked))
    console.print(_contexts(contexts, [need.method for need in found]))
    for line in _notes(found, asked, checked, batches):
        say(line)
    plain = [asdict(need) for need in found]
    checks = [{**asdict(own), "inside": own.inside} for own in checked]
    last_line({"asked": asdict(asked), "needs": plain, "contexts": contexts, "checked": checks})


def _refuse(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: expected a number above 0")


def _passes(batches: Path | None, manifest: dict[str, Any]) -> Sequence[ThroughputRow]:
    """Raises ConfigError if the throughput run is none, or of another target."""
    if batches is None:
        return ()
    from agentbench_spec.results.folder import read_manifest
    from agentbench_spec.results.throughput.pass_rows import read_rows

    own = read_manifest(batches)
    passes = read_rows(batches)
    if not passes:
        raise ConfigError(f"--batches {batches}: no passes of a throughput run; make one with `reproduce table4`")
    sources = [((each.get("settings") or {}).get("target") or {}).get("source") for each in (manifest, own)]
    if sources[0] != sources[1]:
        raise ConfigError(f"--batches {batches}: measured with {sources[1]}, and the run with {sources[0]}")
    return passes


def _mix(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            found[name.strip()] = -1.0
        if not 0 <= found[name.strip()] < float("inf") or not name.strip():
            raise ConfigError(f"--mix {part.strip()!r}: expected CONTEXT=SHARE, such as '4K-8K=0.7,16K-32K=0.3'")
    if not sum(found.values()):
        raise ConfigError("--mix: all shares are 0")
    return found


def _memory(manifest: dict[str, Any]) -> int | None:
    gpus = (manifest.get("host") or {}).get("gpus") or []
    return int(gpus[0]["memory_bytes"]) if gpus and gpus[0].get("memory_bytes") else None


def _table(found: Sequence[Need], asked: Asked) -> Table:
    table = plain_table("method")
    headings = ["GPUs [95 %]", "sessions\na GPU", "tokens/s", "first token\np50 / p95", "GPU s\na turn", "saves [95 %]"]
    for heading in headings + (["cost\nan hour"] if asked.gpu_hour else []):
        table.add_column(heading, justify="right")
    for own in found:
        cells = [
            "-" if own.gpus is None else f"{own.gpus}{_spread(own.gpus_low, own.gpus_high)}",
            str(own.sessions_per_gpu or "-"),
            _number(own.tokens_per_s, ",.0f"),
            f"{_number(own.first_token_p50_s)} / {_number(own.first_token_p95_s)} s",
            f"{own.turn_s:.2f}",
            "" if own.saves is None else f"{own.saves:.0%}{_shares(own.saves_low, own.saves_high)}",
        ]
        cells += [_number(own.cost_per_hour)] if asked.gpu_hour else []
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


def _notes(found: Sequence[Need], asked: Asked, checked: Sequence[PassCheck], batches: Path | None) -> Iterator[str]:
    yield "an estimate: sessions stay on their GPU and keep their prefix there; nothing fails, load is spread evenly"
    if batches is None:
        yield "no batches were measured (--batches): every GPU serves one turn at a time, which a server need not"
    else:
        alone = [need.method for need in found if need.batch == 1]
        if alone:
            yield f"{', '.join(alone)}: no batches measured, one turn at a time"
    if checked:
        inside = sum(own.inside for own in checked)
        yield f"checked: {inside} of {len(checked)} measured points are simulated within their interval"
    for need in found:
        if need.gpus is None:
            yield f"{need.method}: not even one session a GPU is served as asked; {need.bound_by} is short"
        elif need.bound_by == "memory":
            yield f"{need.method}: memory, not time, bounds the sessions of a GPU"
    if asked.memory_bytes is None:
        yield "the run names no GPU: memory bounds nothing (--gpu-memory-gb)"


def _spread(low: int | None, high: int | None) -> str:
    return "" if low is None or high is None else f" [{low}, {high}]"


def _shares(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.0%}, {high:.0%}]"


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
