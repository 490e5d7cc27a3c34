"""Ctrl-C: one line and exit code 130, whatever was at work and whatever it made of the interrupt."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_MOST = 3
"""Interrupts until the process ends at once: cleaning up after the first may take seconds, or hang."""
_came: list[int] = []


def watch() -> None:
    """Take over SIGINT for the process of a command."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return  # a background job of a shell: nobody can interrupt it, and that is meant
    signal.signal(signal.SIGINT, _interrupt)
    usual = sys.unraisablehook

    def unraisable(what: Any) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):  # lost in a destructor or a callback: send it again
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            _came.pop()
        else:
            usual(what)

    sys.unraisablehook = unraisable


def came() -> bool:
    """True if the command was interrupted."""
    return bool(_came)


def hush() -> None:
    """The command says its last word, which no further interrupt is to cut."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _came.append(number)
    if len(_came) >= _MOST:
        os._exit(130)
    raise KeyboardInterrupt
