"""The other commands, and how the command line treats its streams, mistakes and long paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from localmodel import session
from reportkit import two_rollouts, write_run
from rowkit import make_row
from runkit import call, replay, rows_of

from agentbench_spec.rollout import read_rollouts, write_rollouts


def torn(folder: Path, line: int) -> Path:
    """A rollouts file whose line `line` is no JSON."""
    path = folder / "torn.jsonl"
    write_rollouts(path, [session(f"r{i}", 1) for i in range(1, line)])
    with path.open("a") as file:
        file.write("{torn [red]\n")
    return path


# streams and mistakes


def test_a_line_number_is_not_turned_into_a_picture(tmp_path: Path) -> None:
    """Fails if ":100:" in "file:100: reason" is shown as an emoji, or "[red]" is taken for a colour."""
    folder = tmp_path / "with [brackets] and a name that is longer than eighty columns, as paths of real data are"
    folder.mkdir()
    path = torn(folder, 100)
    done = call("rollouts", "stats", path)
    assert done.code == 2 and f"error: {path}:100: not JSON" in done.error
    checked = call("rollouts", "validate", path)
    assert checked.code == 1 and f"{path}:100: not JSON" in checked.err
    assert checked.last["ok"] is False and checked.last["rollouts"] == 99
    assert checked.last["bad"][0].startswith(f"{path}:100: not JSON")


def test_a_folder_that_cannot_be_made_is_a_user_error(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if --out below a file ends in a traceback."""
    (tmp_path / "file").write_text("")
    done = replay(tiny, rollouts, tmp_path / "file" / "run")
    assert done.code == 2 and str(tmp_path / "file") in done.error


def test_resume_without_a_folder_or_a_run_is_refused(tmp_path: Path) -> None:
    """Fails if --resume starts a new run where the user meant an old one."""
    assert "--resume needs --out" in call("run", "--resume").error
    done = call("run", "--resume", "--out", tmp_path)
    assert done.code == 2 and f"{tmp_path} holds no run" in done.error


