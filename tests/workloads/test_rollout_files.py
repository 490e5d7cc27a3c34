"""Rollout files: what is written comes back, and what is damaged is named by file, line and field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentbench_spec.errors import ConfigError, ContractError
from agentbench_spec.rollout import (
    SCHEMA,
    BadLine,
    FileWorkload,
    Message,
    Rollout,
    ToolCall,
    file_sha256,
    read_rollouts,
    spread_sample,
    write_rollouts,
)
from agentbench_spec.rollouts.sizes import rollout_stats, summarize, validate_rollouts

TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}


def rollout(name: str = "r0", text: str = "List.", category: str = "a") -> Rollout:
    return Rollout(
        id=name,
        workload="own",
        source={"name": "test", "row": 0},
        tools=(TOOL,),
        messages=(
            Message(role="user", content=text),
            Message(role="assistant", tool_calls=(ToolCall(name="ls", arguments={"n": 1.5, "a": None}, id="c"),)),
            Message(role="tool", content="a.txt", tool_call_id="c", name="ls"),
            Message(role="user", content="More tools.", tools=(TOOL, TOOL)),
            Message(role="assistant", content="Done.", synthetic=True),
        ),
        labels={"category": category},
        notes=("a note",),
    )


def line(**changes: Any) -> dict[str, Any]:
    """A good line with fields replaced; a value of ... drops the field."""
    good = {"id": "r", "workload": "w", "messages": [{"role": "user"}, {"role": "assistant", "content": "x"}]}
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


def write(path: Path, *lines: Any) -> Path:
    """Write lines as they are (bytes) or as JSON."""
    path.write_bytes(b"".join(x if isinstance(x, bytes) else json.dumps(x).encode() + b"\n" for x in lines))
    return path


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
@pytest.mark.parametrize("text", ["plain", "a\r\nb\rc", "line\u2028sep \x85 \x0b", "😀 é <|im_end|> </think>", ""])
def test_round_trip(tmp_path: Path, name: str, text: str) -> None:
    """Fails if a line break inside a text splits the line, or a field or a character is lost on the way."""
    rollouts = [rollout("r0", text), rollout("r1", text)]
    assert write_rollouts(tmp_path / "new" / name, rollouts) == 2
    assert list(read_rollouts(tmp_path / "new" / name)) == rollouts


def test_gz_bytes_depend_on_content_only(tmp_path: Path) -> None:
    """Fails if the gzip header carries a clock or the file's name, which would change the recorded digest."""
    write_rollouts(tmp_path / "a.jsonl.gz", [rollout()])
    write_rollouts(tmp_path / "b.jsonl.gz", [rollout()])
    assert file_sha256(tmp_path / "a.jsonl.gz") == file_sha256(tmp_path / "b.jsonl.gz")


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """Fails if a workload that breaks midway destroys the file that was there, or leaves a partial one."""
    path = tmp_path / "out.jsonl"
    write_rollouts(path, [rollout()])
    before = path.read_bytes()
    with pytest.raises(ContractError, match="'r0'"):
        write_rollouts(path, [rollout(), rollout()])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), {1}, "\ud800"])
def test_values_that_are_not_json_are_refused_on_writing(tmp_path: Path, bad: Any) -> None:
    """Fails if NaN, a set or half a surrogate pair reaches the file and makes it unreadable for others."""
    odd = rollout().model_copy(update={"labels": {"x": bad}})
    with pytest.raises(ConfigError, match="r0"):
        write_rollouts(tmp_path / "out.jsonl", [odd])


