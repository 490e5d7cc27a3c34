"""A request for a chat completion: read strictly, and refused by name where it asks for what is not computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.rollout import Message, ToolCall


class Refused(Exception):
    """What a client is told in place of an answer."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        """status: of HTTP; param: the field of the request; code: as OpenAI's API has them."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that can be answered."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int | None = None
    """None: the server's own cap."""
    stream: bool = False
    include_usage: bool = False
    """A stream ends with a chunk of its counts."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What is served, and how it is sampled."""

    names: tuple[str, ...]
    """Names of the model; the first is told to clients."""
    sampling: Sampling


_READ = ("messages", "model", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream", "stream_options")
_SAMPLING = ("temperature", "top_p", "top_k", "seed")
_WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_ONLY: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "stop": ([], ""),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields that are not computed, and the values of them that change nothing."""


def read_request(raw: bytes, offer: Offer) -> ChatRequest:
    """The request in a body. Raises Refused naming the field that cannot be read or is not computed."""
    body = _object(raw)
    if "model" not in body:
        raise Refused("model is missing", param="model")
    if body["model"] not in offer.names:
        known = " or ".join(map(repr, offer.names))
        raise Refused(
            f"the model {body['model']!r:.80} is not served; ask for {known}",
            status=404,
            param="model",
            code="model_not_found",
        )
    _refuse_uncomputed(body)
    _refuse_other_sampling(body, offer.sampling)
    options = _optional(body, "stream_options", dict) or {}
    return ChatRequest(
        messages=_messages(body.get("messages")),
        tools=_tools(body),
        max_tokens=_most_tokens(body),
        stream=bool(_optional(body, "stream", bool)),
        include_usage=options.get("include_usage") is True,
    )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise Refused("the body is nested too deeply") from None
    except UnicodeError:
        raise Refused("the body is no UTF-8 text, or holds half a surrogate pair") from None
    except ValueError as error:
        raise Refused(f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(f"the body must be a JSON object, found {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _refuse_uncomputed(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if value is None or name in (*_READ, *_SAMPLING, *_WITHOUT_EFFECT):
            continue
        if name not in _ONLY:
            raise Refused(
                f"{name[:80]} is not computed here; leave it out", param=name[:80], code="unsupported_parameter"
            )
        if value not in _ONLY[name]:
            usual = " or ".join(json.dumps(each) for each in _ONLY[name])
            raise Refused(
                f"{name} is not computed here; leave it out, or send {usual}", param=name, code="unsupported_value"
            )


def _refuse_other_sampling(body: Mapping[str, Any], sampling: Sampling) -> None:
    """All rows of a run are sampled alike, so a client cannot choose."""
    own = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    idle = ("top_p", "top_k", "seed") if sampling.greedy else ()  # without effect on the likeliest token
    for name in _SAMPLING:
        value = body.get(name)
        if value is None or name in idle or (name in own and value == own[name] and not isinstance(value, bool)):
            continue
        how = f"this server decodes with {name} {own[name]:g}" if name in own else "this server has a seed of its own"
        raise Refused(
            f"{name} {value!r:.40}: {how}, the same for all rows of a run; leave it out, or start the server otherwise",
            param=name,
            code="unsupported_value",
        )


def _optional(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise Refused(f"{name}: expected {kind.__name__}, found {type(value).__name__}", param=name)
    return value


def _most_tokens(body: Mapping[str, Any]) -> int | None:
    given = {name: _optional(body, name, int) for name in ("max_tokens", "max_completion_tokens")}
    known = {name: value for name, value in given.items() if value is not None}
    for name, value in known.items():
        if value < 1:
            raise Refused(f"{name}: expected 1 or more, found {value}", param=name)
    if len(set(known.values())) > 1:
        raise Refused("max_tokens and max_completion_tokens differ; send one of them", param="max_tokens")
    return next(iter(known.values()), None)


def _tools(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The declarations in force; none where the model may not call."""
    declared = _optional(body, "tools", list) or []
    for i, tool in enumerate(declared):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not (isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]):
            raise Refused(f"tools[{i}]: expected a function with a name; other tools are not run here", param="tools")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise Refused(
            "tool_choice is not enforced here; send auto or none", param="tool_choice", code="unsupported_value"
        )
    return () if choice == "none" else tuple(declared)


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OF_A_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
_BOOKKEEPING = ("provider_specific_fields", "annotations", "id")
"""Fields that clients send back and that hold no words of a conversation."""


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise Refused("messages: expected a list with one message or more", param="messages")
    found = tuple(read_message(message, f"messages[{i}]") for i, message in enumerate(value))
    if found[-1].role == "assistant":
        raise Refused("messages: the last one is the assistant's; to go on with it is not computed", param="messages")
    return found


def read_message(value: Any, where: str) -> Message:
    """The message in a request's form; where: its path. Raises Refused naming the field."""
    if not isinstance(value, dict) or value.get("role") not in [*_ROLES]:
        raise Refused(f"{where}.role: expected one of {', '.join(_ROLES)}", param=where)
    for name, held in value.items():
        if held and name not in (*_OF_A_MESSAGE, *_BOOKKEEPING):
            raise Refused(f"{where}.{name[:80]} is not read here; leave it out", param=where)
    texts = {name: value.get(name) for name in ("name", "tool_call_id")}
    thought = value.get("reasoning_content") or value.get("reasoning")
    for name, text in {**texts, "reasoning_content": thought}.items():
        if text is not None and not isinstance(text, str):
            raise Refused(f"{where}.{name}: expected text, found {type(text).__name__}", param=where)
    role: Any = _ROLES[value["role"]]
    calls = value.get("tool_calls") or []
    if calls and role != "assistant":
        raise Refused(f"{where}.tool_calls: only an assistant calls", param=where)
    return Message(
        role=role,
        content=_text(value.get("content"), f"{where}.content"),
        tool_calls=_calls(calls, f"{where}.tool_calls"),
        reasoning=thought or None,
        name=texts["name"],
        tool_call_id=texts["tool_call_id"],
    )


def _text(value: Any, where: str) -> str:
    """Content as one text; parts of text are joined."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise Refused(f"{where}: expected text or a list of parts, found {type(value).__name__}", param=where)
    for i, part in enumerate(value):
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Refused(f"{where}[{i}]: a part of type {kind!r:.40} is not read here; only text is", param=where)
    return "".join(part["text"] for part in value)


def _calls(value: Sequence[Any], where: str) -> tuple[ToolCall, ...]:
    if not isinstance(value, list):
        raise Refused(f"{where}: expected a list, found {type(value).__name__}", param=where)
    return tuple(_call(call, f"{where}[{i}]") for i, call in enumerate(value))


def _call(value: Any, where: str) -> ToolCall:
    function = value.get("function") if isinstance(value, dict) else None
    if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
        raise Refused(f"{where}: expected a function with name and arguments", param=where)
    raw = function.get("arguments") or "{}"
    try:
        arguments = json.loads(raw, parse_constant=_refuse_constant) if isinstance(raw, str) else raw
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise Refused(f"{where}.function.arguments: expected the text of a JSON object", param=where)
    own = raw if isinstance(raw, str) else None
    return ToolCall(name=function["name"], arguments=arguments, raw_arguments=own, id=str(value.get("id") or ""))
