"""Imported traces through three chat templates: every turn renders, and the traps of tool templates stay shut."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tiny import NAMES, tokenizer
from traces import DATA, call, chat, imported, noted, one, result, said

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.growth import turn_sizes
from agentbench_spec.rollouts.importing import RowFault, convert_row
from agentbench_spec.rollouts.render import Renderer, common_prefix

NAMED = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("ls", "cat")
)


@cache
def everything() -> tuple[Rollout, ...]:
    return tuple(imported(DATA)[0])


def prompt(rollout: Rollout, index: int, name: str = "qwen3", **options: Any) -> str:
    tiny = tokenizer(name)
    return str(tiny.decode(Renderer(tiny, **options).prompt(rollout, index), skip_special_tokens=False))


@pytest.mark.parametrize("name", NAMES)
def test_every_turn_of_every_fixture_renders(name: str) -> None:
    """Fails if a template refuses, or leaves out, a message of any imported trace, or a turn has no reply."""
    tiny = tokenizer(name)
    renderer = Renderer(tiny)
    for rollout in everything():
        if name == "llama3" and any(len(m.tool_calls) > 1 for m in rollout.messages):
            with pytest.raises(ConfigError, match="one call per turn"):
                renderer.prompt(rollout, len(rollout.messages))
            continue
        for index in rollout.decode_points():
            text = tiny.decode(renderer.prompt(rollout, index), skip_special_tokens=False)
            missing = [m.content for m in rollout.context_at(index) if m.content not in text]
            assert missing == [], f"{rollout.id}, message {index}"
            assert all(json.dumps(tool["function"]["name"]) in text for tool in rollout.tools_at(index))
            assert tiny.decode(renderer.reply(rollout, index)[:-1]).find(rollout.messages[index].content) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_prompts_show_the_stub_and_not_what_it_stands_for(name: str) -> None:
    """Fails if a renderer reads messages[:index] where the model saw an elided history."""
    rollout = one(DATA / "sweagent_v1_elided.traj")
    text = prompt(rollout, 6, name)
    assert "Old environment output: (1 lines omitted)" in text and "a.py\r\n" not in text
    assert "a.py\r\n" in prompt(rollout, 4, name)


def test_an_elided_history_costs_the_kept_prefix() -> None:
    """Fails if elision goes unseen by the prefix logic: the cache is good up to the first stub only."""
    rollout, renderer = one(DATA / "sweagent_v1_elided.traj"), Renderer(tokenizer("smollm2"))
    prompts = [renderer.prompt(rollout, i) for i in rollout.decode_points()]
    kept = [common_prefix(a, b) == len(a) for a, b in pairwise(prompts)]
    assert kept == [True, False, False]
    plain = one(DATA / "sweagent_v1.traj")
    prompts = [renderer.prompt(plain, i) for i in plain.decode_points()]
    assert [common_prefix(a, b) == len(a) for a, b in pairwise(prompts)] == [True] * 3


@pytest.mark.parametrize("role", ["function", "observation", "developer", "agent"])
def test_trap_unknown_roles_render_as_nothing(role: str) -> None:
    """Fails if a role the template drops in silence gets there: it is mapped, and its text is in the prompt."""
    rollout = convert_row(chat(said(), {"role": role, "content": "OBSERVED"}, said()))
    assert "OBSERVED" in prompt(rollout, 3)
    with pytest.raises(RowFault):
        convert_row(chat(said(), {"role": "critic", "content": "OBSERVED"}, said()))


def test_trap_list_content_renders_empty() -> None:
    """Fails if a content that is a list of parts reaches the template as a list."""
    rollout = convert_row(chat(said(), {"role": "user", "content": [{"type": "text", "text": "PART"}]}, said()))
    assert "<|im_start|>user\nPART<|im_end|>" in prompt(rollout, 3)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"p":1}', '{"p": 1}'), ('{"p": 1}', '{"p": 1}'), ({"p": 1}, '{"p": 1}'), ("", "{}"), (None, "{}")],
)
def test_trap_string_arguments_are_pasted_unchanged(arguments: Any, shown: str) -> None:
    """Fails if spacing of recorded argument text changes the prompt, or an empty text makes broken JSON in it."""
    rollout = convert_row(chat(said("", tool_calls=[call(arguments=arguments)]), result(), said()))
    for name in NAMES:
        assert f'"name": "ls", "{"parameters" if name == "llama3" else "arguments"}": {shown}' in prompt(
            rollout, 3, name
        )


def test_trap_json_in_prompts_is_not_escaped() -> None:
    """Fails if < > & ' or non-ASCII characters of arguments are escaped, or keys are sorted, as plain jinja does."""
    rollout = convert_row(chat(said("", tool_calls=[call(arguments={"b": "<&>'é", "a": 1})]), result(), said()))
    for name in NAMES:
        assert """{"b": "<&>'é", "a": 1}""" in prompt(rollout, 3, name)


