"""Instance metadata of SWE-bench runs: from the package's own tables, from rows, and never invented."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from agentbench_spec_workloads.instances import Instances, installed_repositories, known_instances, repositories_of

from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Rollout

needs_swebench = pytest.mark.skipif(
    importlib.util.find_spec("swebench") is None,
    reason="swebench is not installed: pip install --no-deps swebench==5.0.2",
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The source of a package laid out as swebench is."""
    parsers, constants = tmp_path / "swebench/harness/log_parsers", tmp_path / "swebench/harness/constants"
    parsers.mkdir(parents=True)
    constants.mkdir()
    (parsers / "python.py").write_text('MAP_REPO_TO_PARSER_PY = {"acme/lib": parse_log_pytest}\nOTHER = {"no": one}\n')
    (parsers / "javascript.py").write_text('MAP_REPO_TO_PARSER_JS = {"Acme/Chart.js": parse_log_jest}\n')
    (constants / "__init__.py").write_text('import docker_that_nobody_has\nFAIL_ONLY_REPOS = {"Acme/Chart.js"}\n')
    return tmp_path / "swebench"


def known(package: Path, rows: dict[str, Any] | None = None) -> Instances:
    return Instances(rows or {}, "rows.jsonl", repositories_of(package), "swebench 5.0.2")


@pytest.mark.parametrize(
    ("instance", "repo", "language"),
    [
        ("acme__lib-12", None, "python"),
        ("acme__lib.0f3c1a2b.combine_file__x1", None, "python"),
        ("acme__chart.js-7", None, "javascript"),
        ("whatever", "ACME/lib", "python"),
        ("other__lib-12", None, None),
        ("acme__lib", None, None),
        (None, None, None),
    ],
)
def test_an_instance_is_told_by_its_repository(
    package: Path, instance: str | None, repo: str | None, language: str | None
) -> None:
    """Fails if an id of SWE-bench or SWE-smith is not resolved, or one that the package does not know is guessed at."""
    labels = known(package).labels(instance, repo)
    assert labels.get("language") == language
    assert labels.get("instance_data") == ("swebench 5.0.2" if language else None)


def test_the_packages_source_is_read_and_not_run(package: Path) -> None:
    """Fails if the package is imported, which needs docker, or repositories graded by failures only are not told."""
    assert known(package).labels("Acme__Chart.js-7", None) == {
        "repo": "Acme/Chart.js",
        "language": "javascript",
        "log_parser": "parse_log_jest",
        "eval_type": "fail_only",
        "instance_data": "swebench 5.0.2",
    }
    assert known(package).labels("acme__lib-1", None)["eval_type"] == "pass_and_fail"
    assert repositories_of(package.parent / "empty") == {}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ROW = {
    "instance_id": "acme__lib-12",
    "repo": "acme/lib",
    "version": "2.1",
    "difficulty": "15 min - 1 hour",
    "patch": "diff --git",
    "hints_text": "",
    "FAIL_TO_PASS": '["t.py::a", "t.py::b"]',
    "PASS_TO_PASS": ["t.py::c"],
}
SAID = [{"role": "user", "content": "Fix"}, {"role": "assistant", "content": "Done."}]


def runs(path: Path, **options: Any) -> list[Rollout]:
    return list(load_workload("swe_bench", data=path, window_tokens=0, **options).rollouts())


def test_rows_label_the_runs_of_their_instances(tmp_path: Path) -> None:
    """Fails if a run misses what a SWE-bench row says of its instance, gets another's, or is overruled by it."""
    data = lines(
        tmp_path / "runs.jsonl",
        {"instance_id": "acme__lib-12", "messages": SAID, "resolved": True},
        {"instance_id": "acme__lib-13", "messages": SAID},
        {"instance_id": "acme__lib-14", "messages": SAID, "difficulty": "own"},
    )
    rows = lines(tmp_path / "rows.jsonl", ROW, {**ROW, "instance_id": "acme__lib-14", "FAIL_TO_PASS": "[torn"})
    labels = {run.labels["instance_id"]: run.labels for run in runs(data, instances=rows)}
    first, second, third = (labels[f"acme__lib-{number}"] for number in (12, 13, 14))
    assert {name: first[name] for name in ("version", "difficulty", "fail_to_pass_tests", "pass_to_pass_tests")} == {
        "version": "2.1",
        "difficulty": "15 min - 1 hour",
        "fail_to_pass_tests": 2,
        "pass_to_pass_tests": 1,
    }
    assert first["resolved"] is True and first["instance_data"].startswith("rows.jsonl") and "patch" not in first
    assert "version" not in second
    assert third["difficulty"] == "own" and "fail_to_pass_tests" not in third, "text that is no list counts nothing"


def test_what_cannot_be_used_as_instances_is_named(tmp_path: Path) -> None:
    """Fails if a missing file or rows without ids pass as instances of which nothing is known."""
    with pytest.raises(ConfigError, match=r"gone\.jsonl: no such file or folder"):
        known_instances(tmp_path / "gone.jsonl")
    with pytest.raises(ConfigError, match="no row in it has an instance_id"):
        known_instances(lines(tmp_path / "a.jsonl", {"id": "x"}))
    with pytest.raises(ConfigError, match="instances does not apply"):
        load_workload("swe_bench", offline_standin=True, instances=tmp_path)


@needs_swebench
def test_the_real_package_knows_its_repositories() -> None:
    """Fails if the installed swebench lays its tables out otherwise than the release that was read: labels would
    silently be missing."""
    name, repositories = installed_repositories()
    assert name.startswith("swebench ") and len(repositories) >= 79
    labels = known_instances(None).labels("django__django-11099", None)
    assert (labels["repo"], labels["language"], labels["log_parser"]) == ("django/django", "python", "parse_log_django")
    assert known_instances(None).labels("processing__p5.js-1", None)["eval_type"] == "fail_only"


@needs_swebench
def test_a_task_repository_is_read_by_the_real_package(tmp_path: Path) -> None:
    """Fails if metadata of swebench 5's own layout of instances does not reach the labels."""
    task = tmp_path / "repo" / "tasks" / "acme__lib-12"
    task.mkdir(parents=True)
    meta = "instance_id: acme__lib-12\nrepo: acme/lib\nversion: '2.10'\nlog_parser: parse_log_pytest\n"
    files = {"task.yaml": meta, "tests.json": json.dumps({"FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []})}
    for name in ("gold.patch", "test.patch", "eval.sh", "problem_statement.md"):
        files[name] = "text\n"
    for name, text in files.items():
        (task / name).write_text(text)
    labels = known_instances(tmp_path / "repo").labels("acme__lib-12", None)
    assert (labels["version"], labels["log_parser"], labels["fail_to_pass_tests"]) == ("2.10", "parse_log_pytest", 1)
    (task / "tests.json").unlink()
    with pytest.raises(ConfigError, match="swebench cannot read this task repository"):
        known_instances(tmp_path / "repo")
