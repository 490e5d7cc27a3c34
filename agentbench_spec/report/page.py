"""Runs as one HTML page that needs nothing else: benchmark card, conditions, tables, figures, what was left out.

The page loads nothing from anywhere; its content security policy says so. Figures are inline svg that follow the
reader's light or dark theme; the numbers of each figure stand under it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.report.grids import (
    NOTHING,
    Grid,
    calls_grid,
    divergence_grid,
    excluded_grid,
    lossless_grid,
    number,
    overview_grid,
    plot_grid,
    policy_grids,
    share,
    size,
    summary_grid,
)
from agentbench_spec.report.live_grids import live_grids
from agentbench_spec.report.plots import Plot, ThroughputPoint, draw_all
from agentbench_spec.report.plots.canvas import theme_css
from agentbench_spec.results.clock_checks import TapsCost, clock_lines
from agentbench_spec.results.folder import read_turns
from agentbench_spec.results.manifest import counting
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import Summary, notes, summarise
from agentbench_spec.results.verdict import not_finite
from agentbench_spec.runs.card import baseline_step_s, launches_text
from agentbench_spec.writing import write_bytes

Fact = tuple[str, str]
"""A name and its value, both as printed."""

TEMPLATE = "report.html.jinja"


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure as the page shows it."""

    plot: Plot
    svg: str
    """The inline element, safe markup."""
    data: Grid


@dataclass(frozen=True, slots=True)
class Heading:
    """A run's name and its benchmark card."""

    name: str
    card: tuple[Fact, ...]
    ceiling: float | None
    """The baseline's share of the speed that the memory allows; None if unknown."""


@dataclass(frozen=True, slots=True)
class Section:
    """Everything the page says about one run."""

    anchor: str
    heading: Heading
    verdict: tuple[str, str] | None
    """("bad" or "warn", sentence) if the run is void or unfinished."""
    conditions: tuple[Fact, ...]
    summary: Grid
    notes: tuple[str, ...]
    live: tuple[Grid, ...]
    panels: tuple[Panel, ...]
    excluded: Grid | None
    lossless: Grid
    divergences: Grid | None
    calls: Grid | None
    manifest: str


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    tables: Sequence[Grid] = (),
    throughput: Sequence[ThroughputPoint] = (),
    cards: Sequence[Heading] = (),
    plots: Sequence[Plot] = (),
) -> Path:
    """Write the report over the runs in `folders` to `out`; returns `out`. Raises what `build_report` raises."""
    page = build_report(folders, tables=tables, throughput=throughput, cards=cards, plots=plots)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, page.encode())
    return out


def build_report(
    folders: Sequence[Path],
    *,
    tables: Sequence[Grid] = (),
    throughput: Sequence[ThroughputPoint] = (),
    cards: Sequence[Heading] = (),
    plots: Sequence[Plot] = (),
) -> str:
    """The page as text. tables: shown below the cards of all runs; throughput: drawn under them, and so are plots.

    cards: of runs that tables and throughput come from and that have no section of their own.

    Raises ConfigError if a folder is given twice, holds no run or one that cannot be used (see `read_turns`), or if
    matplotlib is missing.
    """
    if not folders and not tables:
        raise ConfigError("a report needs at least one run folder, or a table")
    names = run_names(folders)
    runs = [read_turns(folder, lenient=True) for folder in folders]
    summaries = [summarise(rows, **counting(manifest)) for manifest, rows in runs]
    sections = [
        _section(f"run-{i}", name, manifest, rows, summary)
        for i, (name, (manifest, rows), summary) in enumerate(zip(names, runs, summaries, strict=True), 1)
    ]
    named = [(name, m.get("settings") or {}, s) for name, (m, _), s in zip(names, runs, summaries, strict=True)]
    overview = [*([overview_grid(named)] if len(runs) > 1 else []), *policy_grids([rows for _, rows in runs])]
    headings = [*(section.heading for section in sections), *cards]
    return _render(sections, headings, [*overview, *tables], _panels([*draw_all((), throughput), *plots], "all-"))


