"""What a command shows: tables and messages on stderr, one JSON line last on stdout, exit codes for errors."""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentbench_spec.cli import interrupts
from agentbench_spec.errors import AgentBenchError, ConfigError, DataWarning, cause_of
from agentbench_spec.writing import is_stdout

_JSON = ContextVar("json", default=False)
"""True if the running command was given --json."""
_JSON_OPTION = Annotated[bool, typer.Option("--json", help="Print the JSON line on a terminal too.")]


class Screen(Console):
    """Rich's console for stderr; a reader that left is the command's affair."""

    def __init__(self, **options: Any) -> None:
        super().__init__(stderr=True, **options)

    def on_broken_pipe(self) -> None:  # rich's own would end the process, as if a plugin had
        raise BrokenPipeError


console = Screen()


def say(text: str, style: str = "", label: str = "") -> None:
    """One line on stderr: never wrapped, and nothing in it taken for markup (a path may hold brackets or :100:)."""
    console.print(Text.assemble((label, f"bold {style}"), text) if label else Text(text, style), soft_wrap=True)


def plain_table(*headings: str) -> Table:
    """An empty table as all of ours look."""
    return Table(*headings, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def asked_for_json() -> bool:
    """True if the running command was given --json."""
    return _JSON.get()


def last_line(value: dict[str, Any], out: Path | None = None) -> None:
    """The result as one JSON object on stdout; where a terminal reads stdout, only if --json asks for it.

    On stderr if `out` is stdout: what is written there is not to be mixed.
    """
    if sys.stdout.isatty() and not asked_for_json():
        return
    try:
        print(json.dumps(value, allow_nan=False), flush=True, file=sys.stderr if out and is_stdout(out) else None)
    except BrokenPipeError:
        _silence(sys.stdout)  # and go on: the exit code still says what came out


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """A command of this package: errors become exit codes, warnings lines, and the option --json is added."""

    @wraps(function)
    def guarded(*args: Any, json_: bool = False, **kwargs: Any) -> None:
        _JSON.set(json_)
        with _errors(), _warnings():
            if str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))  # so that "my_pkg.drafter:make" works from a checkout
            function(*args, **kwargs)

    own = inspect.signature(function, eval_str=True)
    option = inspect.Parameter("json_", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_JSON_OPTION)
    guarded.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    guarded.__annotations__ = {**function.__annotations__, "json_": _JSON_OPTION}
    return guarded


@contextmanager
def interruptible(way_on: Callable[[], str]) -> Iterator[None]:
    """Tell whoever interrupts a command how to go on with it; way_on: the words, found out then."""
    try:
        with _kept():
            yield
    except KeyboardInterrupt:
        interrupts.hush()
        say(f"interrupted; {way_on()}", "yellow")
        raise typer.Exit(130) from None


@contextmanager
def _kept() -> Iterator[None]:
    """An interrupt that came out of the block as another error, as out of an import in C, is an interrupt again."""
    try:
        yield
    except typer.Exit:
        raise
    except (Exception, SystemExit) as error:
        if interrupts.came():
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _errors() -> Iterator[None]:
    """User errors are one plain line and exit code 2; a void measurement or a broken plugin is exit code 1."""
    try:
        with _kept():
            yield
    except ConfigError as error:
        say(_one_line(error), "red", "error: ")
        raise typer.Exit(2) from None
    except AgentBenchError as error:
        say(_one_line(error), "red", f"{type(error).__name__}: ")
        raise typer.Exit(1) from None
    except SystemExit as error:  # no command of ours raises it: some plugin would end the process, as if all were well
        say(f"a plugin ended the command: {cause_of(error)}", "red", "ContractError: ")
        raise typer.Exit(1) from None
    except BrokenPipeError:
        _silence(sys.stdout, sys.stderr)
        raise typer.Exit(141) from None
    except OSError as error:
        say(f"{error.strerror or error}: {error.filename or 'no file named'}", "red", "error: ")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        interrupts.hush()
        say("interrupted", "yellow")
        raise typer.Exit(130) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@contextmanager
def _warnings() -> Iterator[None]:
    """A warning about the data is one plain line, like an error; all others look as they always do."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            say(str(message), "yellow", "warning: ")
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("default", DataWarning)
        warnings.showwarning = show
        yield


def _silence(*streams: TextIO) -> None:
    """The reader left: write to nowhere from now on, and say nothing at exit either."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
