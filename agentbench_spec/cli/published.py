"""The published draft checkpoints that installed packages list, from their registry files; no code of theirs is run."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

from agentbench_spec.errors import ContractError

GROUP = "agentbench_spec.registries"
"""Entry points of the form NAME = "package:file.toml"."""

REQUIRED = ("target", "drafter", "checkpoint", "layout")
FIELDS = (*REQUIRED, "licence", "revision")
"""Of a pair: hub id of the target, drafter name, hub id of the draft, how its files are laid out, and what is known of
its licence and of a commit to pin."""

Pair = dict[str, str | None]


def published_pairs() -> list[Pair]:
    """Every pair of every registry, by target, drafter and checkpoint; a field that nobody knows is None.

    Raises ContractError naming the registry and the entry that cannot be read.
    """
    found = [pair for point in sorted(entry_points(group=GROUP)) for pair in _pairs(point)]
    return sorted(found, key=lambda pair: [pair[name] or "" for name in FIELDS])


def _pairs(point: EntryPoint) -> list[Pair]:
    where = f"registry {point.name!r} ({point.value})"
    try:
        entries = list(tomllib.loads((files(point.module) / point.attr).read_text(encoding="utf-8"))["pair"])
    except (ImportError, OSError, ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
    return [_pair(entry, f"{where}, pair {number}") for number, entry in enumerate(entries, 1)]


def _pair(entry: Any, where: str) -> Pair:
    if not isinstance(entry, dict):
        raise ContractError(f"{where}: {entry!r} is no table of fields")
    strange = sorted(name for name, value in entry.items() if name not in FIELDS or not isinstance(value, str))
    if strange:
        raise ContractError(f"{where}: {strange[0]} is not one of {', '.join(FIELDS)}, or no text")
    if missing := [name for name in REQUIRED if not entry.get(name)]:
        raise ContractError(f"{where}: no {', '.join(missing)}")
    return {name: entry.get(name) for name in FIELDS}
