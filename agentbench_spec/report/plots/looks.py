"""How a figure is written to a file: its width, the size of its text, and a style of the author's own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from agentbench_spec.errors import ConfigError
from agentbench_spec.report.plots.legends import narrow_legends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS_IN = {"one-column": 3.35, "two-column": 6.9}
"""Inches: 85 and 175 mm, what a column and a page of two-column proceedings hold."""
TEXT_PT = {"one-column": 7.5, "two-column": 8.5}
_DRAWN_PT = 10.0
"""The text size that figures are drawn with."""
_LEAST_IN, _MOST_IN = 2.0, 20.0

Style: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A style of matplotlib by name, a .mplstyle file, or settings."""

_CURRENT: ContextVar[Mapping[str, Any] | None] = ContextVar("settings on top of ours", default=None)


@dataclass(frozen=True, slots=True)
class Look:
    """Width and settings of a written figure; the default is the figure as it is drawn."""

    width_in: float | None = None
    text_pt: float = _DRAWN_PT
    settings: Mapping[str, Any] | None = None
    """On top of ours."""

    @classmethod
    def of(cls, width: str | float | None = None, style: Style | None = None) -> Look:
        """width: "one-column", "two-column" or inches. Raises ConfigError for another, or a style that is not there."""
        settings = None if style is None else _settings_of(style)
        if width is None:
            return cls(settings=settings)
        if isinstance(width, str) and width in WIDTHS_IN:
            return cls(WIDTHS_IN[width], TEXT_PT[width], settings)
        try:
            inches = float(width)
        except ValueError:
            raise ConfigError(f"width {width!r}: expected {', '.join(WIDTHS_IN)}, or inches") from None
        if not _LEAST_IN <= inches <= _MOST_IN:
            raise ConfigError(f"width {inches:g}: expected {_LEAST_IN:g} to {_MOST_IN:g} inches")
        nearest = min(WIDTHS_IN, key=lambda name: abs(WIDTHS_IN[name] - inches))
        return cls(inches, TEXT_PT[nearest], settings)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Figures drawn within take the settings."""
        token = _CURRENT.set(self.settings or {})
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def fit(self, figure: Figure) -> None:
        """Bring a drawn figure to the width; text, lines and marks shrink with the text size, and height with both."""
        if self.width_in is None:
            return
        from matplotlib.collections import PathCollection
        from matplotlib.lines import Line2D
        from matplotlib.text import Text

        drawn_in, height_in = figure.get_size_inches()
        scale = self.text_pt / _DRAWN_PT
        figure.set_size_inches(self.width_in, height_in * max(scale, min(1.0, self.width_in / drawn_in)))
        for text in figure.findobj(Text):
            text.set_fontsize(float(text.get_fontsize()) * scale)
        for line in figure.findobj(Line2D):
            line.set_linewidth(line.get_linewidth() * scale)
            line.set_markersize(line.get_markersize() * scale)
        for marks in figure.findobj(PathCollection):
            marks.set_sizes(marks.get_sizes() * scale**2)
        narrow_legends(figure, scale)


def current() -> Mapping[str, Any]:
    """Settings on top of ours, where a figure is drawn for a look."""
    return _CURRENT.get() or {}


def _settings_of(style: Style) -> dict[str, Any]:
    import matplotlib
    from matplotlib.style import library

    if isinstance(style, Mapping):
        if unknown := sorted(set(style) - set(matplotlib.rcParams)):
            raise ConfigError(f"style: matplotlib has no setting {', '.join(unknown)}")
        return dict(style)
    name = os.fspath(style)
    if name in library:
        return {str(key): value for key, value in library[name].items()}
    if not Path(name).is_file():
        known = ", ".join(sorted(library))
        raise ConfigError(f"style {name!r}: no .mplstyle file, and no style of matplotlib ({known})")
    read: Any = matplotlib.rc_params_from_file(name, use_default_template=False)
    return dict(read)
