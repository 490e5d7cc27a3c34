"""Tool calls in outputs: every family read back, faults in words, nothing evaluated, and verdicts against a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentbench_spec.engine import embedded
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import ToolCall
from agentbench_spec.rollouts.toolcalls.families import Family, families, family, family_of, register
from agentbench_spec.rollouts.toolcalls.schema_faults import call_faults
from agentbench_spec.rollouts.toolcalls.spoken import MOST_CHARACTERS
from agentbench_spec.rollouts.toolcalls.verdicts import Verdict, judge

DATA = Path(__file__).parents[1] / "data"
PROPERTIES = {
    "path": {"type": "string"},
    "lines": {"type": "integer"},
    "deep": {"type": "object", "properties": {"on": {"type": "boolean"}}},
    "tags": {"type": "array", "items": {"type": "string"}},
    "mode": {"enum": ["r", "w"]},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["path"]},
        },
    },
    {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}},
]
FULL = {"path": 'a "b"\n</c>.txt', "lines": 3, "deep": {"on": True}, "tags": ["x", "7"]}
TEXT = json.dumps(FULL, ensure_ascii=False)
OBJECT = f'{{"name": "read", "arguments": {TEXT}}}'
MARKED = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in FULL.items()]
LS = '{"name": "ls", "arguments": {}}'
BOTH = {
    "hermes": f"I look.\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{LS}\n</tool_call>",
    "granite": f"I look.\n<|tool_call|>[{OBJECT}, {LS}]",
    "json": f"```json\n[{OBJECT},\n{LS}]\n```",
    "llama3": f'<|python_tag|>{OBJECT.replace("arguments", "parameters")}; {{"name": "ls", "parameters": {{}}}}',
    "mistral": f"I look.\n[TOOL_CALLS][{OBJECT}, {LS}]",
    "deepseek": (
        f"I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n```json\n{TEXT}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>ls<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi": (
        f"I look.\n<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{TEXT}"
        "<|tool_call_end|><|tool_call_begin|>functions.ls:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "harmony": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.read "
        f"<|constrain|>json<|message|>{TEXT}<|call|><|start|>assistant<|channel|>commentary to=functions.ls<|message|>"
    ),
    "glm": "I look.\n<tool_call>read\n"
    + "\n".join(f"<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>" for name, value in MARKED)
    + "\n</tool_call>\n<tool_call>ls\n</tool_call>",
    "qwen3_coder": "I look.\n<tool_call>\n<function=read>\n"
    + "\n".join(f"<parameter={name}>\n{value}\n</parameter>" for name, value in MARKED)
    + "\n</function>\n</tool_call>\n<tool_call>\n<function=ls>\n</function>\n</tool_call>",
    "pythonic": "[read(" + ", ".join(f"{name}={value!r}" for name, value in FULL.items()) + "), ls()]",
}
"""The same two calls as every family writes them."""


def test_every_family_has_a_case() -> None:
    """Fails if a family is added that no test reads."""
    assert {own.name for own in families()} == set(BOTH)


@pytest.mark.parametrize("name", BOTH)
def test_calls_are_read_back(name: str) -> None:
    """Fails if a family loses a call, an argument, a type, or a closing tag inside a string."""
    spoken = family(name).spoken(BOTH[name], TOOLS)
    assert spoken.faults == ()
    assert [(call.name, call.arguments) for call in spoken.calls] == [("read", FULL), ("ls", {})]
    assert spoken.content.removesuffix("\n") in ("", "I look.", "<|start|>assistant")


@pytest.mark.parametrize("name", BOTH)
def test_plain_text_is_no_call(name: str) -> None:
    """Fails if an answer without a call is taken for one that cannot be read."""
    spoken = family(name).spoken("The file has 3 lines: [1, 2, 3].", TOOLS)
    assert (spoken.content, spoken.called) == ("The file has 3 lines: [1, 2, 3].", False)


@pytest.mark.parametrize("name", BOTH)
def test_a_call_cut_short_goes_back_in_words(name: str) -> None:
    """Fails if half a call is executed, passes for an answer, or is told as a Python error."""
    text = BOTH[name]
    at = text.rindex("tags")
    spoken = family(name).spoken(text[: at + 6], TOOLS)
    assert spoken.calls == () and len(spoken.faults) == 1
    assert len(spoken.faults[0]) > 10 and "Error" not in spoken.faults[0] and "Traceback" not in spoken.faults[0]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("hermes", "<tool_call>{'name': 'ls'}</tool_call>", "not JSON"),
        ("hermes", "<tool_call></tool_call>", "empty"),
        ("hermes", '<tool_call>{"tool": "ls"}</tool_call>', 'with "name" and "arguments"'),
        ("hermes", '<tool_call>{"name": "ls", "arguments": [1]}</tool_call>', "must be a JSON object, found list"),
        ("hermes", '<tool_call>{"name": "ls", "arguments": {"a": NaN}}</tool_call>', "NaN is no number"),
        ("hermes", '<tool_call>{"name": "ls", "arguments": "{\\"a\\": 1} x"}</tool_call>', "go on after their end"),
        ("hermes", '<tool_call>{"name": "ls", "arguments": {"a": "\\ud800"}}</tool_call>', "no text"),
        ("hermes", f"<tool_call>{'[' * 100_000}", "nested too deeply"),
        ("hermes", f'<tool_call>{{"name": "{"x" * MOST_CHARACTERS}"}}</tool_call>', "a call may have 1,000,000"),
        ("hermes", '<tool_call>{"name": "ls", "arguments": {"n": ' + "9" * 5000 + "}}</tool_call>", "not JSON"),
        ("mistral", "[TOOL_CALLS]", "must follow [TOOL_CALLS]"),
        ("llama3", "<|python_tag|>import os", "not JSON"),
        ("deepseek", "<｜tool▁call▁begin｜>ls", "must stand between"),
        ("glm", "<tool_call>rm -rf /\n</tool_call>", "no name of a function"),
        ("pythonic", '[read(path=open("/etc/passwd").read())]', "no literal"),
        ("pythonic", "[read(path=(lambda: 1)())]", "no literal"),
        ("pythonic", "[read(**{'path': 'x'})]", "once each, by name"),
        ("pythonic", "[read('a', path='b')]", "once each, by name"),
        ("pythonic", "[(lambda: 1)(), read(path='x')]", "no name of a function"),
        ("pythonic", "<|python_start|>[ls(" + "(" * 5000, "not a list of calls"),
    ],
)
def test_what_cannot_be_read_is_said(name: str, text: str, says: str) -> None:
    """Fails if a malformed or hostile call raises, runs, or is passed over in silence."""
    assert any(says in fault for fault in family(name).spoken(text, TOOLS).faults)


def test_no_call_in_a_thought_counts() -> None:
    """A model thinks about calls it does not make; fails if one of these is executed."""
    text = f"<think>maybe <tool_call>{LS}</tool_call></think>\nNo need."
    spoken = family("hermes").spoken(text, TOOLS)
    assert (spoken.calls, spoken.content, spoken.reasoning) == ((), "No need.", f"maybe <tool_call>{LS}</tool_call>")
    unclosed = family("hermes").spoken(f"<think>maybe <tool_call>{LS}</tool_call>", TOOLS)
    assert not unclosed.called and unclosed.content == ""
    inside = '<tool_call>{"name": "read", "arguments": {"path": "</think>"}}</tool_call>'
    assert family("hermes").spoken(inside, TOOLS).calls[0].arguments == {"path": "</think>"}


def test_a_message_of_what_was_said() -> None:
    """Fails if the words beside a call, or the call, are lost on the way into the history."""
    message = family("hermes").spoken(BOTH["hermes"], TOOLS).message()
    assert message.role == "assistant" and message.content == "I look." and len(message.tool_calls) == 2


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ((DATA / "qwen3_like.jinja").read_text("utf-8"), "hermes"),
        ((DATA / "llama3_like.jinja").read_text("utf-8"), "llama3"),
        (embedded.chat_template(), "hermes"),
        ("{% if tools %}<tool_call>\n<function=f>\n<parameter=p>", "qwen3_coder"),
        ("<tool_call>{{ name }}\n<arg_key>", "glm"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<｜tool▁calls▁begin｜>", "deepseek"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("<|start_header_id|> {{ messages }}", "json"),
        ("{{ messages }}", "json"),
    ],
)
def test_the_family_of_a_template(template: str, name: str) -> None:
    """Fails if the calls of a known template are read by another family's rules."""
    assert family_of(template).name == name


