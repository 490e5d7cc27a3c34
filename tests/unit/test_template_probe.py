"""Chat templates that take messages in another form, drop some, or refuse them: bent to, or refused with the reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from localmodel import save_rollouts, session
from runkit import replay, rows_of
from transformers import AutoTokenizer

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import read_manifest
from agentbench_spec.rollout import Message, Rollout, ToolCall
from agentbench_spec.rollouts.render import Renderer

HEAD = "{%- for m in messages %}"
TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SAID = "<|im_start|>{{ m.role }}\n{{ m.content }}"
CALLS = "{% for c in m.tool_calls %}<tool_call>{{ CALL }}</tool_call>{% endfor %}"
OBJECT = "c.function.name + ' ' + (c.function.arguments | tojson)"


def template(call: str = OBJECT, *, before: str = "", said: str = SAID) -> str:
    return HEAD + before + said + CALLS.replace("CALL", call) + TAIL


def refuse(when: str, why: str) -> str:
    return "{% if " + when + " %}{{ raise_exception('" + why + "') }}{% endif %}"


def only(when: str) -> str:
    return HEAD + "{% if " + when + " %}" + SAID + CALLS.replace("CALL", OBJECT) + "{% endif %}" + TAIL


TEXT = template("c.function.name + ' ' + c.function.arguments")
PYTHON = template("c.function.name ~ ' ' ~ c.function.arguments")
ONLY_NINE = "{% for c in m.tool_calls %}" + refuse("c.id | length != 9", "nine!") + "{% endfor %}"
NINE = template(before=ONLY_NINE)
NINE_TEXT = template("c.id ~ ' ' ~ c.function.arguments", before=ONLY_NINE)
FIRST = template(before=refuse("m.role == 'system' and not loop.first", "system comes first"))
ONE = template(before=refuse("m.tool_calls | length > 1", "one call a message"))
TURNS = template(before=refuse("m.role == 'user' and loop.previtem and loop.previtem.role == 'user'", "take turns"))
NO_SYSTEM = template(before=refuse("m.role == 'system'", "no system role"))
CLOCK = "{{ strftime_now('%d %b %Y') }}" + template()


@pytest.fixture
def renderer(tiny: Path) -> Any:
    """A renderer over the tiny model's tokenizer with another chat template."""

    def make(text: str) -> Renderer:
        tokenizer = AutoTokenizer.from_pretrained(tiny)
        tokenizer.chat_template = text
        return Renderer(tokenizer)

    return make


def shown(renderer: Renderer, *messages: Message) -> str:
    """What the model reads before the reply that ends the conversation."""
    whole = (*messages, Message(role="assistant", content="end"))
    rollout = Rollout(id="r", workload="w", messages=whole)
    return str(renderer._tokenizer.decode(renderer.prompt(rollout, len(messages))))


def called(*ids: str, raw: str | None = None) -> Message:
    calls = (ToolCall(name="ls", arguments={"p": "d0"}, id=name, raw_arguments=raw) for name in ids)
    return Message(role="assistant", tool_calls=tuple(calls))


ASK = Message(role="user", content="List.")


@pytest.mark.parametrize(
    ("text", "bent"),
    [
        (template(), None),
        (TEXT, "arguments as text"),
        (PYTHON, "arguments as text"),
        (NINE, "ids of nine characters"),
        (NINE_TEXT, "arguments as text; ids of nine characters"),
        (FIRST, None),
        (ONE, None),
        (TURNS, "user messages joined"),
        (NO_SYSTEM, "system in the first user message"),
        (only("m.role != 'system'"), "system in the first user message"),
        (CLOCK, None),
    ],
)
def test_the_form_a_template_takes_is_found(renderer: Any, text: str, bent: str | None) -> None:
    """Fails if a template that would refuse, or print Python, is not bent to, or one that takes all is."""
    made = renderer(text)
    assert made.form.bent == bent
    assert len(made.form.as_dict()) == 9
    assert sum("the chat template takes" in n or "the chat template wants" in n for n in made.notes) == len(
        (bent or "").split("; ") if bent else []
    )