BAD_LINES = [
    (line(id=...), "id", "missing"),
    (line(id=""), "id", "empty"),
    (line(messages=[]), "messages", "empty"),
    (line(messages=[{"role": "user"}]), "messages", "nothing to decode"),
    (line(messages=[{"role": "agent"}, {"role": "assistant"}]), "messages[0].role", "'user', 'assistant'"),
    (line(messages=[{"role": "user", "content": None}]), "messages[0].content", 'write ""'),
    (line(messages=[{"role": "user", "tool_calls": None}]), "messages[0].tool_calls", "leave the field out"),
    (line(messages=[{"role": "user", "content": [{"text": "x"}]}]), "messages[0].content", "join the parts"),
    (line(messages=[{"role": "user", "tool_call": []}]), "messages[0].tool_call", "'tool_calls'"),
    (
        line(messages=[{"role": "user"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}]),
        "messages[1].tool_calls[0].arguments",
        "raw_arguments",
    ),
    (line(tools=[{"name": "f"}]), "tools[0].function.name", '"type": "function"'),
    (line(schema=SCHEMA + 1), "schema", "update agentbench-spec"),
    (line(schema="1"), "schema", "found '1'"),
    ([line()], None, "found an array"),
    (b'{"id": "r", "n": NaN}\n', None, "NaN"),
    (b'{"id": "r", "n": -Infinity}\n', None, "-Infinity"),
    (b'{"id": "r", "n": 1e999}\n', None, "1e999"),
    (b'{"id": "\xff"}\n', None, "not UTF-8 at byte 8"),
    (b'{"id": "r\\ud83d"}\n', None, "surrogate"),
    (b"{\n", None, "pretty-printed"),
    (b'{"id": "r", "workload": "w", "mess', None, "looks cut off"),
    (b'{"id": "r", "workload":\n', None, "column 24: Expecting value (it breaks off there)"),
]


@pytest.mark.parametrize(("bad", "field", "words"), BAD_LINES)
def test_bad_line_is_named(tmp_path: Path, bad: Any, field: str | None, words: str) -> None:
    """Fails if a damaged line passes, or its error does not name file, line, field and what would be right."""
    path = write(tmp_path / "in.jsonl", line(id="first"), bad)
    with pytest.raises(ConfigError) as caught:
        list(read_rollouts(path))
    place = f"{path}:2: {field}: " if field else f"{path}:2: "
    assert str(caught.value).startswith(place)
    assert words in str(caught.value)


def test_good_lines_beside_bad_ones(tmp_path: Path) -> None:
    """Fails if one bad line costs its good neighbours, or lenient reading drops a line without a word."""
    lines = [line(id="a"), b"\n", line(id=...), b"junk\n", line(id="a"), line(id="b"), b'{"id": "cut']
    path = write(tmp_path / "in.jsonl", *lines)
    bad: list[BadLine] = []
    assert [r.id for r in read_rollouts(path, on_bad=bad.append)] == ["a", "b"]
    assert [b.line for b in bad] == [3, 4, 5, 7]
    assert "line 1 already" in bad[2].reason


def test_several_faults_in_one_line_are_counted(tmp_path: Path) -> None:
    """Fails if pydantic's follow-up fault ("list too short") hides the first real one."""
    path = write(tmp_path / "in.jsonl", line(workload=1, messages=[{"role": "user", "content": 1}]))
    with pytest.raises(ConfigError, match=r":1: workload: expected text, found 1.*\(and 1 more fault in this line\)"):
        list(read_rollouts(path))