def test_a_name_is_taken_once() -> None:
    """Fails if a second registration replaces the first unseen, or a misspelt name is not told."""
    with pytest.raises(ConfigError, match="already"):
        register(Family("hermes", (), lambda text, tools: iter(())))
    with pytest.raises(ConfigError, match="hermes"):
        family("hermez")


def in_a_fresh_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_family_of_ones_own() -> None:
    """Fails if what is registered first does not come before the families that its template looks like."""
    code = """
from agentbench_spec.rollouts.toolcalls.families import Family, family_of, register
from agentbench_spec.rollouts.toolcalls.spoken import call
register(Family("mine", (("<tool_call>", "@@"),), lambda text, tools: iter([call(text, {})])), first=True)
print(family_of("@@ <tool_call>").name, family_of("<tool_call>").name, family_of("@@ <tool_call>").spoken("f").calls)
"""
    assert in_a_fresh_process(code).startswith("mine hermes (ToolCall(name='f'")


def verdict(text: str, reference: list[ToolCall] | None = None, tools: Any = TOOLS) -> Verdict:
    return judge(family("hermes").spoken(text, tools), tools, reference)


def calling(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'read', 'arguments': arguments})}</tool_call>"


READ = [ToolCall(name="read", arguments={"path": "a", "lines": 1}, id="c7")]


