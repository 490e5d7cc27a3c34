"""The odd variants seen in real traces, numbered as the reports list them: what each becomes, and that it is said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from traces import call, calls, chat, imported, noted, one, result, roles, said, write

from agentbench_spec.rollout import Rollout, write_rollouts
from agentbench_spec.rollouts.importing import RowFault, convert_row


def converted(*messages: Any, **row: Any) -> Rollout:
    return convert_row(chat(*messages, **row))


@pytest.mark.parametrize(
    ("message", "note"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [call()]}, "content is null"),
        ({"role": "assistant", "tool_calls": [call()]}, "no content"),
        ({"role": "assistant", "content": [], "tool_calls": [call()]}, "list of parts"),
        ({"role": "assistant", "content": "", "tool_calls": [call()]}, None),
        ({"role": "assistant", "content": "", "tool_calls": [call()], "name": None, "function_call": None}, None),
    ],
)
def test_1_2_18_empty_contents(message: dict[str, Any], note: str | None) -> None:
    """Fails if a turn without text is dropped, reads "None", or null padding counts as a field."""
    rollout = converted(message, result())
    assert roles(rollout) == "uat" and rollout.messages[1].content == ""
    assert calls(rollout) == [("c1", "ls")]
    assert note is None or noted(rollout, f"{note}" if note == "list of parts" else f"{note}: read as empty text")
    assert not noted(rollout, "no part of a chat")


@pytest.mark.parametrize(
    ("arguments", "read", "raw", "note"),
    [
        ("", {}, "", "empty text: read as none"),
        (" \n", {}, " \n", "empty text: read as none"),
        (None, {}, None, "null or absent: read as none"),
        ({"p": 1}, {"p": 1}, None, None),
        ('{"p":1}', {"p": 1}, '{"p":1}', None),
        ('{"p": [1, null]}', {"p": [1, None]}, '{"p": [1, null]}', None),
        ('"text"', {"_raw": '"text"'}, '"text"', "no object: kept as text"),
        ("[1]", {"_raw": "[1]"}, "[1]", "no object: kept as text"),
        ("{'p': 1}", {"_raw": "{'p': 1}"}, "{'p': 1}", "no JSON: kept as text"),
        ([1], {"_raw": [1]}, None, "no object: kept under"),
        ('{"p": NaN, "q": 1e999}', {"p": "nan", "q": "inf"}, '{"p": NaN, "q": 1e999}', "turned into text"),
        ('{"p": "\\ud83d"}', {"p": "\ufffd"}, '{"p": "\\ud83d"}', "half surrogate"),
    ],
)
def test_3_4_5_arguments(arguments: Any, read: dict[str, Any], raw: str | None, note: str | None) -> None:
    """Fails if arguments reach a template as text, or what was recorded is lost."""
    rollout = converted(said("", tool_calls=[call(arguments=arguments)]), result(), tools=[declared("ls")])
    made = rollout.messages[1].tool_calls[0]
    assert (made.arguments, made.raw_arguments) == (read, raw)
    assert rollout.notes == () if note is None else noted(rollout, note)


def declared(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def test_6_parallel_calls_with_results_in_another_order() -> None:
    """Fails if results, which templates print without ids, do not stand in the order of their calls."""
    turn = said("", tool_calls=[call(call_id="a"), call(call_id="b"), call(call_id="c")])
    rollout = converted(turn, result("C", "c"), result("A", "a"), result("B", "b"), said())
    assert [m.content for m in rollout.messages[2:5]] == ["A", "B", "C"]
    assert noted(rollout, "put in call order (message 2)")


def test_6_one_result_for_several_calls() -> None:
    """Fails if a merged result is dropped or said twice."""
    turn = said("", tool_calls=[call(call_id="a"), call(call_id="b")])
    rollout = converted(turn, {"role": "tool", "content": "both", "tool_call_ids": ["a", "b"]}, said())
    assert roles(rollout) == "uata" and rollout.messages[2].tool_call_id == "a"
    assert noted(rollout, "one result answers several calls") and noted(rollout, "a call has no result")


def test_7_call_ids_used_again_or_missing() -> None:
    """Fails if two calls share an id, or a result without one is not that of the open call."""
    one_id = [said("", tool_calls=[call(call_id="x")]), result("1", "x")]
    nameless = [said("", tool_calls=[call(call_id=...), call(call_id="")]), result("3", ...), result("4", "")]
    rollout = converted(*one_id, said("", tool_calls=[call(call_id="x")]), result("2", "x"), *nameless)
    assert [name for name, _ in calls(rollout)] == ["x", "x#2", "call_5_0", "call_5_1"]
    answered = [(m.tool_call_id, m.content) for m in rollout.messages if m.role == "tool"]
    assert answered == [("x", "1"), ("x#2", "2"), ("call_5_0", "3"), ("call_5_1", "4")]
    assert noted(rollout, "used again: renamed (message 3)") and noted(rollout, "without an id: given one (message 5)")


def test_7_a_made_up_id_is_never_one_that_is_used_later() -> None:
    """Fails if the id given to a nameless call is that of a recorded one."""
    rollout = converted(said("", tool_calls=[call(call_id=...)]), said("", tool_calls=[call(call_id="call_1_0")]))
    assert len({name for name, _ in calls(rollout)}) == 2


def test_8_9_orphans_are_kept_and_said() -> None:
    """Fails if a call without result or a result without call is dropped, or passes unsaid."""
    rollout = converted(result("lost", "zz"), said("", tool_calls=[call()]), said("Go."), result("late", "c1"))
    assert roles(rollout) == "utaat"
    assert noted(rollout, "a result without an open call: kept (message 1)")
    crashed = converted(said("", tool_calls=[call()]))
    assert roles(crashed) == "ua" and noted(crashed, "a call has no result (message 1)")


def test_8_the_note_of_an_open_call_names_the_message_that_made_it() -> None:
    """Fails if the note names the message before the next call, as `validate` never does."""
    unanswered = said("", tool_calls=[call(call_id="c1")])
    rollout = converted(unanswered, result("lost", "zz"), said("Go."), said("", tool_calls=[call(call_id="c2")]))
    assert roles(rollout) == "uataa" and noted(rollout, "a call has no result (messages 1, 4)")


def test_10_no_system_message_and_a_second_one() -> None:
    """Fails if a system message is made up, or one in mid-conversation is dropped or moved."""
    rollout = converted(said(), {"role": "system", "content": "New rules."}, said("Ok."))
    assert roles(rollout) == "uasa" and noted(
        rollout, "system message in mid-conversation: kept in its place (message 2)"
    )


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *(
            ("ai", "assistant"),
            ("agent", "assistant"),
            ("gpt", "assistant"),
            ("human", "user"),
            ("Assistant", "assistant"),
        ),
        *(("function", "tool"), ("observation", "tool"), ("developer", "system")),
    ],
)
def test_11_role_names(name: str, role: str) -> None:
    """Fails if a role that templates render as nothing gets through, or the change is not said."""
    rollout = converted(said(), {"role": name, "content": "text"}, said())
    assert rollout.messages[2].role == role and rollout.messages[2].content == "text"
    assert noted(rollout, f"role {name!r} read as {role!r} (message 2)")


@pytest.mark.parametrize("name", ["critic", "", None, 7])
def test_11_unknown_roles_are_refused(name: Any) -> None:
    """Fails if a role nobody knows is guessed."""
    with pytest.raises(RowFault, match=r"messages\[1\]\.role: unknown role"):
        converted({"role": name, "content": "text"}, said())


def test_11_exit_is_no_chat_turn() -> None:
    """Fails if bookkeeping becomes a message, or goes without a word."""
    rollout = converted(said(), {"role": "exit", "content": "submitted"})
    assert roles(rollout) == "ua" and noted(rollout, "role 'exit' is no chat turn: left out (message 2)")


def test_12_images_and_other_parts() -> None:
    """Fails if a list content renders empty, or an image vanishes in silence."""
    parts = [{"type": "text", "text": "See:"}, {"type": "image_url", "image_url": {"url": "data:..."}}, "plain"]
    rollout = converted(said(), {"role": "user", "content": parts}, said())
    assert rollout.messages[2].content == "See:\n[image_url]\nplain"
    assert noted(rollout, "type 'image_url' was replaced by the text [image_url] (message 2)")


@pytest.mark.parametrize("text", ["a\r\nb\rc\n", "\r", "x\u2028y\x0b\x85\t", "\x1b[31mred\x1b[0m", "a\x00b"])
def test_13_line_ends_and_control_characters_stay(text: str, tmp_path: Path) -> None:
    """Fails if any character of an observation is normalised on the way."""
    rollout = one(write(tmp_path / "t.jsonl", chat(said(), {"role": "user", "content": text}, said())))
    assert rollout.messages[2].content == text


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"caf\xe9", b"\\udc80", b"\xed\xa0\x80", b"cut \xf0\x9f\x98"])
def test_14_bytes_that_are_no_text(raw: bytes, tmp_path: Path) -> None:
    """Fails if one bad byte or half surrogate costs the rollout, or is replaced in silence."""
    line = json.dumps(chat(said("MARK"), said())).encode().replace(b"MARK", raw) + b"\n"
    rollouts, bad = imported(write(tmp_path / "t.jsonl", line, chat(said(), id="fine")))
    assert bad == [] and len(rollouts) == 2
    assert "\ufffd" in rollouts[0].messages[1].content
    assert noted(rollouts[0], "not UTF-8 or half surrogate pairs were replaced") and rollouts[1].notes == ()


def test_14_whole_surrogate_pairs_are_text(tmp_path: Path) -> None:
    """Fails if a smiley written as two escapes is taken for damage."""
    line = json.dumps(chat(said("😀"))).encode() + b"\n"
    assert b"\\ud83d\\ude00" in line
    rollout = one(write(tmp_path / "t.jsonl", line))
    assert rollout.messages[1].content == "😀" and rollout.notes == ()


def test_15_one_huge_observation(tmp_path: Path) -> None:
    """Fails if a turn of 370,000 characters is cut."""
    big = "x" * 370_000 + "end"
    assert (
        one(write(tmp_path / "t.jsonl", chat(said(), {"role": "user", "content": big}, said()))).messages[2].content
        == big
    )


def test_16_consecutive_roles_and_open_ends() -> None:
    """Fails if turns of one role are merged, or a rollout that ends on user or tool is cut."""
    user = {"role": "user", "content": "again"}
    assert roles(converted(user, said(), said(), user, user)) == "uuaauu"
    assert roles(converted(said("", tool_calls=[call()]), result())) == "uat"


def test_17_json_inside_json() -> None:
    """Fails if messages, tools or calls given as text are refused."""
    inner = json.dumps(chat(said("", tool_calls=json.dumps([call()])), result())["messages"])
    rollout = convert_row({"id": "r", "messages": inner, "tools": json.dumps([json.dumps(declared("ls"))])})
    assert roles(rollout) == "uat" and calls(rollout) == [("c1", "ls")] and len(rollout.tools) == 1
    assert all(noted(rollout, text) for text in ("messages given as text", "tool_calls given", "tools given as text"))


def test_17_damaged_json_inside_json_names_the_field() -> None:
    """Fails if a cut-off inner text is reported without saying where."""
    with pytest.raises(RowFault, match=r"messages: holds text that is not JSON at column"):
        convert_row({"id": "r", "messages": '[{"role": "user"'})


def test_18_parquet_pads_structs_with_nulls(tmp_path: Path) -> None:
    """Fails if arguments and tool schemas come back with members that no call had."""
    one_call, other = call(arguments={"path": "a"}), call(arguments={"line": 3})
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": "ls", "parameters": schema}},
        {"type": "function", "function": {"name": "cat", "description": "Show."}},
    ]
    row = chat(said("", tool_calls=[one_call]), result(), said("", tool_calls=[other]), tools=tools)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "t.parquet")
    rollout = one(tmp_path / "t.parquet")
    assert [m.tool_calls[0].arguments for m in rollout.messages if m.tool_calls] == [{"path": "a"}, {"line": 3}]
    assert "parameters" not in rollout.tools[1]["function"] and "description" not in rollout.tools[0]["function"]
    assert noted(rollout, "padding cannot be told from null")


def test_18_rows_of_the_datasets_library_are_padded_too() -> None:
    """Fails if the null members of a tool schema, or of arguments, reach the prompt."""
    tool = {"type": "function", "function": {"name": "ls", "description": None}}
    row = chat(said("", tool_calls=[call(arguments={"p": 1, "q": None})]), result(), tools=[tool])
    rollout = convert_row(row, padded=True)
    assert rollout.tools[0]["function"] == {"name": "ls"} and rollout.messages[1].tool_calls[0].arguments == {"p": 1}
    assert convert_row(row).messages[1].tool_calls[0].arguments == {"p": 1, "q": None}


@pytest.mark.parametrize("token", ["<|im_end|>", "<tool_call>", "</think>", "<|eot_id|>", "[INST]", "<end_of_turn>"])
def test_19_control_tokens_in_observations_stay_text(token: str) -> None:
    """Fails if text that looks like a control token is changed, or nobody is told."""
    rollout = converted(said("", tool_calls=[call()]), result(f"before {token} after"), said("<think>hm</think>ok"))
    assert rollout.messages[2].content == f"before {token} after"
    assert noted(rollout, f"{token!r}, a control token of some models: kept as text (message 2)")
    assert not noted(rollout, "message 3")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git-LFS pointer"),
        (b"2026-01-01 INFO step 1\n2026-01-01 INFO step 2\n", "neither JSON, JSON lines nor parquet"),
        (b"\xff\xfe{\x00}\x00", "is UTF-16"),
        (b"PAR1 and then nothing", "parquet data is cut off or damaged"),
        (b'{"messages": [', "the file may be cut off"),
        (b"[]\n", "empty list"),
        (b"{}\n", "keys seen: none"),
        (b'"text"\n', "expected an object or a list of messages, found str"),
        (b'{"messages": []}\n', "without a single message"),
        (b'{"messages": null, "id": 1}\n', "messages holds no list (keys seen: id, messages)"),
        (b'{"messages": [{"role": "user", "content": "Hi"}]}\n', "nothing to decode"),
        (b"[" * 5000 + b"\n", "nested too deeply"),
        (b'{"a": ' * 5000 + b"\n" + b'{"a": ' * 5000, "nested too deeply"),
    ],
)
def test_20_files_without_a_rollout(content: bytes, reason: str, tmp_path: Path) -> None:
    """Fails if a file that holds no rollout is passed over, or the reason is not said."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    rollouts, bad = imported(path)
    assert rollouts == [] and bad
    assert reason in str(bad[0]) and str(bad[0]).startswith(f"{path}:1: ")


