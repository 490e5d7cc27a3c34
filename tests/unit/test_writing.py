"""Output paths: files whole or untouched, links followed, devices and pipes written through."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import write_json_lines
from agentbench_spec.results.provenance import write_json_atomic
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.runs.progress import Progress
from agentbench_spec.writing import is_special, output_file, write_bytes
from tests.unit.rowkit import make_row

ROLLOUT = (
    '{"schema":1,"id":"a","workload":"w","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]}'
)


def fifo_with_reader(path: Path) -> tuple[threading.Thread, list[bytes]]:
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    return reader, got


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    """Fails if the pipe is replaced by a file: its reader would wait for ever."""
    pipe = tmp_path / "fifo.jsonl"
    reader, got = fifo_with_reader(pipe)
    assert write_json_lines(pipe, [{"a": 1}]) == 1
    reader.join(10)
    assert got == [b'{"a":1}\n']
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """Fails if /dev/null under another name becomes a file; as root the real one would go."""
    null = tmp_path / "null.html"
    null.symlink_to("/dev/null")
    for write in (lambda p: write_bytes(p, b"x"), lambda p: write_json_atomic(p, {"a": 1})):
        write(null)
    assert is_special(null)
    assert null.readlink() == Path("/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert [each.name for each in tmp_path.iterdir()] == ["null.html"]


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "dangling"])
def test_a_link_is_followed(tmp_path: Path, there: bool) -> None:
    """Fails if the link is replaced and what it leads to keeps the old words."""
    real, link, again = tmp_path / "kept" / "target.jsonl", tmp_path / "link.jsonl", tmp_path / "again.jsonl"
    real.parent.mkdir()
    if there:
        real.write_text("old")
    link.symlink_to("kept/target.jsonl")
    again.symlink_to(link)
    write_bytes(again, b"new")
    assert real.read_text() == "new"
    assert link.is_symlink() and again.is_symlink()
    assert [each.name for each in real.parent.iterdir()] == ["target.jsonl"]


def test_what_cannot_be_written_is_refused_and_kept(tmp_path: Path) -> None:
    """Fails if a folder or a socket is replaced, or a ring of links followed for ever."""
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    (tmp_path / "ring").symlink_to("ring")
    for name in ("folder", "socket"):
        with pytest.raises(ConfigError, match=f"is a {name}; name a file"):
            write_bytes(tmp_path / name, b"x")
    with pytest.raises(OSError) as ring:
        write_bytes(tmp_path / "ring", b"x")
    assert ring.value.errno == errno.ELOOP
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "ring", "socket"]


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Fails if half a file stands under the name, or something is left beside it."""
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    with pytest.raises(KeyError), output_file(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_full_disk_names_the_path_not_the_partial_file(tmp_path: Path) -> None:
    """Fails if the user reads of a file he never named, or of none."""
    full = tmp_path / "full.md"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        write_bytes(full, b"x")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(full))


def test_an_error_of_what_is_read_keeps_its_own_name(tmp_path: Path) -> None:
    """Fails if a source that cannot be opened is blamed on the output."""
    with pytest.raises(FileNotFoundError) as error, output_file(tmp_path / "out"):
        (tmp_path / "source").open()
    assert error.value.filename == str(tmp_path / "source")


def test_a_full_disk_in_a_run_names_the_folder_and_resume(tmp_path: Path) -> None:
    """Fails if a run that a disk ended says neither where it stands nor how it goes on."""
    folder = tmp_path / "run"
    with RunWriter.create(folder, {"settings_digest": "0"}) as writer:
        (folder / "turns.jsonl").symlink_to("/dev/full")
        with pytest.raises(ConfigError, match=rf"No space left.*run --resume --out {folder}"):
            writer.turn([make_row(matched=[1])])


@pytest.mark.parametrize("to_file", [False, True], ids=["pipe", "file"])
def test_stdout_holds_the_rollouts_alone(tmp_path: Path, to_file: bool) -> None:
    """Fails if -o /dev/stdout is refused, replaced, overwritten by the last line, or mixed with it."""
    source = tmp_path / "in.jsonl"
    source.write_text(ROLLOUT + "\n")
    command = [
        sys.executable,
        "-c",
        "from agentbench_spec.cli import app; app()",
        "rollouts",
        "build",
        str(source),
        "-o",
        "/dev/stdout",
    ]
    with (tmp_path / "out").open("wb") as file:
        file.write(b"before\n")
        file.flush()
        done = subprocess.run(command, stdout=file if to_file else subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    written = (tmp_path / "out").read_bytes().removeprefix(b"before\n") if to_file else done.stdout
    assert [json.loads(line)["id"] for line in written.splitlines()] == ["a"]
    assert json.loads(done.stderr.splitlines()[-1])["rollouts"] == 1


def test_progress_in_a_log_is_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if a bar is drawn over itself where nobody watches, or a log has a line a rollout."""
    with Progress({"a": 1, "b": 1, "c": 1}) as progress:
        for name in "abc":
            with progress.rollout(name):
                pass
    said = capsys.readouterr().err
    assert "\r" not in said and said.endswith("\n") and 1 <= said.count("\n") <= 3 and "rollout 3/3" in said
