"""`bench geometry`: how fast a published geometry is, with random weights and a scripted acceptance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentbench_spec.cli.console import interruptible, last_line, say, verb
from agentbench_spec.cli.sheets import print_sheet
from agentbench_spec.errors import ConfigError
from agentbench_spec.writing import write_bytes


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part.strip().replace("_", "")) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"{text!r}: expected whole numbers with commas between, such as 1024,4096") from None
    if not found:
        raise ConfigError("no number is given; write whole numbers with commas between, such as 1024,4096")
    return tuple(dict.fromkeys(found))


@verb
def geometry(
    name: Annotated[str, typer.Argument(help="qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b or llama-3.1-8b.")],
    context: Annotated[str, typer.Option(help="Tokens of context, with commas between.")] = "1024,4096,16384,65536",
    concurrency: Annotated[str, typer.Option(help="Rows that decode together, with commas between.")] = "1,4,16,64",
    drafter: Annotated[
        list[str] | None, typer.Option(help="eagle3, dflash, dspark, dlite; repeatable. Default: all published.")
    ] = None,
    width: Annotated[str, typer.Option(help="Positions the target is fed at once by a look-up.")] = "2,4,8,16",
    tau: Annotated[float, typer.Option(help="Scripted tokens a round: an input, no result.")] = 3.0,
    thin: Annotated[bool, typer.Option("--thin", help="Other widths, to try the code on any machine.")] = False,
    dtype: Annotated[str, typer.Option(help="auto (bf16 on CUDA, fp32 on a CPU), fp32, bf16, fp16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    graphs: Annotated[str, typer.Option(help="auto, on or off: rounds replayed from CUDA graphs.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a timed pass.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes; the median counts.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, keys and values, and the script.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder; what it holds of the same settings is kept.")] = None,
) -> None:
    """Steps, verification, drafts and draft KV of a published geometry: random weights, scripted τ, no checkpoint."""
    from agentbench_spec.runs.geometry.published_shapes import target_config

    target_config(name, thin=thin)  # a name that is unknown is told before torch is loaded
    contexts, together, widths = _numbers(context), _numbers(concurrency), _numbers(width)
    from agentbench_spec.results.export import markdown
    from agentbench_spec.runs.geometry.cell import GeometryPlan
    from agentbench_spec.runs.geometry.geometry_run import run_geometry
    from agentbench_spec.runs.geometry.geometry_sheet import sheet_of

    plan = GeometryPlan(
        geometry=name,
        contexts=contexts,
        concurrency=together,
        drafters=tuple(dict.fromkeys(drafter)) if drafter else None,
        widths=widths,
        tau=tau,
        thin=thin,
        dtype=dtype,
        device=device,
        graphs=graphs,
        rounds=rounds,
        repeats=repeats,
        seed=seed,
    )
    folder = out or Path("results") / f"geometry-{name}{'-thin' if thin else ''}"
    with interruptible(lambda: f"the same command goes on from {folder}"):
        rows = run_geometry(plan, folder, lambda line: say(line, "dim"))
    sheet = sheet_of(name, rows)
    write_bytes(folder / "table.md", markdown(sheet).encode())
    print_sheet(sheet)
    say(f"rows, manifest and table: {folder}")
    statuses = {status: sum(row.status == status for row in rows) for status in ("ok", "out_of_memory", "error")}
    last_line({"folder": str(folder), "tau_scripted": tau, "thin": thin, "rows": statuses})
    if statuses["error"]:
        say(f"{statuses['error']} rows have an error; their reason is in {folder}", "red", "failed: ")
        raise typer.Exit(1)
