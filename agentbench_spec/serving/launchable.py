"""One drafter as `--launch` understands it, and how options are spelt for a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


PLAIN = Launchable(None, None, {})
"""The baseline."""


def spelt(values: Mapping[str, Any]) -> list[str]:
    """Flags as text; True is a flag without a value."""
    parts = ([f"--{key}"] if value is True else [f"--{key}", str(value)] for key, value in values.items())
    return [word for part in parts for word in part]
