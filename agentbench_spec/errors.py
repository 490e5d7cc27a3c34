"""What can go wrong, cut along what the reader does next.

AgentBenchError
├── ConfigError        your input: the message names the file, line and field, and the way out
├── ContractError      a plugin (drafter or workload) broke its contract: its author must act
└── MeasurementError   the measurement is void: do not quote it
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class AgentBenchError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(AgentBenchError):
    """The user's input cannot be used; the message says where it is wrong and what would be right."""


class ContractError(AgentBenchError):
    """A drafter or workload plugin did something its interface forbids."""


class MeasurementError(AgentBenchError):
    """A run broke one of the invariants that make its numbers mean anything."""


class NotFinite(MeasurementError):
    """The target's logits name no choice: NaN or +inf is among them, or not one is finite."""

    TEXT = "logits are not finite"
    """How the message begins, in rows too."""

    def __init__(self, position: int) -> None:
        """position: of the token in the text whose logits they are."""
        super().__init__(f"{self.TEXT} at position {position}")


def cause_of(error: BaseException) -> str:
    """What went wrong inside a plugin, and where, in one line; the whole traceback is that of the chained error."""
    if isinstance(error, SystemExit):
        what = f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, SyntaxError):
        return what  # it says where itself; its traceback is the importer's
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    return f"{what} (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else what


def caught(error: Exception | SystemExit) -> Exception:
    """What a plugin raised; its sys.exit becomes a ContractError, for it may end nothing but its own part."""
    return ContractError(cause_of(error)) if isinstance(error, SystemExit) else error


class DataWarning(UserWarning):
    """The data can be used, but a reader of the results must know something about it."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """A ConfigError for an unknown `name`, with the nearest known one as a hint.

    kind: what was looked for, such as "drafter"; known: the names that exist.
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return ConfigError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known) or 'none installed'}")
