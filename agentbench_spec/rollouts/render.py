"""Messages to token ids: the prompt of a turn, and the recorded reply as the target would have to emit it.

Both go through the target's own chat template. A prompt is one render, encoded once. A reply is the difference of two
renders, because only the template knows how a message looks: what the message adds to the text, minus the header that
the generation prompt already gave, up to the first stop token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.template_probe import Form, Messages, probe

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

__all__ = ["Renderer", "common_prefix", "messages_for_template", "stop_ids"]

_CHUNK_TOKENS = 2048
_THINK_START, _THINK_END = "<think>", "</think>"
_FIXED_DATE = (
    "{% macro strftime_now(format) %}{{ format.replace('%d', '26').replace('%b', 'Jul').replace('%B', 'July')"
    ".replace('%m', '07').replace('%y', '24').replace('%Y', '2024') }}{% endmacro +%}"
)
"""Shadows the clock some templates print into the system block: a prompt must be the same tomorrow."""


class Renderer:
    """Renders the turns of a rollout with a tokenizer's chat template.

    thinking: the template's enable_thinking flag; None: the template's default. `self.thinking` stays None for a
    template without the flag. template_kwargs: further variables for the template. stop: token ids that end a reply;
    None: the tokenizer's eos token. Raises ConfigError if the tokenizer has no chat template or no stop token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        thinking: bool | None = None,
        template_kwargs: dict[str, Any] | None = None,
        stop: Sequence[int] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop) if stop else stop_ids(tokenizer, None)
        self._notes: dict[str, None] = {}
        template = self._template(tools=True)
        self.thinking = thinking if re.search(r"\benable_thinking\b", template) else None
        if thinking is not None and self.thinking is None:
            self._note(f"thinking={thinking} has no effect: the chat template has no enable_thinking flag")
        self._kwargs = dict(template_kwargs or {})
        if self.thinking is not None:
            self._kwargs["enable_thinking"] = self.thinking
        elif "enable_thinking" in template:
            self.thinking = self._default_thinking()
        self._form = probe(self._render, prints_date="strftime_now" in template)
        for note in self._form.notes():
            self._note(note)

    @property
    def form(self) -> Form:
        """The form of messages that the template takes."""
        return self._form

    @property
    def template(self) -> str:
        """The chat template of turns that have tools."""
        return self._template(tools=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be bent to render, in words, each once; empty where the template did everything by itself."""
        return tuple(self._notes)

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        """Token ids of what the model saw before message `index`, with the tools in force and the generation prompt.

        Raises ConfigError if the template refuses the messages or there are none before `index`.
        """
        where = _where(rollout, index, last=len(rollout.messages))
        return self._encode(self._text(rollout.context_at(index), rollout.tools_at(index), where, header=True))

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        """Token ids of the recorded assistant message as emitted after `prompt(rollout, index)`, stop token last.

        Raises ConfigError if message `index` is no assistant message or the template gives it no text of its own.
        """
        where = _where(rollout, index, last=len(rollout.messages) - 1)
        message = rollout.messages[index]
        if message.role != "assistant":
            raise ConfigError(f"{where}: a reply is an assistant message, this one is of role {message.role!r}")
        if message.tool_calls and "tool_calls" not in self._template(tools=True):
            raise ConfigError(f"{where}: the chat template does not render tool calls; give a template that does")
        header, segment = self._split(rollout, index, where)
        given = shared_header(header, segment, self._tokenizer)
        self._check_header(header, given, segment, where)
        return self._to_stop(self._encode_after(header, segment[len(given) :]), where)

    def text(self, ids: Sequence[int]) -> str:
        """What the target said with `ids`: everything before the first stop token, special tokens kept as text."""
        end = next((i for i, token in enumerate(ids) if token in self._stop), len(ids))
        return str(self._tokenizer.decode(list(ids[:end]), skip_special_tokens=False))

    def _default_thinking(self) -> bool | None:
        """What the template does where the flag is not given: the value that changes nothing; None: both or neither."""
        probe = [{"role": "user", "content": "."}]
        try:
            unset, on, off = (
                self._tokenizer.apply_chat_template(
                    probe, add_generation_prompt=True, tokenize=False, **{**self._kwargs, **flag}
                )
                for flag in ({}, {"enable_thinking": True}, {"enable_thinking": False})
            )
        except (TemplateError, TypeError, ValueError):
            return None
        return None if (unset == on) == (unset == off) else unset == on

    def _split(self, rollout: Rollout, index: int, where: str) -> tuple[str, str]:
        """The generation prompt, and the assistant turn as the template renders it."""
        context, tools = rollout.context_at(index), rollout.tools_at(index)
        message = self._spoken(rollout.messages[index])
        if found := self._difference(context, message, tools, where):
            return found
        alone = (Message(role="user", content="."),)
        found = self._difference(alone, message, tools, where)
        if found is None or not self._text(context, tools, where, header=True).endswith(found[0]):
            raise ConfigError(
                f"{where}: the chat template rewrites the conversation when this reply is added, and the reply cannot "
                "be rendered on its own either; use another chat template"
            )
        self._note(f"{where}: adding the reply rewrites earlier turns; it was rendered after a one-line context")
        return found

    def _difference(
        self, context: Sequence[Message], message: Message, tools: Sequence[dict[str, Any]], where: str
    ) -> tuple[str, str] | None:
        """What generation prompt and message each add to the rendered context; None if either rewrites it."""
        base = self._text(context, tools, where, header=False)
        prompt = self._text(context, tools, where, header=True)
        full = self._text([*context, message], tools, where, header=False)
        if prompt.startswith(base) and full.startswith(base):
            return prompt[len(base) :], full[len(base) :]
        return None

    def _check_header(self, header: str, given: str, segment: str, where: str) -> None:
        if header and not given:
            raise ConfigError(
                f"{where}: the chat template starts the assistant turn with {segment[:40]!r}, its generation prompt is "
                f"{header!r}; use a template whose generation prompt is the start of its assistant turn"
            )
        if header[len(given) :].count(_THINK_START) > header.count(_THINK_END):
            self._note(f"{where}: the generation prompt opens a think block that the recorded reply does not close")

    def _spoken(self, message: Message) -> Message:
        """The message as it can be emitted: with thinking off, the prompt has closed the think block already."""
        if self.thinking is not False or not (message.reasoning or _THINK_END in message.content):
            return message
        self._note("thinking is off: recorded reasoning is left out of the replies")
        _, closed, after = message.content.rpartition(_THINK_END)
        return message.model_copy(update={"reasoning": None, "content": after.lstrip("\n") if closed else after})

    def _text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], where: str, *, header: bool) -> str:
        template = self._template(tools=bool(tools))
        if tools and not re.search(r"\btools\b", template):
            self._note("the chat template renders no tools: prompts do not show the tool list")
        if kind := self._form.lost(messages):
            raise ConfigError(f"{where}: the chat template drops {kind}; give a template that renders them")
        try:
            return self._apply(self._form.shape(messages), tools, header=header)
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: the chat template refuses the messages before it: {error}") from error

    def _render(self, messages: Messages, tools: bool) -> str:
        return self._apply(messages, [_PROBE_TOOL] if tools else [], header=False)

    def _apply(self, messages: Messages, tools: Sequence[dict[str, Any]], *, header: bool) -> str:
        template = self._template(tools=bool(tools))
        text = self._tokenizer.apply_chat_template(
            messages,
            tools=list(tools) or None,
            chat_template=_FIXED_DATE + template if "strftime_now" in template else template,
            add_generation_prompt=header,
            tokenize=False,
            **self._kwargs,
        )
        return str(text)

    def _template(self, *, tools: bool) -> str:
        try:
            return str(self._tokenizer.get_chat_template(None, [{}] if tools else None))
        except ValueError as error:
            name = getattr(self._tokenizer, "name_or_path", "?")
            raise ConfigError(
                f"tokenizer {name!r} has no chat template; use an instruction-tuned model, or set "
                "tokenizer.chat_template"
            ) from error

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_after(self, header: str, text: str) -> list[int]:
        """Ids of `text` as it follows `header`: a tokenizer may treat the start of a string specially."""
        before, both = self._encode(header), self._encode(header + text)
        return both[len(before) :] if both[: len(before)] == before else self._encode(text)

    def _to_stop(self, ids: list[int], where: str) -> list[int]:
        at = next((i for i, token in enumerate(ids) if token in self._stop), None)
        if at is None:
            self._note(f"{where}: the template ends no assistant turn with a stop token; one was added")
            return [*ids, self._stop[0]]
        if self._tokenizer.decode(ids[at + 1 :]).strip():
            self._note(f"{where}: the recorded reply holds a stop token in its text; the reference ends there")
        return ids[: at + 1]

    def _note(self, text: str) -> None:
        self._notes[text] = None


def _where(rollout: Rollout, index: int, *, last: int) -> str:
    if not 0 < index <= last:
        raise ConfigError(f"rollout {rollout.id!r}: message {index} is outside 1..{last}")
    return f"rollout {rollout.id!r}, message {index}"


def shared_header(header: str, segment: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The longest start of `header` that `segment` has too and that ends a line, an added token or the header.

    header: the generation prompt; segment: the assistant turn as the template renders it. A cut inside a word or a
    token ("<think>" against "<tool_call>") is never made.
    """
    return max((header[:end] for end in _boundaries(header, tokenizer) if segment.startswith(header[:end])), key=len)


def _boundaries(header: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    yield from (0, len(header))
    yield from (match.end() for match in re.finditer("\n", header))
    for token in tokenizer.get_added_vocab():
        yield from (match.end() for match in re.finditer(re.escape(token), header))


def messages_for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the form most chat templates read: content always a string, tool-call arguments always a dict."""
    return Form().shape(messages)


_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "probe", "description": "A probe.", "parameters": {"type": "object", "properties": {}}},
}


def stop_ids(tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None) -> tuple[int, ...]:
    """Token ids that end a turn: the tokenizer's eos token first, then the generation configuration's.

    Raises ConfigError if neither names one.
    """
    listed = getattr(generation_config, "eos_token_id", None)
    extra = listed if isinstance(listed, (list, tuple)) else [listed]
    ids = [token for token in (tokenizer.eos_token_id, *extra) if token is not None]
    if not ids:
        raise ConfigError("neither tokenizer nor generation config names an eos token; a turn could never end")
    return tuple(dict.fromkeys(int(token) for token in ids))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two id lists; compared slice by slice, not token by token."""
    limit = min(len(a), len(b))
    start = 0
    while start < limit and a[start : start + _CHUNK_TOKENS] == b[start : start + _CHUNK_TOKENS]:
        start += _CHUNK_TOKENS
    if start >= limit:
        return limit
    pairs = zip(a[start:limit], b[start:limit], strict=True)
    return next((start + i for i, (x, y) in enumerate(pairs) if x != y), limit)
