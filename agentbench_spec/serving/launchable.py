"""One drafter as `--launch` understands it, and how options are spelt for a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE


@dataclass(frozen=True, slots=True)
class Launchable:
    """A drafter to start a server with: the engine's word for it, its draft, its options."""

    algorithm: str | None
    """What the engine calls it; None: plain decoding."""
    draft: str | None
    options: Mapping[str, Any]
    label: str | None = None
    """Our name for it, where it is not the engine's."""

    @property
    def name(self) -> str:
        """The drafter's name in rows and files."""
        return self.label or (self.algorithm or BASELINE).lower()


def named(given: str, options: Mapping[str, Any]) -> tuple[str, str]:
    """(name, draft or "") of "NAME" or "NAME=DRAFT". Raises ConfigError for a baseline with a draft or options."""
    name, _, draft = given.partition("=")
    if name.lower() == BASELINE and (draft or options):
        raise ConfigError("drafter none is plain decoding: it takes no draft and no options")
    return name, draft


def without_draft(given: str) -> ConfigError:
    """That a drafter needs the draft it was not given."""
    return ConfigError(f"drafter {given!r} needs a draft model: write {given}=PATH_OR_HUB_ID")


PLAIN = Launchable(None, None, {})
"""The baseline."""


def spelt(values: Mapping[str, Any]) -> list[str]:
    """Flags as text; True is a flag without a value."""
    parts = ([f"--{key}"] if value is True else [f"--{key}", str(value)] for key, value in values.items())
    return [word for part in parts for word in part]
