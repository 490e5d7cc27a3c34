"""Progress: a bar on a terminal; elsewhere, where bars pile up in a log, a whole line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

__all__ = ["LOG_EVERY_S", "Bar"]

LOG_EVERY_S = 30.0
"""Seconds between the lines of a bar that no terminal shows."""


class Bar(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
    """tqdm on stderr. Where that is no terminal it writes a line at the start, every half minute and at the end, or,
    if the bar is not to stay, nothing before the first half minute."""

    def __init__(self, iterable: Iterable[Any] | None = None, *, leave: bool = True, **options: Any) -> None:
        """Arguments are tqdm's."""
        self._live = sys.stderr.isatty()
        self._next_s = time.monotonic() + (0 if leave else LOG_EVERY_S)
        super().__init__(iterable, leave=leave, dynamic_ncols=True, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool | None:  # type: ignore[override]
        if self._live:
            return super().display(msg, pos)
        if time.monotonic() >= self._next_s:
            self._write_line()
        return True

    def close(self) -> None:
        if not self._live and not self.disable:
            if self.leave:
                self._write_line()
            self.delay = math.inf  # nothing was shown, as far as tqdm knows, so it has nothing to wipe away
        super().close()

    def say(self, line: str) -> None:
        """Write a whole line of its own; on a terminal above the bar."""
        if self._live:
            self.write(line, file=sys.stderr)
        elif not self.disable:
            print(line, file=sys.stderr, flush=True)

    def _write_line(self) -> None:
        self._next_s = time.monotonic() + LOG_EVERY_S
        print(str(self).strip(), file=sys.stderr, flush=True)
