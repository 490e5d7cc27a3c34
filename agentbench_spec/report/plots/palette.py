"""Colours, markers and hatches of the figures; every pair of drafter colours stays apart for colour-blind readers.

The light and the dark colour of a slot share a hue. Both reach 3:1 against their page, and any two slots of one page
differ by 9 or more in OKLab (times 100), as seen with normal vision, protanopia, deuteranopia or tritanopia; a test
computes both.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentbench_spec.results.metrics import BASELINE

PAGE = {"light": "#ffffff", "dark": "#16181d"}
INK, MUTED, GRID = "#1d2127", "#5a6472", "#dcdfe4"

LIGHT = ("#4252cd", "#bd7d1a", "#3ca087", "#aa3600", "#ac77fa", "#11425e", "#855974", "#721500")
DARK = ("#4c5edb", "#e9c025", "#baf7bd", "#cf7f79", "#988cfc", "#67cfe2", "#935785", "#c43008")
"""Slot i of both is one hue."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GLYPHS = dict(zip(_MARKERS, "●■▲◆▼✚✖★", strict=True))
"""Marker -> the character that stands for it in a page's key."""
_DASHES = ("-", "--", "-.", ":")

_HOME = {"ngram": 0, "suffix": 1, "dlite": 2, "dflash": 3, "dspark": 4, "eagle3": 5, "domino": 6, "mtp": 7}
"""Slots that well-known methods keep in every report. A drafter not named here gets a slot from its name."""

PHASE_COLOURS = {
    "prefill": "#c3c8d0",
    "verify": "#7d8693",
    "accept": "#4b535e",
    "ingest": "#9b3d00",
    "draft": "#e08a2e",
    "append": "#f2c48d",
    "other": "#ffffff",
}
"""Greys: the target's work. Oranges: what the drafter costs. White with an outline: the harness."""


@dataclass(frozen=True, slots=True)
class Style:
    """How one drafter looks in every figure."""

    colour: str
    marker: str
    dash: str


def styles(drafters: Iterable[str]) -> Mapping[str, Style]:
    """The look of each drafter: ink for the baseline, a slot of its own for each of up to eight others.

    The same set of names always gives the same styles, whatever their order.
    """
    names = sorted({name for name in drafters if name != BASELINE}, key=lambda name: (base(name) not in _HOME, name))
    taken: list[int] = []
    for name in names:
        taken.append(_free_slot(_HOME.get(base(name), zlib.crc32(name.encode())), taken))
    found = {name: _style(slot, taken[:i].count(slot)) for i, (name, slot) in enumerate(zip(names, taken, strict=True))}
    return {BASELINE: Style(INK, "o", "-"), **found}


def base(drafter: str) -> str:
    """The installed name in a drafter's label: `dlite=CHECKPOINT` is a `dlite`."""
    return drafter.partition("=")[0]


def _free_slot(wanted: int, taken: list[int]) -> int:
    size = len(LIGHT)
    fewest = min(taken.count(slot) for slot in range(size))
    return next(slot for i in range(size) if taken.count(slot := (wanted + i) % size) == fewest)


def _style(slot: int, lap: int) -> Style:
    return Style(LIGHT[slot], _MARKERS[(slot + 3 * lap) % len(_MARKERS)], _DASHES[lap % len(_DASHES)])
