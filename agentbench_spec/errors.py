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
    """What a plugin raised; its sys.exit becomes a ContractError, for it may end nothing but its own part.

    Raises KeyboardInterrupt as `raise_interrupt` does.
    """
    raise_interrupt(error)
    return ContractError(cause_of(error)) if isinstance(error, SystemExit) else error


def raise_interrupt(error: BaseException) -> None:
    """Raises KeyboardInterrupt if that is what a plugin, or a library under it, made `error` of: it ends the run."""
    left: list[BaseException | None] = [error]
    seen: list[BaseException] = []
    while left:
        found = left.pop()
        if isinstance(found, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        if found is not None and found not in seen:
            seen.append(found)
            left += [found.__cause__, found.__context__]


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


_HUB_SAID = {
    "GatedRepoError": "it is gated; ask for access on its page, then log in (`hf auth login`, or set HF_TOKEN)",
    "RevisionNotFoundError": "the hub has it, but not at this revision (status 404); check the revision",
    "EntryNotFoundError": "the hub has it, but a file is missing there (status 404)",
    401: "the hub has no such public model (status 401); check the name, or log in (`hf auth login`)",
    403: "it is not open to this log-in (status 403); ask for access on its page, or use another token",
    404: "the hub has no model of that name (status 404); check it, or log in if it is private (`hf auth login`)",
    429: "the hub takes no more requests for now (status 429); try again later, or log in (`hf auth login`)",
}


def hub_said(error: BaseException | None) -> str | None:
    """Why the Hugging Face hub did not give a model, and the way out; None: the error is not about an answer of its."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        kinds = [kind.__name__ for kind in type(error).__mro__]
        local = (
            "LocalEntryNotFoundError" in kinds
        )  # only says that the cache lacks it; why the hub did not help is below
        if not local and (said := next((_HUB_SAID[key] for key in (*kinds, status) if key in _HUB_SAID), None)):
            return said
        if isinstance(status, int) and status >= 500:
            return f"the hub is out of order (status {status}); try again later"
        if any(kind.endswith(("TimeoutException", "TimeoutError", "Timeout")) for kind in kinds):
            return "the hub did not answer in time; try again, or wait longer (HF_HUB_DOWNLOAD_TIMEOUT=60)"
        error = error.__cause__ or error.__context__
    return None
