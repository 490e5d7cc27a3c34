"""Chat rendering: prompts, replies, stop tokens, common prefixes. Templates are self-written, in tests/data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentbench_spec.engine import embedded
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout, ToolCall
from agentbench_spec.rollouts.render import Renderer, common_prefix, messages_for_template, shared_header, stop_ids

DATA = Path(__file__).parent.parent / "data"
SPECIALS = ["<|im_start|>", "<|im_end|>", "<bos>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
THINK = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("ls", "cat")
)


def make_tokenizer(template: str | None, eos: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with one merge (two newlines), as real ones have."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "ĊĊ"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token="<bos>")
    fast.chat_template = template
    return fast


def qwen_like() -> PreTrainedTokenizerFast:
    return make_tokenizer((DATA / "qwen3_like.jinja").read_text("utf-8"))


def llama_like() -> PreTrainedTokenizerFast:
    return make_tokenizer((DATA / "llama3_like.jinja").read_text("utf-8"), eos="<|eot_id|>")


def smol_like() -> PreTrainedTokenizerFast:
    """The template shipped for the embedded model, on the tiny tokenizer."""
    return make_tokenizer(embedded.chat_template())


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments, id="c1"),))


def session(*messages: Message, tools: tuple[dict[str, Any], ...] = TOOLS) -> Rollout:
    return Rollout(id="r", workload="w", tools=tools, messages=messages)


def agent_session() -> Rollout:
    """Two user turns, two tool loops, parallel results: six decode points short of BFCL's shape."""
    return session(
        Message(role="user", content="List the files."),
        call("ls", path="."),
        Message(role="tool", content='["a.py", "b<&>ü.py"]'),
        Message(role="tool", content="second result"),
        call("cat", file="a.py", lines=[1, 2]),
        Message(role="tool", content="print(1)"),
        Message(role="assistant", content="It prints 1."),
        Message(role="user", content="Thanks. Again?"),
        Message(role="assistant", content="Yes."),
    )