def save_figures(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write every figure of every run as svg and png into `out`, or into `out/<run>` if there are several runs.

    Raises what `build_report` raises.
    """
    saved = []
    for folder, name in zip(folders, run_names(folders), strict=True):
        _, rows = read_turns(folder, lenient=True)
        place = out / name if len(folders) > 1 else out
        saved += [path for plot in draw_all(rows) for path in plot.save(place)]
    return saved


def run_names(folders: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's, with as many folders above as tell the runs apart.

    Raises ConfigError if a folder is given twice.
    """
    paths = [folder.resolve() for folder in folders]
    if twice := [str(folder) for folder, path in zip(folders, paths, strict=True) if paths.count(path) > 1]:
        raise ConfigError(f"one run is given twice ({', '.join(twice)}); name each run once")
    depth, deepest = 1, max((len(path.parts) for path in paths), default=0)
    while len(set(names := ["-".join(path.parts[1:][-depth:]) for path in paths])) < len(paths) and depth < deepest:
        depth += 1
    return names


def _section(anchor: str, name: str, manifest: Mapping[str, Any], rows: Sequence[TurnRow], summary: Summary) -> Section:
    return Section(
        anchor=anchor,
        heading=heading(name, manifest, baseline_step_s(rows)),
        verdict=_verdict(manifest, summary, rows),
        conditions=tuple(_conditions(manifest, rows)),
        summary=summary_grid(summary),
        notes=(*clock_lines(rows), *notes(summary), *map(str, manifest.get("notes") or ())),
        live=live_grids(rows),
        panels=_panels(draw_all(rows), f"{anchor}-"),
        excluded=excluded_grid(rows),
        lossless=lossless_grid(summary),
        divergences=divergence_grid(rows),
        calls=calls_grid(summary, live=rows[0].history_mode == "live"),
        manifest=json.dumps(manifest, indent=2, ensure_ascii=False),
    )


def heading(name: str, manifest: Mapping[str, Any], step_s: float | None) -> Heading:
    """The benchmark card of a run; step_s: seconds of one plain decode step, None: unknown."""
    floor_s = (manifest.get("card") or {}).get("floor_s")
    ceiling = floor_s / step_s if floor_s and step_s else None
    return Heading(name, tuple(_card(manifest, step_s)), ceiling)


def _verdict(manifest: Mapping[str, Any], summary: Summary, rows: Sequence[TurnRow]) -> tuple[str, str] | None:
    if found := not_finite(rows):
        return "bad", f"This run is void: {found}. Do not quote its figures."
    errors = sum(own.losslessness.errors for own in summary.drafters)
    if errors:
        return "bad", (
            f"This run is void: {errors} {'output differs' if errors == 1 else 'outputs differ'} from plain decoding "
            "by more than a near tie. Do not quote its figures."
        )
    if not manifest.get("finished"):
        return "warn", "This run is not finished: the figures are over the turns written so far."
    return None


def _card(manifest: Mapping[str, Any], step_s: float | None) -> Iterable[Fact]:
    card, host = manifest.get("card") or {}, manifest.get("host") or {}
    read, floor_s, cost_s = card.get("read_bytes_per_s"), card.get("floor_s"), card.get("phase_cost_s")
    yield "Machine", _machine(host)
    yield "Target", " ".join(filter(None, (card.get("target"), card.get("dtype"), _on(card.get("device")))))
    yield "Weights read by a step", size(card.get("weight_bytes")).text
    yield "KV per token", size(card.get("kv_bytes_per_token")).text
    yield "Memory reads", number(read and read / 1e9, 1, " GB/s").text
    yield "Fastest possible step", number(floor_s and 1e3 * floor_s, 1, " ms").text
    yield "Baseline step, measured", number(step_s and 1e3 * step_s, 1, " ms").text
    if launches := card.get("launches"):
        yield "Rounds", launches_text(launches)
    yield "Clock, cost of a phase", number(cost_s and 1e6 * cost_s, 1, " µs").text
    yield "Prefill, cost of hidden states for drafters", _taps(card.get("taps_cost"))


def _taps(found: Mapping[str, Any] | float | None) -> str:
    if isinstance(found, Mapping):
        return TapsCost(found["cost"], found["low"], found["high"], found["pairs"]).text
    return NOTHING if found is None else f"{found:+.1%}, without an interval: may be noise"


def _on(device: str | None) -> str | None:
    return f"on {device}" if device else None


def _machine(host: Mapping[str, Any]) -> str:
    parts = [gpu.get("name") for gpu in host.get("gpus") or ()]
    parts += [host.get("cpu"), _threads(host.get("threads"))]
    parts += [f"{size(host['ram_bytes']).text} of memory" if host.get("ram_bytes") else None]
    return ", ".join(str(part) for part in parts if part) or NOTHING


def _threads(count: int | None) -> str | None:
    return f"{count} {'thread' if count == 1 else 'threads'}" if count else None


def _conditions(manifest: Mapping[str, Any], rows: Sequence[TurnRow]) -> Iterable[Fact]:
    """What every row has in common, read from the rows; what only the settings say, from the manifest."""
    row, settings = rows[0], manifest.get("settings") or {}
    options = (settings.get("workload") or {}).get("options") or {}
    yield "Workload", ", ".join(sorted({r.workload for r in rows}) + [f"{k} = {v}" for k, v in options.items()])
    yield "Rollouts", f"{len({(r.workload, r.rollout) for r in rows}):,}"
    yield "Turns", f"{len({(r.workload, r.rollout, r.turn) for r in rows}):,}"
    yield "Drafts asked for (k)", ", ".join(str(k) for k in sorted({r.k for r in rows if r.k})) or NOTHING
    yield "Output cap", _tokens((settings.get("decode") or {}).get("max_new_tokens"))
    yield "Temperature", f"{row.temperature:g}" + (" (greedy)" if row.greedy else "")
    yield "Sampler cuts", ", ".join(f"{n} {v}" for n in ("top_k", "top_p") if (v := getattr(row, n))) or "none"
    yield "Decoding", row.decode_mode
    yield "History", row.history_mode
    yield "Prefix between turns", row.prefix_mode
    yield "Thinking", "the template has no such flag" if row.thinking is None else "on" if row.thinking else "off"
    yield "Clock", row.clock
    yield "Seed", str((settings.get("measure") or {}).get("seed", NOTHING))
    yield "Loops counted", "yes" if counting(manifest)["include_degenerate"] else "no"
    yield "Code", _code(manifest)
    yield "Started", str(manifest.get("started") or NOTHING)


def _tokens(count: int | None) -> str:
    return NOTHING if count is None else f"{count:,} tokens"


def _code(manifest: Mapping[str, Any]) -> str:
    git = manifest.get("git") or {}
    version = (manifest.get("packages") or {}).get("agentbench-spec")
    commit = f"commit {git['sha'][:12]}" + (" with local changes" if git.get("dirty") else "") if git.get("sha") else ""
    return ", ".join(filter(None, (version and f"agentbench-spec {version}", commit))) or NOTHING


def _panels(plots: Iterable[Plot], prefix: str) -> tuple[Panel, ...]:
    return tuple(Panel(plot, plot.inline_svg(prefix), plot_grid(plot)) for plot in plots)


def _render(
    sections: Sequence[Section], cards: Sequence[Heading], tables: Sequence[Grid], panels: Sequence[Panel]
) -> str:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda name: resources.files("agentbench_spec.data").joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"light": theme_css("light"), "dark": theme_css("dark"), "percent": _percent}
    return environment.get_template(TEMPLATE).render(sections=sections, cards=cards, tables=tables, panels=panels)


def _percent(value: float) -> str:
    return share(value).text
