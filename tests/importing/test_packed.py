"""Streams and containers: standard input, pipes, compression, archives, tables, and what cannot be read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from test_field_imports import sample
from traces import call, chat, imported, noted, one, result, said, write

from agentbench_spec.rollout import read_rollouts

ROWS = [chat(said("one"), id="a"), chat(said("two"), id="b")]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def zipped(**members: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return held.getvalue()


def table(rows: list[dict[str, Any]]) -> bytes:
    held = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), held)
    return held.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gz": gzip.compress,
    "gz in gz": lambda data: gzip.compress(gzip.compress(data)),
    "two gz": lambda data: b"".join(gzip.compress(line) for line in data.splitlines(keepends=True)),
    "zst": zstd,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zip": lambda data: zipped(t=data),
    "gz in zst": lambda data: zstd(gzip.compress(data)),
    "zip with gz": lambda data: zipped(t=gzip.compress(data)),
    "gz of zip": lambda data: gzip.compress(zipped(t=data)),
}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("content", ["lines", "document", "table"])
def test_packed_files_are_read_whatever_they_are_called(packing: str, content: str, tmp_path: Path) -> None:
    """Fails if a packed file is refused, or told by its name."""
    data = {"lines": LINES, "document": json.dumps(ROWS, indent=1).encode(), "table": table(ROWS)}[content]
    (tmp_path / "t.jsonl").write_bytes(PACK[packing](data))
    rollouts, bad = imported(tmp_path / "t.jsonl")
    assert bad == [] and [r.id.split("/")[-1] for r in rollouts] == ["a", "b"]
    assert [r.messages[1].content for r in rollouts] == ["one", "two"]


@pytest.mark.parametrize("packing", ["gz", "zst", "xz", "bz2", "zip"])
@pytest.mark.parametrize("kept", [7, 0.6])
def test_damaged_packed_files_are_named_as_such(packing: str, kept: float, tmp_path: Path) -> None:
    """Fails if a packed file that is cut off passes for an empty one, or for prose."""
    packed = PACK[packing](LINES * 40)
    (tmp_path / "t").write_bytes(packed[: int(kept if kept > 1 else kept * len(packed))])
    _, bad = imported(tmp_path / "t")
    assert len(bad) == 1 and "data is cut off or damaged" in bad[0].reason


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(40), "a 7z archive; unpack it first"),
        (b"Rar!\x1a\x07\x01\x00" + bytes(40), "a rar archive"),
        (b"SQLite format 3\x00" + bytes(40), "an SQLite database"),
        (b"\x80\x04\x95" + bytes(40), "a pickle, which is not opened"),
        (b"<!DOCTYPE html><html>log in</html>", "a web page, not the data"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "an image"),
    ],
)
def test_what_cannot_be_read_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    """Fails if a binary file is called a prose log."""
    (tmp_path / "t.jsonl").write_bytes(data)
    _, bad = imported(tmp_path / "t.jsonl")
    assert len(bad) == 1 and f"is {words}" in bad[0].reason


def test_a_tar_archive_is_named_packed_or_not(tmp_path: Path) -> None:
    """Fails if the first bytes of a member pass for the archive's."""
    for mode in ("w", "w:gz"):
        with tarfile.open(tmp_path / "t.tgz", mode) as archive:
            archive.add(write(tmp_path / "t.jsonl", *ROWS), "t.jsonl")
        assert "is a tar archive; unpack it first" in imported(tmp_path / "t.tgz")[1][0].reason


def test_an_inspect_archive_gives_its_samples(tmp_path: Path) -> None:
    """Fails if the header or the journal of a log pass for rollouts, or go without a word."""
    samples = {f"samples__1_epoch_{n}.json": json.dumps(sample(n)).encode() for n in (1, 2)}
    data = zipped(**samples, **{"header.json": b'{"version": 2}', "_journal__start.json": b'{"eval": {}}'})
    (tmp_path / "log.eval").write_bytes(data)
    rollouts, bad = imported(tmp_path / "log.eval")
    assert bad == [] and [r.id for r in rollouts] == ["log/1-1", "log/1-2"]
    assert rollouts[0].source["member"] == "samples/1_epoch_1.json"
    assert noted(rollouts[0], "header.json, _journal/start.json")


def test_maps_of_arrow_are_objects(tmp_path: Path) -> None:
    """Fails if arguments stored as a map reach a template as a list of pairs."""
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    function = pyarrow.struct([("name", pyarrow.string()), ("arguments", kind)])
    calls = pyarrow.list_(pyarrow.struct([("id", pyarrow.string()), ("function", function)]))
    names = ("role", "content", "tool_call_id")
    message = pyarrow.struct([*((name, pyarrow.string()) for name in names), ("tool_calls", calls)])
    made = said("", tool_calls=[call(arguments=[("path", "a"), ("all", "yes")])])
    rows = pyarrow.array([[{"role": "user", "content": "q"}, made, result("x"), said()]], pyarrow.list_(message))
    data = pyarrow.table({"messages": rows})
    pyarrow.parquet.write_table(data, tmp_path / "t.parquet")
    with pyarrow.ipc.new_file(tmp_path / "t.arrow", data.schema) as file:
        file.write_table(data)
    with pyarrow.ipc.new_stream(tmp_path / "s.arrow", data.schema) as stream:
        stream.write_table(data)
    for name in ("t.parquet", "t.arrow", "s.arrow"):
        assert one(tmp_path / name).messages[1].tool_calls[0].arguments == {"path": "a", "all": "yes"}


