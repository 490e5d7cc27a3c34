"""A figure with its words and its numbers, and the ways to write it: svg, pdf and png files, or svg inside a page.

Only the object interface of matplotlib is used: no pyplot, no global state that outlives a call.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentbench_spec.errors import ConfigError
from agentbench_spec.report.plots.looks import Look, current
from agentbench_spec.report.plots.marks import Cell, with_values
from agentbench_spec.report.plots.palette import DARK, GRID, INK, LIGHT, MUTED, PAGE, PHASE_COLOURS
from agentbench_spec.writing import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL = "pip install matplotlib"
Format = Literal["pdf", "svg", "png"]
AS_DRAWN = Look()

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, embedded: what publishers take
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "hatch.linewidth": 0.8,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure, what it shows in words, and the numbers it was drawn from."""

    name: str
    """File stem; also the prefix of every id in the inline svg."""
    title: str
    description: str
    """Says what is drawn and what it shows, for readers who do not see it."""
    columns: tuple[str, ...]
    data: tuple[tuple[Cell, ...], ...]
    """The drawn numbers, one row a mark."""
    draw: Callable[[], Figure]
    """Draws it anew: matplotlib lays a figure out from where its last rendering left it, which would show in files."""
    keyed: bool = False
    """Colour tells the methods apart: a page has a key of them that hides each, in place of the drawn legend."""

    def svg(self, look: Look = AS_DRAWN) -> str:
        """A standalone svg document on white, with title and description inside; at a width of its own, not drawn."""
        drawn = _render_svg(self._drawn(look, titled=True), self.name, facecolor=PAGE["light"])
        return _with_words(with_values(drawn, self.columns, self.data), self)

    def inline_svg(self, prefix: str = "") -> str:
        """An svg element for an HTML page: theme colours, the page's font, no drawn title.

        prefix: put before every id, so that figures of one name can stand in one page.
        """
        drawn = _for_page(_render_svg(self._drawn(), self.name, facecolor="none"), prefix + self.name)
        ids = f"{prefix}{self.name}-"
        return _with_words(with_values(drawn, self.columns, self.data, prefix=ids, methods=self.keyed), self, prefix)

    def png(self, dpi: int = 150, look: Look = AS_DRAWN) -> bytes:
        """The figure as png on white, titled unless it has a width of its own."""
        return self._file(look, format="png", dpi=dpi, facecolor=PAGE["light"], metadata={"Software": None})

    def pdf(self, look: Look = AS_DRAWN) -> bytes:
        """The figure as pdf: vectors, fonts embedded as TrueType, nothing behind it; the same bytes every time."""
        words = {"Title": self.title, "Subject": self.description, "Creator": "agentbench-spec"}
        return self._file(look, format="pdf", transparent=True, metadata={**words, "CreationDate": None})

    def _file(self, look: Look, **options: Any) -> bytes:
        figure, buffer = self._drawn(look, titled=True), io.BytesIO()
        with _settings(self.name):
            figure.savefig(buffer, **options)
        return buffer.getvalue()

    def save(self, folder: str | Path, formats: Sequence[Format] = ("svg", "png"), look: Look = AS_DRAWN) -> list[Path]:
        """Write `<name>.<format>` for each format into `folder`, made if missing; returns the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        forms: dict[Format, Callable[[], bytes]] = {
            "svg": lambda: self.svg(look).encode(),
            "png": lambda: self.png(look=look),
            "pdf": lambda: self.pdf(look),
        }
        paths = [folder / f"{self.name}.{form}" for form in formats]
        for path, form in zip(paths, formats, strict=True):
            write_bytes(path, forms[form]())
        return paths

    def _repr_png_(self) -> bytes:
        return self.png(dpi=80)

    def _drawn(self, look: Look = AS_DRAWN, *, titled: bool = False) -> Figure:
        """titled: without a width of its own, for a figure that is given one stands above a caption."""
        with look.drawing():
            figure = self.draw()  # tells what to install without matplotlib
        from matplotlib.text import Text

        look.fit(figure)
        if titled and look.width_in is None:
            figure.suptitle(self.title, x=0.01, ha="left", fontsize=11)
        elif self.keyed and not titled:
            for legend in filter(None, (axes.get_legend() for axes in figure.axes)):
                legend.remove()
        for text in figure.findobj(Text):
            text.set_parse_math(False)  # texts made outside of our settings: a "$" in a drafter's name is a dollar
        return figure


def panels(
    heights: Sequence[float] = (1,), *, width_in: float = 5.2, height_in: float = 3.4
) -> tuple[Figure, list[Axes]]:
    """A figure of panels above each other that share x, at a size whose text can be read on a phone.

    Raises ConfigError with the install command if matplotlib is missing.
    """
    _require_matplotlib()
    from matplotlib.figure import Figure

    with _settings("panels"):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        grid: Any = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=list(heights))
    return figure, list(grid[:, 0])


def multiples(
    count: int, *, columns: int = 2, width_in: float = 5.2, row_in: float = 1.3, same_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` small panels that share x, and y if `same_y`, row by row; the last one fills its row.

    Raises ConfigError with the install command if matplotlib is missing.
    """
    _require_matplotlib()
    from matplotlib.figure import Figure

    lines = math.ceil(count / columns)
    with _settings("panels"):
        figure = Figure(figsize=(width_in, 0.9 + row_in * lines), layout="constrained")
        grid: Any = figure.subplots(lines, columns, sharex=True, sharey=same_y, squeeze=False)
    drawn, spare = grid.ravel()[:count], grid.ravel()[count:]
    for axes in spare:
        axes.remove()
    last = drawn[-1].get_subplotspec()
    drawn[-1].set_subplotspec(last.get_gridspec()[last.rowspan.start, last.colspan.start :])
    for axes in drawn[-columns - len(spare) :]:
        axes.tick_params(labelbottom=True)  # also where no panel of the same width stands below
    return figure, list(drawn)


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"figures need matplotlib, which is not installed: {INSTALL}") from error


