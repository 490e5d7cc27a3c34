"""Files: how rows are told apart, what damage costs, and that good rows beside bad ones are never lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from traces import DATA, chat, imported, one, roles, said, write

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing import TraceImport, import_rollouts, read_rows


def rows(*names: str) -> list[dict[str, Any]]:
    return [chat(said(name), id=name) for name in names]


def ids(path: Path) -> tuple[list[str], list[int]]:
    """(names of good rollouts, numbers of bad rows)."""
    rollouts, bad = imported(path)
    return [r.id.partition("/")[2] or r.id for r in rollouts], [line.line for line in bad]


LAYOUTS = {
    "lines": lambda values: "\n".join(map(json.dumps, values)),
    "lines with blank ones": lambda values: "\n\n" + "\n \n".join(map(json.dumps, values)) + "\n\n",
    "lines with CRLF": lambda values: "\r\n".join(map(json.dumps, values)) + "\r\n",
    "array": json.dumps,
    "array, pretty": lambda values: json.dumps(values, indent=2),
    "array, one element a line": lambda values: "[\n" + ",\n".join(map(json.dumps, values)) + "\n]\n",
    "array, indent 0": lambda values: json.dumps(values, indent=0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_layouts_of_the_same_rows(layout: str, mark: bytes, tmp_path: Path) -> None:
    """Fails if JSON is taken for JSON lines or the other way round, or a byte order mark is in the way."""
    path = tmp_path / "t.json"
    path.write_bytes(mark + LAYOUTS[layout](rows("a", "b", "c")).encode())
    assert ids(path) == (["a", "b", "c"], [])


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_one_document(indent: int | None, tmp_path: Path) -> None:
    """Fails if a file with one rollout, pretty-printed or not, is split into its lines; its name is the rollout's."""
    path = tmp_path / "acme__lib-1.traj.json"
    value = {key: value for key, value in rows("a")[0].items() if key != "id"}
    path.write_text(json.dumps(value, indent=indent), "utf-8")
    assert ids(path) == (["acme__lib-1"], [])


@pytest.mark.parametrize("damage", [b'{"messages": [{', b"garbage", b'{"messages": 1}', b"null", b"[1, 2", b"\x00\xff"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_line_costs_itself_only(damage: bytes, place: int, tmp_path: Path) -> None:
    """Fails if a damaged line, the first above all, hides the good ones or the file's form."""
    lines: list[Any] = list(rows("a", "b"))
    lines.insert(place, damage + b"\n")
    good, bad = ids(write(tmp_path / "t.jsonl", *lines))
    assert (good, bad) == (["a", "b"], [place + 1])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.jsonl", '{"messages":\n', "column 13: Expecting value (it breaks off there)"),
        ("t.json", '{"messages": [],\n "id": oops}\n', "line 2, column 8: Expecting value"),
    ],
)
def test_the_place_of_a_fault_is_in_the_line_that_has_it(name: str, text: str, words: str, tmp_path: Path) -> None:
    """Fails if a row that breaks off is said to be wrong at column 1, of the line after it."""
    (tmp_path / name).write_text(text, "utf-8")
    _, bad = imported(tmp_path / name)
    assert bad[0].line == 1 and words in bad[0].reason


def test_many_bad_lines_before_the_first_good_one(tmp_path: Path) -> None:
    """Fails if the form of a file is judged by a few lines for good."""
    good, bad = ids(write(tmp_path / "t.jsonl", *([b"{oops\n"] * 30), *rows("a")))
    assert good == ["a"] and bad == list(range(1, 31))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("layout", ["array, one element a line", "array, pretty"])
def test_a_damaged_element_costs_itself_only(layout: str, place: int, tmp_path: Path) -> None:
    """Fails if one element that is no JSON ends the reading of an array, or makes junk rows of what is inside it."""
    values = rows("a", "b", "c")
    values[place]["id"] = "DAMAGE"
    text = LAYOUTS[layout](values).replace('"DAMAGE"', "DAMAGE" + "x" * 100)
    (tmp_path / "t.json").write_text(text, "utf-8")
    good, bad = ids(tmp_path / "t.json")
    assert good == [name for i, name in enumerate("abc") if i != place]
    assert bad == [place + 1]