def text_of(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


# prompts


@pytest.mark.parametrize("make", [qwen_like, llama_like, smol_like])
def test_prompt_is_one_render_encoded_once(make: Any) -> None:
    """Fails if special tokens are added twice, arguments or non-ASCII are escaped, or the tools are left out."""
    tokenizer, rollout = make(), agent_session()
    prompt = Renderer(tokenizer).prompt(rollout, 5)
    text = text_of(tokenizer, prompt)
    assert prompt == tokenizer.encode(text, add_special_tokens=False)
    assert "b<&>ü.py" in text and text.count('{"type": "function", "function": {"name": "ls"') == 1
    assert json.dumps({"path": "."}) in text


@pytest.mark.parametrize("thinking", [True, False])
def test_turn_two_has_header_tools_once_and_think_flag(thinking: bool) -> None:
    """Field case 17: fails if the generation prompt, one copy of the tools or the think flag is missing."""
    tokenizer, rollout = qwen_like(), agent_session()
    renderer = Renderer(tokenizer, thinking=thinking)
    text = text_of(tokenizer, renderer.prompt(rollout, 4))
    end = "<|im_start|>assistant\n" + ("" if thinking else "<think>\n\n</think>\n\n")
    assert text.endswith(end)
    assert text.count("<tools>") == 1 and text.count('"name": "cat", "parameters"') == 1
    assert renderer.thinking is thinking
    assert renderer.prompt(rollout, 4) != Renderer(tokenizer, thinking=not thinking).prompt(rollout, 4)


def test_think_flag_that_is_not_given_is_the_templates_own_default() -> None:
    """Field case 17: fails if a row cannot say whether the model was told to think, or asking changes the prompt."""
    tokenizer, rollout = qwen_like(), agent_session()
    renderer = Renderer(tokenizer)
    assert renderer.thinking is True
    assert renderer.prompt(rollout, 4) == Renderer(tokenizer, thinking=True).prompt(rollout, 4)
    off_by_default = str(tokenizer.chat_template).replace(
        "enable_thinking is defined and enable_thinking is false", "not enable_thinking"
    )
    assert Renderer(make_tokenizer(off_by_default)).thinking is False
    assert Renderer(make_tokenizer("{{ messages[0].content }}{# enable_thinking #}{{ tools }}")).thinking is None


def test_think_flag_of_a_template_without_one_is_none_and_said() -> None:
    """Fails if rows would claim a thinking mode the template does not have."""
    renderer = Renderer(llama_like(), thinking=False)
    assert renderer.thinking is None
    assert any("enable_thinking" in note for note in renderer.notes)
    assert Renderer(llama_like()).notes == ()


def test_tools_in_force_follow_the_messages() -> None:
    """Fails if a mid-rollout change of the tool list is missed or applied too early."""
    changed = Message(role="user", content="go on", tools=TOOLS[:1])
    rollout = session(Message(role="user", content="hi"), call("cat"), changed, call("ls"))
    tokenizer = qwen_like()
    renderer = Renderer(tokenizer)
    before, after = (text_of(tokenizer, renderer.prompt(rollout, i)) for i in (1, 3))
    assert '"name": "cat", "parameters"' in before
    assert '"name": "cat", "parameters"' not in after


def test_the_date_in_a_system_block_does_not_move() -> None:
    """Fails if prompts depend on the day of the run."""
    tokenizer = llama_like()
    text = text_of(tokenizer, Renderer(tokenizer).prompt(agent_session(), 1))
    assert "Today: 26 Jul 2024" in text


def test_template_that_shows_no_tools_is_said() -> None:
    """Fails if a run without visible tools would pass for a tool-calling run."""
    tokenizer = make_tokenizer("{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}")
    renderer = Renderer(tokenizer)
    renderer.prompt(session(Message(role="user", content="x"), call("ls")), 1)
    assert any("no tools" in note for note in renderer.notes)


def test_template_error_names_the_message() -> None:
    """Fails if a template's refusal (here: two calls in one turn) reaches the user as a jinja trace."""
    two = Message(role="assistant", tool_calls=(ToolCall(name="ls", arguments={}), ToolCall(name="cat", arguments={})))
    rollout = session(Message(role="user", content="x"), two, Message(role="tool"), call("ls"))
    with pytest.raises(ConfigError, match=r"rollout 'r', message 3: .*one call per turn"):
        Renderer(llama_like()).prompt(rollout, 3)


def test_no_chat_template_is_a_config_error() -> None:
    """Fails if a base model is rendered with nothing."""
    with pytest.raises(ConfigError, match="no chat template"):
        Renderer(make_tokenizer(None))


@pytest.mark.parametrize("index", [0, 10])
def test_index_outside_the_rollout_is_a_config_error(index: int) -> None:
    """Fails if an index wraps around or gives an empty context."""
    with pytest.raises(ConfigError, match="outside"):
        Renderer(qwen_like()).prompt(agent_session(), index)


# replies


def test_reply_without_thinking_starts_after_the_empty_think_block() -> None:
    """Fails if the think block of the generation prompt is emitted a second time."""
    tokenizer = qwen_like()
    reply = Renderer(tokenizer, thinking=False).reply(agent_session(), 1)
    assert (
        text_of(tokenizer, reply) == '<tool_call>\n{"name": "ls", "arguments": {"path": "."}}\n</tool_call><|im_end|>'
    )


@pytest.mark.parametrize("thinking", [None, True])
def test_reply_in_thinking_mode_closes_its_think_block(thinking: bool | None) -> None:
    """Fails if the block that the template shows for a last turn, and that opens the reply, is dropped."""
    tokenizer = qwen_like()
    renderer = Renderer(tokenizer, thinking=thinking)
    assert text_of(tokenizer, renderer.reply(agent_session(), 8)) == "<think>\n\n</think>\n\nYes.<|im_end|>"


def test_recorded_reasoning_is_in_the_reply_only_when_thinking() -> None:
    """Fails if reasoning follows a think block that the prompt has closed already, or is lost in thinking mode."""
    thought = Message(role="assistant", content="Four.", reasoning="2+2")
    inline = Message(role="assistant", content="<think>\n3+3\n</think>\n\nSix.")
    rollout = session(Message(role="user", content="2+2?"), thought, Message(role="user", content="3+3?"), inline)
    tokenizer = qwen_like()
    on, off = Renderer(tokenizer, thinking=True), Renderer(tokenizer, thinking=False)
    assert text_of(tokenizer, on.reply(rollout, 1)) == "<think>\n2+2\n</think>\n\nFour.<|im_end|>"
    assert [text_of(tokenizer, off.reply(rollout, i)) for i in (1, 3)] == ["Four.<|im_end|>", "Six.<|im_end|>"]
    assert any("reasoning" in note for note in off.notes)


def test_reply_with_header_style_template() -> None:
    """Fails if the two newlines of the header stay in the reply, or the reply does not stop at eot."""
    tokenizer = llama_like()
    reply = Renderer(tokenizer).reply(agent_session(), 6)
    assert text_of(tokenizer, reply) == "It prints 1.<|eot_id|>"


@pytest.mark.parametrize("make", [llama_like, smol_like])
def test_prompt_plus_reply_is_a_prefix_of_the_next_prompt(make: Any) -> None:
    """Fails if an append-only template drifts at any decode point: reply and next prompt disagree."""
    rollout, renderer = agent_session(), Renderer(make())
    points = rollout.decode_points()
    texts = [renderer.prompt(rollout, i) + renderer.reply(rollout, i) for i in points]
    for text, index in zip(texts, points[1:], strict=False):
        assert common_prefix(text, renderer.prompt(rollout, index)) == len(text)
    assert renderer.notes == ()


def test_rewritten_think_blocks_shorten_the_common_prefix() -> None:
    """Field case 16: fails if dropped think blocks go unnoticed, or if a full hit is claimed where there is none.

    Three turns with a think block and two newlines; the template drops the block once the next user turn is there.
    """
    user = [Message(role="user", content=text) for text in ("one", "two", "three")]
    said = [Message(role="assistant", content=f"Reply {i}.", reasoning="hm\n\nyes") for i in range(3)]
    rollout = session(*(m for pair in zip(user, said, strict=True) for m in pair))
    tokenizer = qwen_like()
    renderer = Renderer(tokenizer, thinking=True)
    for index in (1, 3):
        prompt, reply = renderer.prompt(rollout, index), renderer.reply(rollout, index)
        following = renderer.prompt(rollout, index + 2)
        kept = common_prefix(prompt + reply, following)
        assert text_of(tokenizer, reply) == f"<think>\nhm\n\nyes\n</think>\n\nReply {index // 2}.<|im_end|>"
        assert kept == len(prompt)
        assert text_of(tokenizer, following[kept:]).startswith(f"Reply {index // 2}.<|im_end|>\n<|im_start|>user")


def test_thinking_off_is_never_append_only() -> None:
    """Fails if the empty think block, which only the generation prompt has, is taken for kept text."""
    rollout, tokenizer = agent_session(), qwen_like()
    renderer = Renderer(tokenizer, thinking=False)
    prompt, following = renderer.prompt(rollout, 1), renderer.prompt(rollout, 4)
    kept = common_prefix(prompt, following)
    assert text_of(tokenizer, prompt[kept:]) == "<think>\n\n</think>\n\n"


def test_tokens_that_would_merge_across_the_boundary_stay_apart() -> None:
    """Fails if prompt and reply are cut out of one encoding: the prompt's ids are fixed before the reply is emitted."""
    rollout = session(Message(role="user", content="x"), Message(role="assistant", content="\nhi"))
    tokenizer = smol_like()
    renderer = Renderer(tokenizer)
    prompt, reply = renderer.prompt(rollout, 1), renderer.reply(rollout, 1)
    newline = tokenizer.encode("\n", add_special_tokens=False)
    assert prompt[-1:] == newline and reply[:1] == newline
    assert text_of(tokenizer, reply) == "\nhi<|im_end|>"


def test_reply_where_the_template_rewrites_earlier_turns() -> None:
    """Fails if the fallback is silent or wrong: this template shows the number of messages at the top."""
    body = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    header = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    tokenizer = make_tokenizer("{% if messages | length > 2 %}{{ messages | length }}\n{% endif %}" + body + header)
    rollout = session(*agent_session().messages[6:], tools=())
    renderer = Renderer(tokenizer)
    assert text_of(tokenizer, renderer.reply(rollout, 2)) == "Yes.<|im_end|>"
    assert any("rewrites earlier turns" in note for note in renderer.notes)


def test_reply_that_cannot_be_rendered_soundly_is_a_config_error() -> None:
    """Fails if a reply is guessed where no two renders nest."""
    tokenizer = make_tokenizer("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ConfigError, match="cannot be rendered on its own"):
        Renderer(tokenizer).reply(session(*agent_session().messages[6:], tools=()), 2)


def test_generation_prompt_that_starts_no_assistant_turn_is_a_config_error() -> None:
    """Fails if a header the template never uses ends up inside the reply."""
    tokenizer = make_tokenizer(
        "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ANSWER: ' }}{% endif %}"
    )
    with pytest.raises(ConfigError, match="generation prompt"):
        Renderer(tokenizer).reply(session(*agent_session().messages[6:], tools=()), 2)


def test_tool_call_a_template_would_drop_is_a_config_error() -> None:
    """Fails if an assistant turn with calls is rendered as an empty reply."""
    tokenizer = make_tokenizer("{% for m in messages %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}")
    with pytest.raises(ConfigError, match="does not render tool calls"):
        Renderer(tokenizer).reply(agent_session(), 1)


def test_a_stop_token_in_recorded_text_ends_the_reply_and_is_said() -> None:
    """Fails if the reference goes on behind a stop token, where no target could follow."""
    said = Message(role="assistant", content="a<|im_end|>b")
    tokenizer = smol_like()
    renderer = Renderer(tokenizer)
    reply = renderer.reply(session(Message(role="user", content="x"), said), 1)
    assert text_of(tokenizer, reply) == "a<|im_end|>"
    assert any("stop token in its text" in note for note in renderer.notes)


def test_missing_stop_token_is_added_and_said() -> None:
    """Fails if a reply has no end because the template writes none."""
    tokenizer = make_tokenizer("{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}")
    renderer = Renderer(tokenizer)
    reply = renderer.reply(session(*agent_session().messages[6:], tools=()), 2)
    assert text_of(tokenizer, reply) == "[assistant]Yes.<|im_end|>"
    assert any("one was added" in note for note in renderer.notes)


def test_reply_of_a_user_message_is_a_config_error() -> None:
    """Fails if a user message is taken for a reference."""
    with pytest.raises(ConfigError, match="role 'user'"):
        Renderer(qwen_like()).reply(agent_session(), 7)


def test_header_is_cut_at_a_line_or_token_never_inside_a_word() -> None:
    """Fails if "<think" against "<tool_call" or "as" against "at" is cut in the middle."""
    tokenizer = qwen_like()
    header = "<|im_start|>assistant\n<think>\n"
    assert shared_header(header, "<|im_start|>assistant\n<tool_call>", tokenizer) == "<|im_start|>assistant\n"
    assert shared_header(header, header + "hm", tokenizer) == header
    assert shared_header("<|im_start|>as\n", "<|im_start|>at\n", tokenizer) == "<|im_start|>"


# traps, stop tokens, prefixes


def test_messages_have_string_content_and_dict_arguments() -> None:
    """Fails for the traps that render silently wrong: null or list content, arguments as a string."""
    recorded = ToolCall(name="ls", arguments={"p": 1}, id="7", raw_arguments='{"p":1}')
    out = messages_for_template([Message(role="assistant", tool_calls=(recorded,), reasoning="r")])
    assert out == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "r",
            "tool_calls": [{"type": "function", "id": "7", "function": {"name": "ls", "arguments": {"p": 1}}}],
        }
    ]


