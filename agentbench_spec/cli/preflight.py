"""What is refused, or settled, before anything heavy is imported: an answer to a typing mistake takes no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from agentbench_spec.cli.console import say
from agentbench_spec.config import RunConfig
from agentbench_spec.config.backends import SERVED, Backend
from agentbench_spec.engine import hub_reach
from agentbench_spec.errors import ConfigError
from agentbench_spec.runs.source import SUFFIXES, is_file
from agentbench_spec.serving.needs import refuse_without_httpx
from agentbench_spec.writing import is_special


def warn(line: str) -> None:
    """A line that says what to know before the command goes on."""
    say(line, "yellow", "warning: ")


def check_models(target: str | None, *others: str | None) -> None:
    """`hub_reach.check_models`, whose word is a warning here."""
    hub_reach.check_models(target, *others, tell=warn)


def check_backend(backend: str | None, base_url: Sequence[str] | None, launch: bool | None) -> Backend | None:
    """The backend that the options of a command name, or mean by naming servers; None: they say nothing of it.

    Raises ConfigError for an unknown one, and for servers beside our own engine.
    """
    named = bool(base_url or launch)
    if backend is not None and backend not in get_args(Backend):
        raise ConfigError(f"--backend {backend}: expected {', '.join(get_args(Backend)[:-1])} or {SERVED[-1]}")
    if backend == "engine" and named:
        raise ConfigError("--backend engine takes neither --base-url nor --launch; leave them out, or name sglang")
    given: Backend | None = next((known for known in get_args(Backend) if known == backend), None)
    return given or (SERVED[0] if named else None)


def refuse_server_options(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for options of servers (name -> value) that our own engine would pass over in silence."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is for servers, and none are named; leave it out, or give --backend {SERVED[0]}")


def check_servers(settings: RunConfig) -> None:
    """Raises ConfigError for settings that no server can serve, and where httpx, which asks them, is missing."""
    refuse_without_httpx(settings.backend)
    from agentbench_spec.serving.refusals import refuse_settings

    refuse_settings(settings, os.environ)


def check_rollouts_file(out: Path, read: Sequence[Path]) -> None:
    """Raises ConfigError for a rollouts file that could not be read back, or that takes the place of its own source."""
    if not is_file(out.name) and not is_special(out):
        raise ConfigError(f"--out {out}: name it {' or '.join(SUFFIXES)}, or it cannot be read back")
    if out.exists() and any(path.exists() and path.samefile(out) for path in read):
        raise ConfigError(f"--out {out}: is the file that is read; what is left out of it would be lost: name another")