@pytest.mark.parametrize("text", [TEXT, PYTHON])
def test_arguments_are_json_as_recorded(renderer: Any, text: str) -> None:
    """Fails if a prompt holds a Python dict, or the recorded text of the arguments is written anew."""
    raw = '{"p":  "d0"}'
    assert 'ls {"p": "d0"}' in shown(renderer(text), ASK, called("c1"))
    assert f"ls {raw}" in shown(renderer(text), ASK, called("c1", raw=raw))


def test_ids_are_mapped_one_to_one(renderer: Any) -> None:
    """Fails if two calls get one id, a result another id than its call, or an id that fits is changed."""
    made = renderer(NINE)
    messages = [
        ASK,
        called("call_1", "call_2", "abcdefgh9"),
        Message(role="tool", content="x", tool_call_id="call_2"),
    ]
    shaped = made.form.shape(messages)
    ids = [call["id"] for call in shaped[1]["tool_calls"]]
    assert len(set(ids)) == 3 and {len(each) for each in ids} == {9} and ids[2] == "abcdefgh9"
    assert shaped[2]["tool_call_id"] == ids[1]
    assert made.form.shape(messages[:2])[1] == shaped[1]


def test_joined_and_folded_messages_keep_their_words(renderer: Any) -> None:
    """Fails if a message is lost where two become one."""
    again, system = Message(role="user", content="Again."), Message(role="system", content="Be brief.")
    assert "List.\n\nAgain.<|im_end|>" in shown(renderer(TURNS), ASK, again)
    assert "Be brief.\n\nList.<|im_end|>" in shown(renderer(NO_SYSTEM), system, ASK)


@pytest.mark.parametrize(
    ("text", "messages", "why"),
    [
        (FIRST, (ASK, Message(role="system", content="late")), "system comes first"),
        (ONE, (ASK, called("a", "b")), "one call a message"),
        (
            HEAD + "{% if m.role != 'tool' %}" + SAID + "{% endif %}" + TAIL,
            (ASK, Message(role="tool", content="x")),
            "drops",
        ),
        (HEAD + SAID + TAIL, (ASK, called("a")), "drops tool calls"),
        (
            template(said="<|im_start|>{{ m.role }}\n{% if not m.tool_calls %}{{ m.content }}{% endif %}"),
            (ASK, called("a").model_copy(update={"content": "I look."})),
            "drops text beside tool calls",
        ),
        (
            template().replace("in m.tool_calls", "in (m.tool_calls or [])[:1]"),
            (ASK, called("a", "b")),
            "drops all but the first",
        ),
        (
            HEAD
            + "{% if m.role != 'system' or loop.first %}"
            + SAID
            + CALLS.replace("CALL", OBJECT)
            + "{% endif %}"
            + TAIL,
            (ASK, Message(role="system", content="late")),
            "drops system messages after the first",
        ),
    ],
)
def test_what_cannot_be_bent_is_refused_with_the_reason(
    renderer: Any, text: str, messages: tuple[Message, ...], why: str
) -> None:
    """Fails if words that a template drops are lost in silence, or the template's own reason is."""
    with pytest.raises(ConfigError, match=why):
        shown(renderer(text), *messages)


def test_facts_are_found(renderer: Any) -> None:
    """Fails if the manifest does not say what a template refuses, strips, or reads from the clock."""
    assert renderer(FIRST).form.system_first and renderer(ONE).form.one_call and renderer(CLOCK).form.prints_date
    assert renderer(template()).form.strips_reasoning
    plain = renderer(template(said=SAID + "{{ m.reasoning_content or '' }}")).form
    assert not (plain.system_first or plain.one_call or plain.prints_date or plain.strips_reasoning)


def test_a_run_says_how_messages_were_bent(tiny: Path, tmp_path: Path) -> None:
    """Fails if a run over such a template is void, or rows and manifest do not say what was done."""
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(PYTHON)
    save_rollouts(tmp_path / "r.jsonl", session("a", 2))
    done = replay(tmp_path / "model", tmp_path / "r.jsonl", tmp_path / "run", "--drafter", "ngram", "--mode", "forced")
    assert done.code == 0, done.err
    assert {row.labels.get("template") for row in rows_of(tmp_path / "run")} == {"arguments as text"}
    manifest = read_manifest(tmp_path / "run")
    assert manifest["template"]["text_arguments"]
    assert any("arguments of calls as text" in note for note in manifest["notes"])