def test_trap_results_carry_no_id() -> None:
    """Fails if parallel results come out in the order they were recorded and not in that of their calls."""
    turn = said("", tool_calls=[call("ls", call_id="a"), call("cat", call_id="b")])
    rollout = convert_row(chat(turn, result("SECOND", "b"), result("FIRST", "a"), said(), tools=list(NAMED)))
    text = prompt(rollout, 4)
    assert 0 < text.index("FIRST") < text.index("SECOND") and text.count("<|im_start|>user") == 2


def test_trap_control_tokens_inside_observations() -> None:
    """Fails if nobody is told: encoded with the prompt, as servers do, the text becomes a control token."""
    rollout = convert_row(chat(said("", tool_calls=[call()]), result("x<|im_end|>y"), said()))
    tiny = tokenizer("qwen3")
    ids = Renderer(tiny).prompt(rollout, 3)
    clean = Renderer(tiny).prompt(convert_row(chat(said("", tool_calls=[call()]), result("x--y"), said())), 3)
    assert ids.count(tiny.eos_token_id) == clean.count(tiny.eos_token_id) + 1
    assert noted(rollout, "'<|im_end|>', a control token of some models: kept as text (message 2)")


def test_trap_thinking_flag_is_never_append_only() -> None:
    """Fails if thinking=False is taken for append-only, or the default mode is not, on a tool loop."""
    rollout = one(DATA / "openhands_flat.jsonl")
    points = rollout.decode_points()[:2]
    for thinking, append_only in ((None, True), (False, False)):
        renderer = Renderer(tokenizer("qwen3"), thinking=thinking)
        first, second = (renderer.prompt(rollout, i) for i in points)
        assert (common_prefix(first, second) == len(first)) is append_only


def test_trap_text_observations_count_as_user_turns() -> None:
    """Fails if reasoning before a text-mode observation stays in the prompt, or that before a tool result goes."""
    thought = said("", reasoning_content="HM", tool_calls=[call()])
    loop = convert_row(chat(thought, result(), said()))
    text_mode = convert_row(chat(said("Look.", reasoning_content="HM"), {"role": "user", "content": "obs"}, said()))
    assert "HM" in prompt(loop, 3) and "HM" not in prompt(text_mode, 3)


def test_trap_tools_in_another_form_change_every_token() -> None:
    """Fails if tools given as text, or flat, render otherwise than the same tools given as objects."""
    flat = [tool["function"] for tool in NAMED]
    forms = [list(NAMED), json.dumps(NAMED), [json.dumps(tool) for tool in NAMED], flat]
    shown = {prompt(convert_row(chat(said(), tools=form)), 1) for form in forms}
    assert len(shown) == 1
    assert prompt(convert_row(chat(said(), tools=list(reversed(NAMED)))), 1) not in shown


def test_trap_the_end_of_a_think_block_inside_a_text() -> None:
    """Fails if a template that drops what stands before "</think>" in old replies goes unseen: the prefix is good up to
    that place only, and no part of the record is lost."""
    split = tokenizer("qwen3")
    for plain, as_qwen3_does in _SPLITS:
        assert split.chat_template.count(plain) == 1
        split.chat_template = split.chat_template.replace(plain, as_qwen3_does)
    rollout = convert_row(chat(said("<think>HM</think>\n\nDone."), {"role": "user", "content": "More"}, said("End")))
    assert rollout.messages[1].content == "<think>HM</think>\n\nDone."
    renderer = Renderer(split)
    assert "HM" in split.decode(renderer.reply(rollout, 1)), "the record is emitted whole"
    text = split.decode(renderer.prompt(rollout, 3))
    assert "Done." in text and "HM" not in text
    _, second = turn_sizes(rollout, renderer)
    assert second["lost_tokens"] > len("HM") and second["rewritten"] is None


_SPLITS = (
    ("message.reasoning_content or ''", "message.reasoning_content or message.content.split('</think>')[0][7:]"),
    ("{{- message.content -}}", "{{- message.content.split('</think>')[-1].lstrip('\\n') -}}"),
)
