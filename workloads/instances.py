"""What is known of SWE-bench instances: from rows or a task repository given by path, and from the package `swebench`.

Looked at: swebench 5.0.2. Its wheel holds no instance, version or test command (the tables of test commands by
repository and version that 4.1.0 had are gone: in 5.x these stand in the data set's own columns). What it has is a log
parser for each of 79 repositories, in one module a language, and the list of those graded by failures only. That is
read from its source, because importing the harness needs docker and modal.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from agentbench_spec.rollout import ConfigError
from agentbench_spec.rollouts import importing

from .locate import locate
from .tabular import data_rows

__all__ = ["Instances", "Repository", "installed_repositories", "known_instances", "repositories_of"]

_COLUMNS = ("repo", "version", "base_commit", "created_at", "difficulty", "log_parser", "eval_type")
_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_TABLE, _FAIL_ONLY = "MAP_REPO_TO_PARSER_", "FAIL_ONLY_REPOS"
_ID = re.compile(r"(?P<owner>.+?)__(?P<name>.+?)(-\d+|\.[0-9a-f]{8}\..+)")
"""owner__name-NUMBER of SWE-bench and its kin, or owner__name.COMMIT.KIND of SWE-smith."""


@dataclass(frozen=True, slots=True)
class Repository:
    """What the package says of a repository."""

    repo: str
    language: str
    """Name of the package's module of parsers, such as python or javascript."""
    log_parser: str
    eval_type: str
    """"fail_only" or "pass_and_fail", in the package's own words."""


@dataclass(frozen=True, slots=True)
class Instances:
    """Labels for instances, by id; empty where nothing is known of one."""

    rows: Mapping[str, Mapping[str, Any]]
    """Instance id -> the columns kept of its row."""
    rows_from: str
    repositories: Mapping[str, Repository]
    """Lower-case owner/name -> what the package says."""
    package: str

    def labels(self, instance: str | None, repo: str | None) -> dict[str, Any]:
        """Labels of an instance; a row given by path wins over the package. `instance_data` says which was used."""
        row = dict(self.rows.get(instance or "", {}))
        found = self.repositories.get((repo or str(row.get("repo") or _repo_of(instance or ""))).lower())
        told = {} if found is None else {name: getattr(found, name) for name in Repository.__slots__}
        origins = [name for name, used in ((self.rows_from, row), (self.package, told)) if used]
        return {**told, **row, **({"instance_data": ", ".join(origins)} if origins else {})}


def known_instances(instances: str | Path | None) -> Instances:
    """What the installed package knows, and the instances in the rows or the task repository at a path.

    Raises ConfigError if the path is missing, holds no instance, or is a task repository and swebench is not installed.
    """
    package, repositories = installed_repositories()
    if instances is None:
        return Instances({}, "", repositories, package)
    path = Path(instances).expanduser()
    rows = _task_repository(path) if (path / "tasks").is_dir() else _rows(path)
    kept = {str(row["instance_id"]): _kept(row) for row in rows if row.get("instance_id")}
    if not kept:
        raise ConfigError(f"instances: {path}: no row in it has an instance_id")
    return Instances(kept, path.name, repositories, package)


def installed_repositories() -> tuple[str, dict[str, Repository]]:
    """Name and version of the installed package `swebench`, and its repositories; nothing where it is absent."""
    spec = importlib.util.find_spec("swebench")
    if spec is None or spec.origin is None:
        return "", {}
    try:
        version = metadata.version("swebench")
    except metadata.PackageNotFoundError:
        version = "of no known version"
    return f"swebench {version}", repositories_of(Path(spec.origin).parent)


def repositories_of(package: Path) -> dict[str, Repository]:
    """The repositories that the source of the package `swebench` in a folder has parsers for, by lower-case name."""
    harness = package / "harness"
    graded = {name: value for name, value in _assigned(harness / "constants" / "__init__.py") if name == _FAIL_ONLY}
    fail_only = set(ast.literal_eval(graded[_FAIL_ONLY])) if graded else set()
    found: dict[str, Repository] = {}
    for module in sorted((harness / "log_parsers").glob("*.py")):
        for name, value in _assigned(module):
            if name.startswith(_TABLE) and isinstance(value, ast.Dict):
                for repo, parser in _names(value):
                    eval_type = "fail_only" if repo in fail_only else "pass_and_fail"
                    found[repo.lower()] = Repository(repo, module.stem, parser, eval_type)
    return found


def _assigned(module: Path) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of a module's plain assignments; none if there is no such module."""
    if module.is_file():
        for node in ast.parse(module.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node.value


def _names(table: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
            yield str(key.value), value.id


def _repo_of(instance: str) -> str:
    found = _ID.fullmatch(instance)
    return f"{found['owner']}/{found['name']}" if found else ""


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    for file in locate("instances", path, None, patterns=("*.jsonl", "*.json", "*.parquet")).files:
        for found in data_rows(file):
            if not isinstance(found, importing.Row):
                raise ConfigError(f"instances: {found}")
            if isinstance(found.value, Mapping):
                yield found.value


def _task_repository(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        load_task_repo = import_module("swebench.task.repo").load_task_repo
    except ImportError as error:
        raise ConfigError(
            f"instances: {path} is a task repository, which the package swebench 5 reads: run "
            f"`pip install --no-deps swebench==5.0.2 pyyaml` ({error})"
        ) from error
    try:
        yield from load_task_repo(path)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"instances: {path}: swebench cannot read this task repository: {error}") from error


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    labels = {name: row[name] for name in _COLUMNS if isinstance(row.get(name), str) and row[name]}
    counts = {f"{name.lower()}_tests": _count(row.get(name)) for name in _TESTS}
    return labels | {name: count for name, count in counts.items() if count is not None}


def _count(tests: Any) -> int | None:
    """How many tests a column lists; older dumps hold the list as JSON text. None: it holds no list."""
    try:
        tests = json.loads(tests) if isinstance(tests, str) else tests
    except ValueError:
        return None
    return len(tests) if isinstance(tests, list | tuple) else None