@pytest.mark.parametrize(
    ("data", "ids", "note"),
    [
        (LINES.replace(b"\n", b"\r"), ["a", "b"], "several values stood on one line"),
        (LINES.replace(b"\n", b""), ["a", "b"], "several values stood on one line"),
        (json.dumps(ROWS[0], indent=1).encode() + json.dumps(ROWS[1], indent=1).encode(), ["a", "b"], "several values"),
        (LINES.replace(b"\n", b"\n" + bytes(300), 1), ["a", "b"], "NUL bytes around a line"),
        (LINES.replace(b"\n", b"\r\n\xef\xbb\xbf", 1), ["a", "b"], ""),
        (LINES.replace(b'"one"', b'"first", "content": "one"'), ["a", "b"], "'content' stands twice in one object"),
    ],
    ids=["CR alone", "no line ends", "documents behind one another", "NUL", "mark on a line", "member twice"],
)
def test_odd_bytes_cost_no_row(data: bytes, ids: list[str], note: str, tmp_path: Path) -> None:
    """Fails if rows are lost to how they are strung together, or the repair is not said."""
    (tmp_path / "t.jsonl").write_bytes(data)
    rollouts, bad = imported(tmp_path / "t.jsonl")
    assert bad == [] and [r.id.split("/")[-1] for r in rollouts] == ids
    assert not note or any(noted(rollout, note) for rollout in rollouts)


@pytest.mark.parametrize("packing", ["plain", "gz", "zst", "zip"])
def test_standard_input(packing: str, tmp_path: Path) -> None:
    """Fails if `-` is taken for a file, or a packed or a binary stream cannot be read."""
    out = tmp_path / "out.jsonl"
    program = "import sys; from agentbench_spec.cli import app; sys.argv[0] = 'agentbench-spec'; app()"
    command = [sys.executable, "-c", program, "rollouts", "import", "-", "-o", str(out)]
    done = subprocess.run(command, input=PACK[packing](LINES), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    rollouts = list(read_rollouts(out))
    assert [r.id for r in rollouts] == (["stdin/a", "stdin/b"]) and rollouts[0].source["file"] == "stdin"


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """Fails if a named pipe is opened twice, which waits for ever, or is called no file."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(LINES,), daemon=True)
    writer.start()
    rollouts, bad = imported(tmp_path / "pipe")
    writer.join(timeout=10)
    assert bad == [] and [r.id for r in rollouts] == ["pipe/a", "pipe/b"]


def test_what_a_folder_holds_besides_files_is_said(tmp_path: Path) -> None:
    """Fails if a linked folder, a dangling link or a pipe inside a folder is passed over without a word."""
    folder, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    write(elsewhere / "t.jsonl", *ROWS)
    write(folder / "good.jsonl", *ROWS)
    (folder / "file.jsonl").symlink_to(elsewhere / "t.jsonl")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "pipe")
    rollouts, bad = imported(folder)
    assert [r.id for r in rollouts] == ["file/a", "file/b", "good/a", "good/b"]
    told = {line.path.name: line.reason for line in bad}
    assert told.keys() == {"linked", "gone", "pipe"}
    assert "link to a folder and is not followed" in told["linked"] and "is not there" in told["gone"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "completion": "b"}, "prompts with completions"),
        ({"instruction": "a", "output": "b"}, "instructions with outputs"),
        ({"instance_id": "x", "model_patch": "d"}, "SWE-bench predictions"),
        ({"timestamp": 1, "hash_ids": [1], "input_length": 3}, "a trace of hashes and lengths"),
        ({"chosen": "a", "rejected": "b"}, "preference pairs"),
        ({"a": 1, "b": 2}, "(keys seen: a, b)"),
    ],
)
def test_a_file_of_no_known_format_gets_one_line(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Fails if a thousand rows of one kind make a thousand lines, or nobody is told what they look like."""
    _, bad = imported(write(tmp_path / "t.jsonl", *[row] * 1000))
    assert len(bad) == 1 and words in bad[0].reason and "all 1,000 rows" in bad[0].reason
    rollouts, bad = imported(write(tmp_path / "t.jsonl", row, row, *ROWS, row))
    assert len(rollouts) == 2 and [line.line for line in bad] == [1, 2, 5]


def test_a_file_of_an_archive_costs_itself_only(tmp_path: Path) -> None:
    """Fails if an encrypted or damaged file takes the others of its archive along, or is called something else."""
    data = bytearray(zipped(locked=LINES, torn=LINES, whole=LINES))
    directory = [at for at in range(len(data)) if data.startswith(b"PK\x01\x02", at)]
    data[directory[0] + 8] |= 1
    torn = data.index(b"torn") + len(b"torn")
    data[torn : torn + 12] = bytes(12)
    (tmp_path / "t.zip").write_bytes(data)
    rollouts, bad = imported(tmp_path / "t.zip")
    assert [r.messages[1].content for r in rollouts] == ["one", "two"]
    assert [(line.path.name, line.reason.split(";")[0].split(" (")[0]) for line in bad] == [
        ("locked", "is encrypted"),
        ("torn", "zip data is cut off or damaged"),
    ]


def test_an_archive_without_a_file_is_named(tmp_path: Path) -> None:
    """Fails if nothing is said of an archive in which nothing stands."""
    (tmp_path / "t.zip").write_bytes(zipped())
    _, bad = imported(tmp_path / "t.zip")
    assert [line.reason for line in bad] == ["is an archive without a file in it"]