def test_an_array_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    """Fails if a truncated array loses its whole elements, or passes for complete."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps(rows("a", "b", "c"), indent=1)[:-40], "utf-8")
    good, bad = ids(path)
    assert good == ["a", "b"] and bad == [3]
    path.write_text(json.dumps(rows("a", "b")).removesuffix("]"), "utf-8")
    good, bad = ids(path)
    assert good == ["a", "b"] and "has no end" in str(imported(path)[1][0])


def test_an_array_larger_than_the_buffer(tmp_path: Path) -> None:
    """Fails if an element or a character that spans two reads is broken."""
    values = [chat(said("é😀" * 40_000 + name), id=name) for name in "abcdefgh"]
    path = tmp_path / "t.json"
    for text in (json.dumps(values, ensure_ascii=False), json.dumps(values, ensure_ascii=False, indent=1)):
        path.write_text(text, "utf-8")
        rollouts, bad = imported(path)
        assert bad == [] and [r.messages[1].content for r in rollouts] == ["é😀" * 40_000 + n for n in "abcdefgh"]


@pytest.mark.parametrize("store", ["array", "lines"])
def test_a_file_of_messages_is_one_rollout(store: str, tmp_path: Path) -> None:
    """Fails if the messages of a bare list, or of a log with one message a line, become rows of their own."""
    path = tmp_path / "session.jsonl"
    messages = chat(said(), {"role": "user", "content": "b"}, said())["messages"]
    path.write_text(LAYOUTS[store](messages), "utf-8")
    rollout = one(path)
    assert (rollout.id, roles(rollout)) == ("session", "uaua")


def test_lists_on_lines_are_one_rollout_each(tmp_path: Path) -> None:
    """Fails if JSON lines of bare lists are taken for one array."""
    path = write(tmp_path / "t.jsonl", chat(said())["messages"], chat(said(), said())["messages"])
    assert [(r.id, roles(r)) for r in imported(path)[0]] == [("t/1", "ua"), ("t/2", "uaa")]


@pytest.mark.parametrize("last", [b"", b"oops\n"])
def test_a_long_list_on_the_first_line_is_no_array(last: bytes, tmp_path: Path) -> None:
    """Fails if lists on lines behind one of more than a megabyte are lost, or become part of it."""
    long = chat(said("é" * 700_000), said("b"))["messages"]
    path = tmp_path / "t.jsonl"
    lines = [
        json.dumps(value, ensure_ascii=False).encode() + b"\n"
        for value in (long, *[row["messages"] for row in rows("c", "d")])
    ]
    path.write_bytes(b"".join(lines) + last)
    rollouts, bad = imported(path)
    assert [(r.id, roles(r)) for r in rollouts] == [("t/1", "uaa"), ("t/2", "ua"), ("t/3", "ua")]
    assert rollouts[0].messages[1].content == "é" * 700_000
    assert [line.line for line in bad] == ([4] if last else [])


def test_a_document_may_list_its_rollouts(tmp_path: Path) -> None:
    """Fails if rollouts inside a larger document are refused, or two lists of them are guessed at."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schema": "x", "tags": ["a"], "cases": rows("a", "b")}), "utf-8")
    rollouts, bad = imported(path)
    assert bad == [] and [r.id for r in rollouts] == ["t/a", "t/b"]
    assert rollouts[0].notes == ("the rollout stood in the list 'cases' of a larger document",)
    path.write_text(json.dumps({"cases": rows("a"), "more": rows("b")}), "utf-8")
    assert "no known format" in str(imported(path)[1][0])


def test_ids_are_unique_over_files(tmp_path: Path) -> None:
    """Fails if two rollouts get one id, or the change is not said; result rows are keyed by it."""
    for folder in ("run1", "run2"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "out.jsonl", *rows("a", "a"))
    rollouts, bad = imported(tmp_path)
    assert bad == []
    assert [r.id for r in rollouts] == ["out/a", "out/a#2", "out/a#3", "out/a#4"]
    assert [len(r.notes) for r in rollouts] == [0, 1, 1, 1]
    assert [r.source["file"] for r in rollouts[::2]] == [f"{tmp_path.name}/run{i}/out.jsonl" for i in (1, 2)]


def test_a_suffixed_id_does_not_take_a_recorded_one(tmp_path: Path) -> None:
    """Fails if the suffix given to a collision collides in turn."""
    rollouts, _ = imported(write(tmp_path / "t.jsonl", *rows("a", "a", "a#2", "a")))
    assert len({r.id for r in rollouts}) == 4


def test_missing_paths_and_unknown_formats_are_errors(tmp_path: Path) -> None:
    """Fails if a typing error imports nothing in silence."""
    with pytest.raises(ConfigError, match="no/such: no such file or folder"):
        list(import_rollouts([tmp_path / "no/such"]))
    with pytest.raises(ConfigError, match="no such file"):
        next(read_rows(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match=r"unknown format 'sweagent'; did you mean 'swe_agent'\?"):
        list(import_rollouts([DATA], format="sweagent"))


def test_without_a_listener_the_first_bad_row_raises(tmp_path: Path) -> None:
    """Fails if a bad row is passed over because nobody listens."""
    path = write(tmp_path / "t.jsonl", *rows("a"), {"messages": [{"role": "critic"}]})
    with pytest.raises(ConfigError, match=r"t\.jsonl:2: messages\[0\]\.role: unknown role 'critic'"):
        list(import_rollouts([path]))


def test_prose_beside_traces_is_listed(tmp_path: Path) -> None:
    """Fails if files of a folder that are no traces vanish without a word; hidden ones are the system's."""
    write(tmp_path / "good.jsonl", *rows("a"))
    (tmp_path / "run.log").write_text("INFO started\nINFO done\n", "utf-8")
    (tmp_path / "metadata.yaml").write_text("name: x\n", "utf-8")
    (tmp_path / ".DS_Store").write_bytes(b"\x00")
    bad: list[BadLine] = []
    source = TraceImport([tmp_path], on_bad=bad.append)
    assert [r.id for r in source.rollouts()] == ["good/a"]
    assert [line.path.name for line in bad] == ["metadata.yaml", "run.log"]
    assert source.bad_rows == 2 and all("a prose log cannot be replayed" in line.reason for line in bad)


def test_reading_is_lazy(tmp_path: Path) -> None:
    """Fails if a file is read to its end before the first row is given: memory would grow with the file."""
    path = write(tmp_path / "t.jsonl", *rows(*map(str, range(2000))))
    found = read_rows(path)
    next(found)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    assert 100 < sum(1 for _ in found) < 1999
