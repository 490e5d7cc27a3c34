"""From text to a tree of settings: TOML files, and assignments such as decode.k=4."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError

_KEY = re.compile(r"""(?P<key>(?:"[^"]*"|'[^']*'|[^="'])+)=(?P<value>.*)""", re.DOTALL)
_KEY_PART = re.compile(r""""([^"]*)"|'([^']*)'|([^."']+)""")


def parse_options(assignments: Iterable[str]) -> dict[str, Any]:
    """The dict that "key=value" texts spell; values are TOML where they parse as it, else text.

    Raises ConfigError for a text without "=".
    """
    return {key.strip("\"'"): value for key, value in map(split_assignment, assignments)}


def split_assignment(text: str) -> tuple[str, Any]:
    """(key, value) of "key=value". Raises ConfigError for a text without "="."""
    found = _KEY.fullmatch(text)
    if found is None:
        raise ConfigError(f"--set {text!r}: write it as key=value, such as decode.k=4")
    return found["key"].strip(), _literal(found["value"])


def key_parts(key: str) -> list[str]:
    """The sections of a dotted key; a part that holds dots is quoted: drafter_options."my.module:make".n

    Raises ConfigError if it is no dotted key.
    """
    parts = [next(part for part in found if part) for found in _KEY_PART.findall(key) if any(found)]
    if not parts or _KEY_PART.sub("", key).strip() != "." * (len(parts) - 1):
        raise ConfigError(f"--set {key}: not a dotted key such as decode.k")
    return parts


def read_toml(file: Path) -> dict[str, Any]:
    """The tree of a settings file. Raises ConfigError if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None


def _literal(text: str) -> Any:
    """A TOML value where the text is one, else the text itself: 4, true, [1, 2], "quoted", or bare words."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return values["value"] if len(values) == 1 else text


def merge(tree: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Lay `over` over `tree`, section by section."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = value


def assign(tree: dict[str, Any], parts: list[str], value: Any) -> None:
    """Set one leaf of `tree`. Raises ConfigError if a section on the way is a value."""
    *path, leaf = parts
    for part in path:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(parts)}: {part!r} is a value, not a section")
    tree[leaf] = value