def test_run_folders_of_one_second_do_not_collide(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the default folder has characters of a path in its name, or is refused to a second run."""
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(2):
        done = call(
            "run", "--target", tiny, "--workload", "odd_plugins:with_empty", "--drafter", "none", "--max-new-tokens", 2,
            "--set", "target.fast_linears=false",
        )  # fmt: skip
        assert done.code == 0
        names.append(Path(done.last["run"]).name)
    assert len(set(names)) == 2 and all(
        name.split("-", 1)[1].startswith("tiny-odd_plugins-with_empty") for name in names
    )
    assert {path.name for path in (tmp_path / "results").iterdir()} == set(names)


def test_a_reader_that_leaves_early_is_no_error(rollouts: Path) -> None:
    """Fails if `... --output csv | head` ends in a traceback."""
    command = [sys.executable, "-m", "agentbench_spec", "rollouts", "stats", str(rollouts), "--output", "csv"]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(write)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def piped(*words: object, stdout: bool, columns: int = 80) -> subprocess.CompletedProcess[str]:
    """The command with one of its streams going to a reader that has left; the other one is kept."""
    read, write = os.pipe()
    os.close(read)
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    streams["stdout" if stdout else "stderr"] = write
    command = [sys.executable, "-m", "agentbench_spec", *map(str, words)]
    try:
        return subprocess.run(command, text=True, timeout=120, env=os.environ | {"COLUMNS": str(columns)}, **streams)
    finally:
        os.close(write)


def test_a_verdict_outlives_its_reader(tmp_path: Path) -> None:
    """Fails if `compare ... | true` says that something fell where nothing did, or a plugin is blamed for the pipe."""
    run = write_run(tmp_path / "run", two_rollouts())
    rows = two_rollouts()
    rows[-1] = make_row("r1", 1, "ngram", k=3, status="error", error="X: y")
    worse = write_run(tmp_path / "worse", rows)
    same = piped("compare", run, run, stdout=True)
    assert same.returncode == 0 and "new run against old" in same.stderr
    assert piped("compare", run, worse, stdout=True).returncode == 1
    unread = piped("compare", run, run, stdout=False)
    assert unread.returncode == 141 and not unread.stdout


def test_a_narrow_screen_cuts_no_figure(tmp_path: Path) -> None:
    """Fails if a number on a screen of 40 columns ends in dots."""
    run = write_run(tmp_path / "run", two_rollouts())
    done = piped("compare", run, run, stdout=True, columns=40)
    assert "judgement" in done.stderr and "speedup" in done.stderr and "…" not in done.stderr


def test_list_names_plugins_and_where_they_come_from() -> None:
    """Fails if an installed drafter or workload is missing from the list."""
    done = call("list")
    assert {"none", "ngram", "suffix"} <= set(done.last["drafter"]) and "bfcl_v3" in done.last["workload"]
    assert "agentbench-spec" in done.err


# rollouts


def test_build_writes_what_validate_and_stats_read(tmp_path: Path) -> None:
    """Fails if a built file is not valid, a limit is not obeyed, or the counts of the three commands differ."""
    path = tmp_path / "bfcl.jsonl.gz"
    built = call("rollouts", "build", "bfcl_v3", "-o", path, "--set", "subset=shipped", "--limit", 8)
    assert built.code == 0 and built.last == {"rollouts": 8, "file": str(path), "left_out": []}
    checked = call("rollouts", "validate", path)
    assert checked.code == 0 and checked.last["ok"] is True and checked.last["rollouts"] == 8
    counted = call("rollouts", "stats", path)
    assert counted.last["rollouts"] == 8 and sum(g["rollouts"] for g in counted.last["groups"].values()) == 8
    assert sum(g["turns"] for g in counted.last["groups"].values()) == checked.last["decode_points"]
    assert "long_context" in counted.err and "min / median / max" in counted.err


def test_stats_csv_has_a_row_for_each_rollout_and_token_counts(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if CSV on stdout is mixed with other text, or tokens are not those of the target's own template."""
    done = call("rollouts", "stats", rollouts, "--target", tiny, "--output", "csv")
    (tmp_path / "stats.csv").write_text(done.out)
    frame = pd.read_csv(tmp_path / "stats.csv")
    assert list(frame["id"]) == ["a", "b", "c"]
    replay(tiny, rollouts, tmp_path / "run", "--drafter", "none", "--max-new-tokens", 2)
    longest = {row.rollout: row.context_tokens for row in rows_of(tmp_path / "run") if row.turn == 2}
    assert dict(zip(frame["id"], frame["max_prompt_tokens"], strict=True)) == longest


def test_stats_group_rollouts_without_a_category(rollouts: Path) -> None:
    """Fails if a missing category is called nan."""
    done = call("rollouts", "stats", rollouts)
    assert list(done.last["groups"]) == ["(no category)"] and "nan" not in done.err


def test_lenient_build_lists_what_it_passes_over(tmp_path: Path) -> None:
    """Fails if bad lines vanish without a word, or a strict build writes half a file."""
    path, out = torn(tmp_path, 3), tmp_path / "out.jsonl"
    strict = call("rollouts", "build", path, "-o", out)
    assert strict.code == 2 and f"{path}:3" in strict.error and not out.exists()
    lenient = call("rollouts", "build", path, "-o", out, "--lenient")
    assert lenient.code == 0 and [r.id for r in read_rollouts(out)] == ["r1", "r2"]
    assert len(lenient.last["left_out"]) == 1 and f"left out: {path}:3: not JSON" in lenient.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("build", "bfcl_v3", "-o", "out.json"), "--out out.json: name it .jsonl or .jsonl.gz"),
        (("build", "bfcl", "-o", "out.jsonl"), "unknown workload 'bfcl'; did you mean 'bfcl_v3'?"),
        (("build", "no/such.jsonl", "-o", "out.jsonl"), "no/such.jsonl: no such file"),
        (("build", "bfcl_v3", "-o", "out.jsonl", "--set", "subset"), "write it as key=value"),
        (("build", "bfcl_v3", "-o", "out.jsonl", "--set", "data=/no/such"), "/no/such: no such file or folder"),
        (("validate", "no/such.jsonl"), "no/such.jsonl: no such file"),
        (("stats", "no/such"), "workload no/such: a path must be a rollouts file"),
        (("stats", "odd_plugins:none_at_all"), "gave no rollouts"),
    ],
)
def test_mistakes_in_rollouts_commands_are_named(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a mistake ends in a traceback, writes a file, or is not named."""
    monkeypatch.chdir(tmp_path)
    done = call("rollouts", *arguments)
    assert done.code == 2 and says in done.error and not list(tmp_path.iterdir())


def test_a_limit_below_one_is_a_usage_error(rollouts: Path, tmp_path: Path) -> None:
    """Fails if --limit 0 writes an empty file that nothing reads."""
    done = call("rollouts", "build", rollouts, "-o", tmp_path / "out.jsonl", "--limit", 0)
    assert done.code == 2 and "--limit" in done.err and not (tmp_path / "out.jsonl").exists()


# check


def test_check_passes_an_honest_drafter() -> None:
    """Fails if the command calls a drafter broken that breaks no law, or its JSON line is not the report."""
    done = call("check", "none", "--on", "toy")
    assert done.code == 0 and done.last["drafter"] == "none" and done.last["failed"] == []
    assert {finding["on"] for finding in done.last["findings"]} == {"toy"} and "lossless" in done.err


def test_check_fails_a_drafter_that_breaks_a_law() -> None:
    """Fails if a broken contract leaves exit code 0, or the message that says where is swallowed as markup."""
    done = call("check", "odd_plugins:broken", "--on", " toy, ")
    assert done.code == 1 and "lossless" in done.last["failed"]
    assert any("this drafter [never] works" in finding["message"] for finding in done.last["findings"])
    assert "[never]" in done.err


def test_check_names_the_call_in_which_a_drafter_ends_the_process() -> None:
    """Fails if sys.exit(0) in a drafter makes `check` end at once, with the code of success."""
    done = call("check", "odd_plugins:quits", "--on", "toy")
    assert done.code == 1 and "lossless" in done.last["failed"]
    assert any("SystemExit" in finding["message"] for finding in done.last["findings"])


def test_check_runs_on_a_target_of_the_users_own(tiny: Path) -> None:
    """Fails if a drafter trained for one target can only be checked on others."""
    done = call("check", "none", "--target", tiny)
    assert done.code == 0 and {finding["on"] for finding in done.last["findings"]} == {str(tiny)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ngrm",), "unknown drafter 'ngrm'; did you mean 'ngram'?"),
        (("ngram", "--on", "moon"), "unknown target 'moon' to check on; known: toy, embedded"),
        (("ngram", "--on", ","), "--on names no target"),
        (("ngram", "--on", "toy", "--set", "max_m=3"), "did you mean 'max_n'?"),
        (("ngram", "--on", "toy", "--set", "max_m"), "write it as key=value"),
        (("ngram", "--target", "/no/such/model"), "/no/such/model"),
    ],
)
def test_mistakes_in_check_are_user_errors(arguments: tuple[str, ...], says: str) -> None:
    """Fails if a mistyped drafter, target or option counts as a broken law."""
    done = call("check", *arguments)
    assert done.code == 2 and says in done.error and done.out == ""