@contextmanager
def _settings(salt: str) -> Iterator[None]:
    import matplotlib

    settings: Any = {**_SETTINGS, **current(), "svg.hashsalt": salt}
    with matplotlib.rc_context(settings):
        yield


_LONGEST = 26


def label(drafter: str) -> str:
    """A drafter's name as far as a figure has room: of a longer one the two ends, for the middle says least."""
    half = _LONGEST // 2
    return drafter if len(drafter) <= _LONGEST else f"{drafter[: half - 1]}…{drafter[-half:]}"


def _render_svg(figure: Figure, salt: str, *, facecolor: str) -> str:
    with _settings(salt):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", facecolor=facecolor, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _theme() -> Mapping[str, str]:
    """Drawn colour -> the CSS value that follows the page's theme, with the drawn colour as its fallback."""
    series = {light: f"var(--s{i}, {light})" for i, light in enumerate(LIGHT)}
    phases = {colour: f"var(--p-{name}, {colour})" for name, colour in PHASE_COLOURS.items() if colour != "#ffffff"}
    return {
        **series,
        **phases,
        INK: "currentColor",
        MUTED: f"var(--muted, {MUTED})",
        GRID: f"var(--grid, {GRID})",
        "#ffffff": "var(--page, #ffffff)",
    }


def theme_colour(drawn: str) -> str:
    """The CSS value that follows the page's theme, of a colour that figures are drawn in."""
    return _theme().get(drawn, drawn)


def theme_css(theme: str) -> str:
    """The custom properties that `inline_svg` uses, for the "light" or the "dark" page."""
    dark = theme == "dark"
    shades = [f"--s{i}:{colour}" for i, colour in enumerate(DARK if dark else LIGHT)]
    phases = _DARK_PHASES if dark else PHASE_COLOURS
    return ";".join([*shades, *(f"--p-{name}:{colour}" for name, colour in phases.items() if name != "other")])


_DARK_PHASES = {
    "prefill": "#4a515c",
    "verify": "#8a93a1",
    "accept": "#c9ced6",
    "ingest": "#c65a10",
    "draft": "#f0a04b",
    "append": "#ffdcb0",
    "other": "#ffffff",
}


def _for_page(svg: str, prefix: str) -> str:
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", head)
    svg = f"{head}>{body}"
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"font-family: [^;\"]+;? ?", "", svg)
    theme = _theme()
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: theme.get(found[0], found[0]), svg)


def _with_words(svg: str, plot: Plot, prefix: str = "") -> str:
    """Name the image for screen readers, by ids that are unique in the page."""
    from markupsafe import escape

    name = prefix + plot.name
    title = f'<title id="{name}-title">{escape(plot.title)}</title>'
    description = f'<desc id="{name}-desc">{escape(plot.description)}</desc>'
    attributes = f' role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc"'
    head, _, body = svg.partition(">")
    return f"{head}{attributes}>{title}{description}{body}"