FILES = [
    ("gone.jsonl", None, "no such file"),
    ("empty.jsonl", b"", "is empty"),
    ("blank.jsonl", b"\n \n", "is empty"),
    ("lfs.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    ("name.jsonl.gz", b'{"id": "a"}\n', "is not gzip"),
    ("name.jsonl", gzip.compress(b"{}", mtime=0), "rename it to name.jsonl.gz"),
]


@pytest.mark.parametrize(("name", "content", "words"), FILES)
def test_unusable_file_is_an_error_even_when_lenient(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    """Fails if a missing, empty or pointer file yields an empty workload instead of an error naming it."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        list(read_rollouts(path, on_bad=lambda bad: None))
    assert str(path) in str(caught.value)


def test_truncated_gz(tmp_path: Path) -> None:
    """Fails if a cut .gz ends silently after its last whole line."""
    path = tmp_path / "in.jsonl.gz"
    write_rollouts(path, [rollout(f"r{i}", f"{i}" * 50) for i in range(200)])
    path.write_bytes(path.read_bytes()[:-40])
    bad: list[BadLine] = []
    good = list(read_rollouts(path, on_bad=bad.append))
    assert 0 < len(good) < 200
    assert [b.line for b in bad] == [len(good) + 1]
    assert "cut off or damaged" in bad[0].reason


def test_reading_streams(tmp_path: Path) -> None:
    """Fails if the reader needs the whole file before it yields the first rollout."""
    path = write(tmp_path / "in.jsonl", line(id="a"), b"junk\n")
    rollouts = read_rollouts(path)
    assert next(rollouts).id == "a"
    with pytest.raises(ConfigError):
        next(rollouts)


def test_samples_nest_and_spread() -> None:
    """Fails if a smaller limit is not the beginning of a larger one, or a limit empties one group before another."""
    groups = {f"{group}{i}": group for group in "abc" for i in range(10)} | {"d0": "d"}
    whole = spread_sample(groups, limit=None, seed=3)
    assert sorted(whole) == sorted(groups)
    assert all(spread_sample(groups, limit=n, seed=3) == whole[:n] for n in range(32))
    assert sorted(groups[name] for name in whole[:7]) == ["a", "a", "b", "b", "c", "c", "d"]
    assert spread_sample(groups, limit=7, seed=4) != whole[:7]
    backwards = spread_sample(dict(reversed(groups.items())), limit=None, seed=3)
    assert [name for name in backwards if groups[name] == "a"] == [name for name in whole if groups[name] == "a"]


def test_file_workload(tmp_path: Path) -> None:
    """Fails if a limit changes which rollouts a larger one has, or a filter that keeps nothing passes for a run."""
    path = tmp_path / "mine.jsonl.gz"
    write_rollouts(path, [rollout(f"{c}{i}", category=c) for c in "ab" for i in range(5)])
    workload = FileWorkload(path)
    assert workload.name == "mine"
    small, large = ([r.id for r in workload.rollouts(limit=n)] for n in (2, 6))
    assert set(small) < set(large)
    assert sorted(name[0] for name in small) == ["a", "b"]
    with pytest.raises(ConfigError, match="no rollout in it matches"):
        list(FileWorkload(path, keep=lambda r: False).rollouts())
    with pytest.raises(ConfigError, match=r"none\.jsonl: no such file"):
        FileWorkload(tmp_path / "none.jsonl")


def test_validation_report(tmp_path: Path) -> None:
    """Fails if validation stops at the first bad line or misses a result without a call."""
    odd = line(id="odd", messages=[{"role": "user"}, {"role": "tool", "content": "?"}, {"role": "assistant"}])
    call = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}, "id": "c1"}]}
    path = write(tmp_path / "in.jsonl", line(), line(id=...), odd, line(id="q", messages=[{"role": "user"}, call]))
    report = validate_rollouts(path)
    assert (report.rollouts, report.decode_points, report.ok) == (3, 3, False)
    assert [(b.line, b.field) for b in report.bad] == [(2, "id")]
    assert report.warnings == (
        "odd: messages[1] is the result of no open call",
        "q: messages[1] calls 'f', which is not among the tools in force",
        "q: messages[1] makes the call 'c1', which has no result",
    )


def test_validation_says_each_oddity_once_a_tool(tmp_path: Path) -> None:
    """Fails if a tool that is nowhere declared makes a line for each of its calls, or the count is not said."""
    turn = {"role": "assistant", "tool_calls": [{"name": n, "arguments": {}, "id": f"c{n}"} for n in "fg"]}
    done = [{"role": "tool", "tool_call_id": f"c{name}", "content": "x"} for name in "fg"]
    lines = [line(id=name, messages=[{"role": "user"}, turn, *done, turn, *done]) for name in ("a", "b")]
    report = validate_rollouts(write(tmp_path / "in.jsonl", *lines))
    assert report.warnings == tuple(
        f"a: messages[1] calls {name!r}, which is not among the tools in force (4 times in 2 rollouts)" for name in "fg"
    )


def test_stats() -> None:
    """Fails if synthetic replies count as references, or tokens appear that nobody counted."""
    stats = rollout_stats([rollout("a"), rollout("b", text="List them.")])
    row = stats.iloc[0]
    assert (row.turns, row.references, row.tool_calls, row.tool_results, row.tool_changes) == (2, 1, 1, 1, 1)
    assert stats.characters[1] - stats.characters[0] == len("List them.") - len("List.")
    assert stats.max_prompt_tokens.isna().all()
    counted = rollout_stats([rollout()], prompt_tokens=lambda r, i: 10 * i)
    assert (counted.first_prompt_tokens[0], counted.max_prompt_tokens[0]) == (10, 40)
    assert summarize(stats).loc["a", "rollouts"] == 2
