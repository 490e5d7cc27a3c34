"""`rollouts stats`: sizes of rollouts, and with a target what their contexts do from turn to turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from agentbench_spec.bars import Bar
from agentbench_spec.cli import flags
from agentbench_spec.cli.console import asked_for_json, console, last_line, plain_table, say, verb
from agentbench_spec.cli.preflight import check_models
from agentbench_spec.errors import ConfigError
from agentbench_spec.runs.source import check_workload, each_rollout, open_workload

if TYPE_CHECKING:
    import pandas as pd

    from agentbench_spec.rollouts.render import Renderer


@verb
def stats(
    source: Annotated[str, typer.Argument(help=flags.A_WORKLOAD, autocompletion=flags.names("workload"))],
    target: Annotated[str | None, typer.Option(help="Count tokens with this target's tokenizer and template.")] = None,
    data: flags.Data = None,
    offline_standin: flags.Standin = False,
    limit: flags.Limit = None,
    seed: flags.Seed = 0,
    by: Annotated[Literal["category", "workload"], typer.Option(help="What to group by.")] = "category",
    set_: flags.Options = None,
    thinking: Annotated[bool | None, typer.Option(help="The template's thinking flag; default: its own.")] = None,
    windows: Annotated[str | None, typer.Option(help="Context windows in tokens, with commas between.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw growth and survival of the context (.png, .pdf).")] = None,
    output: Annotated[
        Literal["table", "csv", "turns"], typer.Option(help="What is shown; csv: one row per rollout; turns: per turn.")
    ] = "table",
) -> None:
    """Turns, messages, calls; with --target also tokens, what of a turn's prefix survives, and windows exceeded."""
    if target is None and (plot or windows or output == "turns"):
        raise ConfigError("--plot, --windows and --output turns count tokens: name the target that counts (--target)")
    if asked_for_json() and output != "table":
        raise ConfigError(f"--json and --output {output} both write to stdout: leave one of them out")
    asked = tuple(map(_window, windows.split(","))) if windows else None
    options = flags.workload_options(set_, data, offline_standin)
    check_workload(source, options)
    check_models(target, options.get("tokenizer"))
    workload = open_workload(source, options, target=target)
    rollouts = each_rollout(workload, limit=limit, seed=seed)
    rollouts = chain([next(rollouts)], rollouts)
    from agentbench_spec.rollouts.growth import WINDOWS, measure_rollouts, plot_turns

    sizes = asked or WINDOWS
    renderer = _renderer(target, thinking) if target else None
    found = measure_rollouts(Bar(rollouts, desc="counting", unit="rollout", delay=1, leave=False), renderer)
    if plot and found.turns is not None:
        say(f"plot: {plot_turns(found.turns, plot, sizes, title=f'{source} in tokens of {target}')}")
    chosen = found.turns if output == "turns" else found.rollouts
    if output != "table" and chosen is not None:
        print(chosen.to_csv(index=False), end="", flush=True)
        return
    _show_stats(found.rollouts, found.turns, by, sizes)


def _renderer(target: str, thinking: bool | None) -> Renderer:
    from agentbench_spec.engine.loading import load_tokenizer
    from agentbench_spec.rollouts.render import Renderer

    return Renderer(load_tokenizer(target), thinking)


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
    last_line(last)


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
    table = plain_table()
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