@pytest.mark.parametrize(
    ("text", "reference", "found"),
    [
        (calling(path="a", lines=1), READ, Verdict(True, True, True, True)),
        (calling(lines=1.0, path="a"), READ, Verdict(True, True, True, True)),
        (calling(path="b"), READ, Verdict(True, True, True, False)),
        (calling(path="a", lines=True), READ, Verdict(True, True, False, False)),
        (calling(path="a"), None, Verdict(True, True, True, None)),
        (calling(lines=1), None, Verdict(True, True, False, None)),
        (calling(path="a", size=1), None, Verdict(True, True, False, None)),
        (calling(path="a", mode="x"), None, Verdict(True, True, False, None)),
        (calling(path="a", tags=["x", 7]), None, Verdict(True, True, False, None)),
        ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', READ, Verdict(True, False, None, False)),
        ("<tool_call>{</tool_call>", READ, Verdict(False, None, None, False)),
        ("Done.", READ, Verdict(None, None, None, False)),
        ("Done.", [], Verdict()),
        ("Done.", None, Verdict()),
    ],
)
def test_verdicts(text: str, reference: list[ToolCall] | None, found: Verdict) -> None:
    """Fails if a column says yes or no where there is nothing to judge, or the wrong one of the two."""
    assert verdict(text, reference) == found


def test_nothing_is_judged_without_tools() -> None:
    """A text about tool calls, in a session that has none, is a text."""
    assert verdict(calling(path="a"), [], tools=[]) == Verdict()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "arguments lack 'path'"),
        ({"path": 7}, "arguments.path must be of type string, found 7"),
        ({"path": "a", "deep": {"on": 1}}, "arguments.deep.on must be of type boolean, found 1"),
        ({"path": "a", "tags": [1]}, "arguments.tags[0] must be of type string, found 1"),
        ({"path": "a", "mode": "x"}, "arguments.mode must be one of 'r', 'w', found 'x'"),
        ({"path": "a", "pth": "b"}, "arguments have no 'pth'; known: path, lines, deep, tags, mode"),
    ],
)
def test_what_does_not_fit_is_said(arguments: dict[str, Any], says: str) -> None:
    """Fails if a fault goes to the model without the place and the way out."""
    assert call_faults(ToolCall(name="read", arguments=arguments), TOOLS) == [f"read: {says}"]


def test_reading_imports_no_torch() -> None:
    """Environments and servers parse calls in processes of their own; fails if that loads a model library."""
    code = "import sys, agentbench_spec.rollouts.toolcalls.verdicts; print('torch' in sys.modules)"
    assert in_a_fresh_process(code) == "False"
