"""Rollouts for a run or a command: a file or a plugin by name, checked before anything long begins."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_spec import plugins
from agentbench_spec.bars import Bar
from agentbench_spec.config import RunConfig
from agentbench_spec.engine.token_counts import TargetTokens
from agentbench_spec.errors import AgentBenchError, ConfigError, ContractError, cause_of
from agentbench_spec.rollout import FileWorkload, Rollout, Workload

SUFFIXES = (".jsonl", ".jsonl.gz")
"""How a rollouts file is named."""


def open_workload(
    name: str, options: Mapping[str, Any], *, lenient: bool = False, target: str | None = None
) -> Workload:
    """The workload called `name`: a rollouts file where the name is one, else a plugin made with `options`.

    lenient: pass over bad lines of a file; target: whose tokens a workload counts that counts any and was not told
    whose (option `tokenizer`: a target's name, for which the workload is given its counter). Raises ConfigError naming
    the path if a file is meant and there is none; nothing is used in its place.
    """
    check_workload(name, options, lenient=lenient)
    if is_file(name):
        return FileWorkload(Path(name).expanduser(), lenient=lenient)
    if target is not None and "tokenizer" not in options and plugins.accepts("workload", name, "tokenizer"):
        options = {**options, "tokenizer": target}
    if isinstance(counted := options.get("tokenizer"), str):
        options = {**options, "tokenizer": TargetTokens(counted)}
    return plugins.load_workload(name, **options)


def check_workload(name: str, options: Mapping[str, Any], *, lenient: bool = False) -> None:
    """Raises the ConfigError that `open_workload` would, as far as that shows without importing a plugin."""
    if is_file(name):
        if options:
            raise ConfigError(f"{name} is a rollouts file; options apply to installed workloads only")
        FileWorkload(Path(name).expanduser(), lenient=lenient)
        return
    if os.sep in name or Path(name).is_file():
        raise ConfigError(_not_a_rollouts_file(name))
    if lenient:
        raise ConfigError(
            f"workload.lenient applies to rollouts files; see the options of {name} (most: "
            "workload.options.lenient; bfcl_v3: workload.options.strict)"
        )
    plugins.check_name("workload", name)


@dataclass(frozen=True, slots=True)
class Source:
    """The rollouts of a measurement."""

    name: str
    """Workload as rows carry it."""
    rollouts: list[Rollout]
    facts: dict[str, Any]
    """What the manifest says about them."""


def read_source(
    config: RunConfig, *, limit: int | None = None, tell: Callable[[str], None] = lambda line: None, bar: bool = True
) -> Source:
    """The configured rollouts; limit: where the settings name none. Raises what opening and loading raise."""
    workload = configured_workload(config)
    rollouts = load_rollouts(workload, limit=config.workload.limit or limit, seed=config.measure.seed, bar=bar)
    facts = data_facts(workload, rollouts)
    for line in facts["left_out"]:
        tell(f"left out: {line}")
    return Source(_row_name(config.workload.name, workload), rollouts, facts)


def configured_workload(config: RunConfig) -> Workload:
    """The workload of the settings, made for their target. Raises what opening raises."""
    given = config.workload
    return open_workload(given.name, given.options, lenient=given.lenient, target=config.named_target)


def _row_name(given: str, workload: Workload) -> str:
    """A file's name; an installed workload's own, since a stand-in must not pass for what it stands in for."""
    return file_name(given) if is_file(given) or ":" in given else workload.name


def is_file(workload: str) -> bool:
    """True if a workload's name is that of a rollouts file."""
    return workload.endswith(SUFFIXES)


def file_name(workload: str) -> str:
    """A workload's name as rows carry it: of a file, its name without the folder."""
    return Path(workload).name if is_file(workload) else workload


def _not_a_rollouts_file(name: str) -> str:
    path = Path(name).expanduser()
    found = "is a folder" if path.is_dir() else "is not named so" if path.is_file() else "does not exist"
    return f"workload {name}: a path must be a rollouts file (.jsonl or .jsonl.gz), and this one {found}"


def load_rollouts(workload: Workload, *, limit: int | None, seed: int, bar: bool = True) -> list[Rollout]:
    """All rollouts of `workload`, with a bar if it takes long and one is wanted; raises what `each_rollout` does."""
    return list(each_rollout(workload, limit=limit, seed=seed, bar=bar))


def each_rollout(workload: Workload, *, limit: int | None, seed: int, bar: bool = False) -> Iterator[Rollout]:
    """The rollouts of `workload`, one at a time.

    Raises ConfigError if there are none, ContractError if one is no rollout, two share an id, or reading them fails.
    """
    seen: set[str] = set()
    for rollout in _read(workload, limit, seed, bar):
        if not isinstance(rollout, Rollout):
            raise ContractError(f"workload {workload.name}: gave {type(rollout).__name__}, not a Rollout")
        if rollout.id in seen:
            raise ContractError(f"workload {workload.name}: two rollouts have the id {rollout.id!r}")
        seen.add(rollout.id)
        yield rollout
    if not seen:
        raise ConfigError(f"workload {workload.name!r} gave no rollouts")


def _read(workload: Workload, limit: int | None, seed: int, bar: bool) -> Iterator[Any]:
    """Raises ContractError naming the workload if it fails without an error of ours, or ends the process."""
    try:
        source = workload.rollouts(limit=limit, seed=seed)
        what = f"reading {workload.name}"
        yield from Bar(source, desc=what, unit="rollout", delay=1, leave=False, disable=not bar)
    except (AgentBenchError, OSError):
        raise
    except (Exception, SystemExit) as error:
        raise ContractError(f"workload {workload.name}: reading its rollouts failed: {cause_of(error)}") from error


def left_out(workload: object) -> list[str]:
    """What a workload passed over while its rollouts were read, bad or of no use: file, line, field and reason."""
    return [str(bad) for field in ("bad_lines", "left_out") for bad in getattr(workload, field, ())]


def data_facts(workload: Workload, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """What a manifest says about the data: how much, its digest, where it comes from, and what was left out."""
    return {
        "rollouts": len(rollouts),
        "sha256": _digest(rollouts),
        "sources": _sources(rollouts),
        "left_out": left_out(workload),
    }


_NAMED_FILES = 16
"""A source of more files is named without them: each rollout's own `source` has its file."""


def _sources(rollouts: Iterable[Rollout]) -> list[dict[str, Any]]:
    """Every data set that gave rollouts, with the commit or version it was read at, its files and their digests."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for rollout in rollouts:
        said = {name: rollout.source.get(name) for name in ("name", "version", "revision", "licence", "via")}
        known = {name: value for name, value in said.items() if value is not None}
        entry = found.setdefault(tuple(map(str, said.values())), {**known, "rollouts": 0, "files": {}})
        entry["rollouts"] += 1
        if (file := rollout.source.get("file")) is not None:
            entry["files"][str(file)] = rollout.source.get("sha256")
    for entry in found.values():
        if len(entry["files"]) > _NAMED_FILES:
            entry["files"] = len(entry["files"])
    return list(found.values())


def _digest(rollouts: Iterable[Rollout]) -> str:
    sha = hashlib.sha256()
    for rollout in rollouts:
        try:
            sha.update(rollout.model_dump_json().encode())
        except ValueError as error:  # pydantic's word for a value that JSON cannot hold
            raise ContractError(
                f"workload {rollout.workload}: rollout {rollout.id!r} holds what JSON cannot: {error}; keep "
                "plain values in source, labels and tools"
            ) from None
    return sha.hexdigest()
