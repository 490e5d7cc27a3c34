"""Keywords of `agentbench_spec.run`: the flags of `agentbench-spec run`, and their places in the settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from agentbench_spec.config import RunConfig, load_config, near_setting
from agentbench_spec.errors import ConfigError, unknown_name
from agentbench_spec.results.folder import read_manifest

PathLike: TypeAlias = "str | os.PathLike[str]"
Named: TypeAlias = "str | Callable[..., Any]"
"""A plugin's name, or its class or factory: something that stands in a module or a notebook under its own name."""


class Settings(TypedDict, total=False):
    """Keywords of `run`: the flags of `agentbench-spec run`, and whole sections of the settings tree."""

    target: str | PathLike | Mapping[str, Any]
    workload: Named | PathLike | Mapping[str, Any]
    data: PathLike | None
    offline_standin: bool | None
    drafters: Named | Sequence[Named] | None
    drafter_options: Mapping[Named, Mapping[str, Any]] | None
    limit: int | None
    max_turns: int | None
    k: int | None
    max_new_tokens: int | None
    temperature: float | None
    mode: str | None
    history: str | None
    live: Mapping[str, Any]
    seed: int | None
    aa: bool | None
    device: str | None
    dtype: str | None
    graphs: str | None
    backend: str | None
    base_urls: str | Sequence[str] | None
    launch: bool | None
    concurrency: int | None
    client: str | None
    decode: Mapping[str, Any]
    replay: Mapping[str, Any]
    measure: Mapping[str, Any]
    sglang: Mapping[str, Any]
    vllm: Mapping[str, Any]
    openai: Mapping[str, Any]


PLACES = {
    "target": "target.source",
    "device": "target.device",
    "dtype": "target.dtype",
    "graphs": "target.graphs",
    "workload": "workload.name",
    "limit": "workload.limit",
    "data": "workload.options.data",
    "offline_standin": "workload.options.offline_standin",
    "drafters": "drafters",
    "k": "decode.k",
    "max_new_tokens": "decode.max_new_tokens",
    "temperature": "decode.temperature",
    "mode": "decode.mode",
    "history": "replay.history",
    "max_turns": "replay.max_turns",
    "seed": "measure.seed",
    "aa": "measure.aa",
    "backend": "backend",
    "base_urls": "servers.base_urls",
    "launch": "servers.launch",
    "concurrency": "servers.concurrency",
    "client": "servers.client",
}
"""Keyword, of Python and of the command line, -> its place in the settings tree; the other keywords are sections."""


def resolve(
    settings: RunConfig | Mapping[str, Any] | PathLike | None, keywords: Mapping[str, Any], begun: Path | None = None
) -> RunConfig:
    """The settings that `run` runs with. begun: folder of a run whose settings come first. Raises ConfigError."""
    base = read_manifest(begun).get("settings") if begun else None
    file = Path(settings) if isinstance(settings, str | os.PathLike) else None
    tree: Mapping[str, Any] = {}
    if isinstance(settings, RunConfig):
        tree = settings.model_dump(mode="json", exclude_unset=True)
    elif isinstance(settings, Mapping):
        tree = _plain(settings)
    elif settings is not None and file is None:
        raise ConfigError(f"settings: expected a TOML file, a tree or a RunConfig, found {type(settings).__name__}")
    given = dict(_placed(keywords))
    sections = {name: value for name, value in given.items() if isinstance(value, dict)}
    flags = {name: value for name, value in given.items() if name not in sections}
    return load_config(file, flags=flags, base=base, trees=[tree, sections])


def _placed(keywords: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in keywords.items():
        if name not in Settings.__annotations__:
            raise _unknown(name)
        if value is None or (name == "offline_standin" and not value):
            continue
        plain = _plain(value)
        if name in ("drafters", "base_urls") and isinstance(plain, str):
            plain = [plain]
        if name == "workload" and not isinstance(plain, str | dict):
            raise ConfigError(
                f"workload: expected a name, a rollouts file or a factory, found {type(value).__name__}; "
                "write rollouts to a file first: write_rollouts('mine.jsonl', rollouts)"
            )
        yield name if isinstance(plain, dict) else PLACES.get(name, name), plain


def _unknown(name: str) -> ConfigError:
    section, _, leaf = (near_setting(name) or "").rpartition(".")
    if leaf == name:
        return ConfigError(f"unknown setting {name!r}; write {section}={{{name!r}: ...}}")
    return unknown_name("setting", name, Settings.__annotations__)


def _plain(value: Any) -> Any:
    """The value as a TOML file could hold it: paths as text, classes and functions by name."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return name_of(value) if callable(value) or hasattr(value, "propose") else value


def name_of(plugin: Any) -> str:
    """ "module:name" of a class or function. Raises ConfigError if it is not found again under that name."""
    if isinstance(plugin, str):
        return plugin
    module, path = getattr(plugin, "__module__", None), getattr(plugin, "__qualname__", None)
    try:
        found = reduce(getattr, str(path).split("."), sys.modules[str(module)]) if path else None
    except (AttributeError, KeyError):
        found = None
    if found is not plugin:
        what = path or f"an object of {type(plugin).__qualname__}"
        raise ConfigError(
            f"{what}: a drafter or workload is made anew for a run, by name; give its class, or a function that makes "
            "it, defined at the top level of a module or a notebook"
        )
    return f"{module}:{path}"
