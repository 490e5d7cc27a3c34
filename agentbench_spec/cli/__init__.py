"""The command line: one file for each verb or small group of verbs; main.py says which there are.

`app` is imported when it is asked for, so that an interrupt of its own imports finds somebody who takes it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbench_spec.cli.main import app

__all__ = ["app", "start"]


def start() -> None:
    """The process of a command: Ctrl-C at any moment of it, its imports included, is one line and exit code 130."""
    from agentbench_spec.cli import interrupts

    interrupts.watch()
    if not sys.stderr.isatty():  # the bars of the hub's libraries are of no use in a log
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    interrupted = False
    try:
        from agentbench_spec.cli.main import app

        app()
    except Exception:
        if not interrupts.came():
            raise
        interrupted = True
    except KeyboardInterrupt:
        interrupted = True
    finally:
        interrupts.hush()
    if interrupted:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentbench_spec.cli.main import app

    return app