def test_20_a_cut_off_last_line_costs_itself_only(tmp_path: Path) -> None:
    """Fails if the good lines before a truncated one are lost."""
    last = json.dumps(chat(said())).encode()[:-9]
    rollouts, bad = imported(write(tmp_path / "t.jsonl", chat(said(), id="a"), chat(said(), id="b"), last))
    assert [r.id for r in rollouts] == ["t/a", "t/b"]
    assert [line.line for line in bad] == [3] and "looks cut off" in str(bad[0])


def test_20_a_cut_off_gzip_file_gives_what_is_whole(tmp_path: Path) -> None:
    """Fails if the good lines of a damaged archive are lost, or the damage is not said."""
    lines = write(tmp_path / "plain", *(chat(said("x" * 3000 + str(i)), id=str(i)) for i in range(200))).read_bytes()
    packed = gzip.compress(lines)
    (tmp_path / "t.jsonl").write_bytes(packed[: len(packed) // 2])
    rollouts, bad = imported(tmp_path / "t.jsonl")
    assert 0 < len(rollouts) < 200
    assert [line.line for line in bad] == [len(rollouts) + 1] and "cut off or damaged" in str(bad[0])


def test_20_gz_by_name_only_and_gzip_by_content_only(tmp_path: Path) -> None:
    """Fails if the name of a file decides how it is read."""
    row = json.dumps(chat(said())).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(row)
    (tmp_path / "b.txt").write_bytes(gzip.compress(row))
    assert [r.id for r in imported(tmp_path)[0]] == ["a/row", "b/row"]


def test_20_nan_outside_of_calls(tmp_path: Path) -> None:
    """Fails if NaN in a label makes a file that no JSON reader takes."""
    rollout = one(write(tmp_path / "t.jsonl", chat(said(), reward=float("nan"))))
    assert rollout.labels == {"reward": "nan"} and noted(rollout, "NaN or infinite")


def test_20_nan_in_a_rollout_of_our_own_form(tmp_path: Path) -> None:
    """Fails if one rollout that no JSON writer takes would end the import of all."""
    own = {"id": "o", "workload": "w", "messages": chat(said())["messages"], "labels": {"reward": float("inf")}}
    rollout = one(write(tmp_path / "t.jsonl", own))
    assert rollout.labels == {"reward": "inf"} and noted(rollout, "NaN or infinite")


def test_14_file_names_that_are_no_text(tmp_path: Path) -> None:
    """Fails if a rollout named after such a file cannot be stored."""
    path = tmp_path / "caf\udce9.json"
    try:
        path.write_bytes(json.dumps(chat(said())["messages"]).encode())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert one(path).id == "caf?" and one(path).source["file"] == "caf?.json"


@pytest.mark.parametrize("place", ["arguments", "argument text", "tools", "labels"])
@pytest.mark.parametrize("depth", [50, 400, 700])
def test_20_deep_nesting(place: str, depth: int, tmp_path: Path) -> None:
    """Fails if a value that is nested too deeply crashes the reader or the writer, or costs a neighbour."""
    deep: Any = "x"
    for _ in range(depth):
        deep = {"a": deep}
    text = json.dumps(deep)
    row = chat(said("", tool_calls=[call(arguments=text if place == "argument text" else deep)]), result(), said())
    if place == "tools":
        row = chat(said(), tools=[{"type": "function", "function": {"name": "ls", "parameters": deep}}])
    elif place == "labels":
        row = {"id": "o", "workload": "w", "messages": chat(said())["messages"], "labels": deep}
    rollouts, bad = imported(write(tmp_path / "t.jsonl", row, chat(said(), id="fine")))
    assert rollouts[-1].id == "t/fine" and len(rollouts) + len(bad) == 2
    assert depth > 50 or not bad
    assert write_rollouts(tmp_path / "out.jsonl", rollouts) == len(rollouts)


def test_extra_call_written_as_text_stays_text() -> None:
    """Fails if calls in an assistant's prose are turned into calls: they do not pair with results exactly."""
    rollout = converted(
        said('Look.\n[Tool: bash({"command": "ls"})]'), {"role": "user", "content": "[tool result]\na"}, said()
    )
    assert roles(rollout) == "uaua" and calls(rollout) == []


def test_extra_last_reply_beside_the_messages() -> None:
    """Fails if the reply to the last user turn is lost, or said twice where the messages hold it already."""
    again = {"role": "user", "content": "And?"}
    rollout = converted(said(), again, reference_response="So.")
    assert roles(rollout) == "uaua" and rollout.messages[3].content == "So."
    assert noted(rollout, "stood beside the messages: appended (message 3)")
    assert roles(converted(said(), reference_response="Yes.")) == "ua"


def test_extra_repairs_are_said_once_with_their_places() -> None:
    """Fails if a hundred repairs of one kind make a hundred notes, or the count is lost."""
    rollout = converted(*(said(None) for _ in range(9)))
    note = "content is null: read as empty text (messages 1, 2, 3, 4, 5 and 4 more)"
    assert rollout.notes == (note,)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (
            said("", tool_calls=[{"id": "c", "function": {"arguments": "{}"}}]),
            "messages[1].tool_calls[0].function.name",
        ),
        (said("", tool_calls=["ls"]), "messages[1].tool_calls[0]"),
        (said("", tool_calls=5), "messages[1].tool_calls"),
        ({"role": "system", "content": "x", "tool_calls": [call()]}, "messages[1].tool_calls"),
        (said(7), "messages[1].content"),
        (said([{"type": "text", "text": 7}]), "messages[1].content[0].text"),
        (said([7]), "messages[1].content[0]"),
        ("Hi", "messages[1]"),
        (None, "messages[1]"),
    ],
)
def test_faults_name_their_field(message: Any, field: str) -> None:
    """Fails if a row is refused without saying which member is wrong."""
    with pytest.raises(RowFault) as caught:
        converted(message, said())
    assert caught.value.field == field
