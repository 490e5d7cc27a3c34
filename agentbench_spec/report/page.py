"""Runs as one HTML page that needs nothing else: findings, benchmark card, tables, figures, what was left out.

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
from agentbench_spec.report.cards import Fact, Heading, conditions, heading
from agentbench_spec.report.engine_grids import engine_grids
from agentbench_spec.report.exclusions import excluded_grids
from agentbench_spec.report.grids import (
    Grid,
    calls_grid,
    divergence_grid,
    lossless_grid,
    overview_grid,
    plot_grid,
    policy_grids,
    share,
    summary_grid,
)
from agentbench_spec.report.live_grids import live_grids
from agentbench_spec.report.plots import Plot, ThroughputPoint, draw_all, drawn
from agentbench_spec.report.plots.canvas import theme_colour, theme_css
from agentbench_spec.report.plots.marks import series_of
from agentbench_spec.report.plots.palette import GLYPHS, styles
from agentbench_spec.report.throughput_words import throughput_findings
from agentbench_spec.results.clock_checks import clock_lines
from agentbench_spec.results.findings.screen import findings, measured_on
from agentbench_spec.results.findings.wording import Finding
from agentbench_spec.results.folder import read_turns
from agentbench_spec.results.manifest import counting
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import Summary, notes, summarise
from agentbench_spec.results.verdict import not_finite
from agentbench_spec.runs.card import baseline_step_s
from agentbench_spec.writing import write_bytes

TEMPLATE = "report.html.jinja"


@dataclass(frozen=True, slots=True)
class Key:
    """A method in the key of a figure."""

    name: str
    glyph: str
    colour: str
    """CSS value that follows the theme."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure as the page shows it."""

    plot: Plot
    svg: str
    """The inline element, safe markup."""
    data: Grid
    keys: tuple[Key, ...]
    """Methods that its colours tell apart; none where their names stand in the figure."""


@dataclass(frozen=True, slots=True)
class Section:
    """Everything the page says about one run."""

    anchor: str
    heading: Heading
    verdict: tuple[str, str] | None
    """("bad" or "warn", sentence) if the run is void or unfinished."""
    measured_on: str
    findings: tuple[Finding, ...]
    conditions: tuple[Fact, ...]
    summary: Grid
    notes: tuple[str, ...]
    live: tuple[Grid, ...]
    panels: tuple[Panel, ...]
    """Figures that stand below the findings."""
    more_panels: tuple[Panel, ...]
    not_drawn: tuple[str, ...]
    """What the figures that are missing would need."""
    excluded: tuple[Grid, Grid] | None
    """By reason, and turn by turn; None if every turn counts."""
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
    title: str | None = None,
) -> Path:
    """Write the report over the runs in `folders` to `out`; returns `out`. Raises what `build_report` raises."""
    page = build_report(folders, tables=tables, throughput=throughput, cards=cards, plots=plots, title=title)
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
    title: str | None = None,
) -> str:
    """The page as text. tables: shown below the cards of all runs; throughput: drawn under them, and so are plots.

    cards: of runs that tables and throughput come from and that have no section of their own. title: of the page; None:
    its subject, and the runs in the tab's name.

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
    overview = [*([overview_grid(named)] if len(runs) > 1 else []), *engine_grids(runs)]
    overview += policy_grids([rows for _, rows in runs])
    headings = [*(section.heading for section in sections), *cards]
    together = _panels([*draw_all((), throughput), *plots], "all-")
    return _render(sections, headings, [*overview, *tables], together, throughput_findings(throughput), title)


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
    figures, own = drawn(rows), heading(name, manifest, baseline_step_s(rows))
    return Section(
        anchor=anchor,
        heading=own,
        verdict=_verdict(manifest, summary, rows),
        measured_on=measured_on(rows),
        findings=(*findings(rows, summary, **counting(manifest)), *_baseline(own)),
        conditions=tuple(conditions(manifest, rows)),
        summary=summary_grid(summary),
        notes=(*clock_lines(rows), *notes(summary), *map(str, manifest.get("notes") or ())),
        live=live_grids(rows),
        panels=_panels(figures.first, f"{anchor}-"),
        more_panels=_panels(figures.more, f"{anchor}-"),
        not_drawn=tuple(figures.missing),
        excluded=excluded_grids(rows),
        lossless=lossless_grid(summary),
        divergences=divergence_grid(rows),
        calls=calls_grid(summary, live=rows[0].history_mode == "live"),
        manifest=json.dumps(manifest, indent=2, ensure_ascii=False),
    )


def _baseline(own: Heading) -> Iterable[Finding]:
    """How near the baseline is to the speed of the memory, where that was measured; the card has the rest."""
    if own.ceiling is not None:
        near = (
            f"Plain decoding, which speed-ups are over, runs at {_percent(own.ceiling)} of the speed the memory allows."
        )
        yield Finding("Baseline", near)


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


def _panels(plots: Iterable[Plot], prefix: str) -> tuple[Panel, ...]:
    return tuple(Panel(plot, plot.inline_svg(prefix), plot_grid(plot), _keys(plot)) for plot in plots)


def _keys(plot: Plot) -> tuple[Key, ...]:
    """The methods of a keyed figure in the order in which they are drawn."""
    names = dict.fromkeys(filter(None, (series_of(plot.columns, row) for row in plot.data))) if plot.keyed else {}
    looks = styles(names)
    return tuple(Key(name, GLYPHS[looks[name].marker], theme_colour(looks[name].colour)) for name in names)


def _render(
    sections: Sequence[Section],
    cards: Sequence[Heading],
    tables: Sequence[Grid],
    panels: Sequence[Panel],
    throughput: Sequence[Finding],
    title: str | None,
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
    return environment.get_template(TEMPLATE).render(
        sections=sections, cards=cards, tables=tables, panels=panels, throughput=throughput, title=title
    )


def _percent(value: float) -> str:
    return share(value).text