def test_stop_ids_join_tokenizer_and_generation_config() -> None:
    """Fails if one of several eos tokens is lost, doubled, or the tokenizer's is not first."""
    tokenizer = smol_like()
    eos = tokenizer.eos_token_id
    assert stop_ids(tokenizer, SimpleNamespace(eos_token_id=[5, eos])) == (eos, 5)
    assert stop_ids(tokenizer, SimpleNamespace(eos_token_id=7)) == (eos, 7)
    assert stop_ids(tokenizer, None) == (eos,)
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="eos"):
        stop_ids(tokenizer, SimpleNamespace(eos_token_id=None))


@pytest.mark.parametrize("at", [0, 1, 2047, 2048, 2049, 4999])
def test_common_prefix_finds_the_first_difference(at: int) -> None:
    """Fails if a difference at a slice's edge is missed by one."""
    a = list(range(5000))
    b = [*a[:at], -1, *a[at + 1 :]]
    assert common_prefix(a, b) == common_prefix(b, a) == at


@pytest.mark.parametrize(("a", "b"), [(0, 0), (0, 3), (2048, 2048), (2048, 4000), (2049, 3000), (10, 11)])
def test_common_prefix_of_texts_of_different_length(a: int, b: int) -> None:
    """Fails if one text being the start of the other is not a full hit."""
    assert common_prefix(list(range(a)), list(range(b))) == min(a, b)


def test_embedded_template_keeps_the_models_own_form() -> None:
    """Fails if turns without tools are no longer what SmolLM2 was trained on."""
    own = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    for messages in (agent_session().messages[6:], (Message(role="system", content="S"), Message(role="user"))):
        chat = messages_for_template(messages)
        options = {"tokenize": False, "add_generation_prompt": True}
        assert smol_like().apply_chat_template(chat, **options) == make_tokenizer(own).apply_chat_template(
            chat, **options
        )
