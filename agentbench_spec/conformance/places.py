"""Where a drafter can be checked by name."""

from __future__ import annotations

from collections.abc import Iterable

from agentbench_spec.errors import ConfigError

PLACES = ("toy", "embedded")
"""The deterministic toy target, and the embedded language model."""


def check_places(names: Iterable[str]) -> None:
    """Raises ConfigError for a name that is none of them."""
    for name in names:
        if name not in PLACES:
            raise ConfigError(f"unknown target {name!r} to check on; known: {', '.join(PLACES)}")
