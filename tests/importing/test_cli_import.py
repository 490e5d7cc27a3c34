"""`agentbench-spec rollouts import`: what it writes, what it says, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces import DATA, chat, said, write
from typer.testing import CliRunner, Result

from agentbench_spec.cli import app
from agentbench_spec.rollout import FileWorkload, read_rollouts


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["rollouts", *map(str, arguments)])


def last_line(result: Result) -> dict[str, object]:
    return dict(json.loads(result.stdout.strip().splitlines()[-1]))


def test_import_then_validate(tmp_path: Path) -> None:
    """Fails if the verb's output is no good input to the others, or bad rows are not listed and counted."""
    out = tmp_path / "mine.jsonl"
    result = run("import", DATA, "-o", out)
    assert result.exit_code == 0
    summary = last_line(result)
    assert (summary["rollouts"], summary["bad_rows"], summary["file"]) == (36, 1, str(out))
    assert summary["formats"]["openhands"] == 6  # type: ignore[index]
    assert "tau_bench.json:2: messages: is empty" in result.stderr.replace("\n", "")
    report = last_line(run("validate", out))
    assert (report["ok"], report["rollouts"], report["bad"]) == (True, 36, [])
    assert {rollout.workload for rollout in FileWorkload(out).rollouts()} == {"mine"}


def test_importing_into_the_imported_folder_twice(tmp_path: Path) -> None:
    """Fails if the file that is written is read as a trace the second time."""
    write(tmp_path / "t.jsonl", chat(said()))
    for _ in range(2):
        assert last_line(run("import", tmp_path, "-o", tmp_path / "out.jsonl"))["rollouts"] == 1


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    """Fails if importing or building a file onto itself loses its bad rows, or a link hides that it is the same."""
    path = write(tmp_path / "t.jsonl", chat(said()), {"no": "rollout"})
    (tmp_path / "link.jsonl").symlink_to(path)
    before = path.read_bytes()
    for out in (path, tmp_path / "link.jsonl"):
        for command in (["import", path], ["build", path, "--lenient"]):
            result = run(*command, "-o", out)
            assert result.exit_code == 2 and "is the file that is read" in result.stderr.replace("\n", " ")
    assert path.read_bytes() == before


def test_a_file_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    """Fails if import writes a name that `run --workload` then refuses."""
    result = run("import", write(tmp_path / "t.jsonl", chat(said())), "-o", tmp_path / "out.json")
    assert result.exit_code == 2 and "name it .jsonl or .jsonl.gz" in result.stderr.replace("\n", " ")
    assert not (tmp_path / "out.json").exists()


def test_nothing_found_writes_nothing(tmp_path: Path) -> None:
    """Fails if an empty file stands where there was not one rollout, or an old one is lost."""
    write(tmp_path / "prose.log", b"INFO\n")
    out = tmp_path / "out.jsonl"
    out.write_text("old", "utf-8")
    result = run("import", tmp_path / "prose.log", "-o", out)
    assert result.exit_code == 2 and "no rollout found; 1 bad rows" in result.stderr
    assert out.read_text("utf-8") == "old"


def test_strict_stops_at_the_first_bad_row(tmp_path: Path) -> None:
    """Fails if --strict lets a bad row pass."""
    result = run("import", DATA / "tau_bench.json", "-o", tmp_path / "out.jsonl", "--strict")
    assert result.exit_code == 2 and "without a single message" in result.stderr.replace("\n", " ")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "format", "ending"), [("sharegpt.jsonl", "sharegpt", ".gz"), ("turns.jsonl", "turns", "")]
)
def test_named_format_and_workload(name: str, format: str, ending: str, tmp_path: Path) -> None:
    """Fails if --format or --name is not passed on."""
    out = tmp_path / f"out.jsonl{ending}"
    result = run("import", DATA / name, "-o", out, "--format", format, "--name", "chosen")
    assert result.exit_code == 0
    assert {rollout.workload for rollout in read_rollouts(out)} == {"chosen"}
    assert run("import", DATA / name, "-o", out, "--format", "sharegtp").exit_code == 2
