"""Which strings of a source are words, which kinds may be left out, and which words of a row its rollout lost."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from agentbench_spec.messages import Message
from agentbench_spec.rollout import Rollout

__all__ = [
    "holds_words",
    "is_left_out_kind",
    "is_system_key",
    "lost_words",
    "strings_of",
    "word_keys",
]

FEW_CHARACTERS = 3
"""A string of no more says nothing that could be missed."""
_NAMED_DEPTH = 3
"""Members that name a place in a note."""

_KINDS = {
    "identifiers": "id uuid ids index hash sha sha256 md5 digest fingerprint signature etag",
    "times": "timestamp time date created updated completed started duration latency",
    "markers": "type role from object status kind level format schema schema_version version finish_reason stop_reason "
    "stop_sequence mime_type mimetype media_type content_type phase subtype requestor service_tier cache_control "
    "annotations citations",
    "usage": "usage metrics final_metrics cost logprobs token_count model_usage",
    "names": "model model_name agent provider source author lang language user_type usertype cwd gitbranch git "
    "originator cli_version entrypoint slug split dataset",
    "binary": "encrypted_content encrypted image_url audio_url video_url blob bytes",
}
"""Kind -> names of members (lower case) that are no words of a conversation, whatever they hold."""

_NAMES = frozenset(name for names in _KINDS.values() for name in names.split())
_ENDINGS = (
    *("_id", "_ids", "Id", "Ids", "ID", "Uuid", "UUID", "_uuid", "_at", "_time", "_tokens", "Tokens", "_hash"),
    *("_sha256", "_sha", "_version", "Version", "_type", "_ms", "_ns", "_cost", "_url"),
)
_SYSTEM = re.compile(
    r"(?:base|developer)?(?:system|sys|developer)(?:prompt|message|instructions?|content|text)?s?\Z"
    r"|(?:base|system)?instructions\Z"
)
_BINARY = re.compile(r"data:[\w/+.-]+;base64,|[A-Za-z0-9+/=_-]{256,}\Z")


@lru_cache(maxsize=4096)
def is_left_out_kind(key: str) -> bool:
    """True if a member of this name is of a kind that may be left out."""
    return key.lower() in _NAMES or key.endswith(_ENDINGS)


def holds_words(value: Any) -> bool:
    """True if a string of more than a few characters stands in `value`, outside of the kinds that may be left out."""
    return next(_words(value), None) is not None


def word_keys(raw: Mapping[str, Any], known: Container[str] = ()) -> list[str]:
    """The members of `raw` that hold words and are not `known`, in their order."""
    return [str(key) for key in raw if key not in known and not is_left_out_kind(str(key)) and holds_words(raw[key])]


def lost_words(value: Any, rollout: Rollout, said: Iterable[str] = ()) -> list[str]:
    """Where words of `value` stand that are neither in the rollout nor in a note, nor of a kind that is left out.

    said: strings of what a note says was left out. List positions are left out of a place, so that
    `messages.extra.why` names the member in all messages; places inside one another are named once.
    """
    kept, found = _Kept(rollout, said), dict[str, None]()
    _look_up(value, [], kept, found)
    return [place for place in found if not any(place.startswith(f"{other}.") for other in found)]


def _look_up(value: Any, path: list[str], kept: _Kept, found: dict[str, None]) -> None:
    """Add to `found` the place of each word in `value`, which stands at `path`, that is not `kept`."""
    if isinstance(value, str):
        if value not in kept.whole and _is_word(value):
            place = ".".join(path[:_NAMED_DEPTH])
            if place not in found and not kept.holds(value):
                found[place] = None
    elif isinstance(value, dict):
        for key, item in value.items():
            if item and not isinstance(item, int | float) and not is_left_out_kind(str(key)):
                path.append(str(key))
                _look_up(item, path, kept, found)
                path.pop()
    elif isinstance(value, list | tuple):
        for item in value:
            _look_up(item, path, kept, found)


class _Kept:
    """The strings of a rollout, whole and as one text."""

    def __init__(self, rollout: Rollout, said: Iterable[str]) -> None:
        messages = [_dumped(message) for message in _messages(rollout)]
        self.whole = {*strings_of([messages, rollout.tools, rollout.labels]), *said}
        self._text = "\n".join((*self.whole, rollout.id, *rollout.notes))

    def holds(self, text: str) -> bool:
        if text in self.whole:
            return True
        if text[:1] in ("[", "{") and (inner := _parsed(text)) is not None:
            return all(self.holds(word) for word in _words(inner))
        return text in self._text or json.dumps(text, ensure_ascii=False)[1:-1] in self._text


def _messages(rollout: Rollout) -> Iterator[Message]:
    yield from rollout.messages
    yield from (item for view in rollout.views for item in view.show if isinstance(item, Message))


def _dumped(message: Message) -> list[Any]:
    calls = [[call.name, call.id, call.arguments, call.raw_arguments] for call in message.tool_calls]
    return [message.content, message.reasoning, message.name, message.tool_call_id, message.tools, calls]


def strings_of(value: Any) -> set[str]:
    """Every string in `value`, names of members as well."""
    found: set[str] = set()
    _collect(value, found)
    return found


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, str):
        found.add(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            found.add(str(key))
            _collect(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, found)


def _is_word(text: str) -> bool:
    return len(text) > FEW_CHARACTERS and len(text.strip()) > FEW_CHARACTERS and not _BINARY.match(text)


def _words(value: Any) -> Iterator[str]:
    """The words in `value`."""
    if isinstance(value, str):
        if _is_word(value):
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not is_left_out_kind(str(key)):
                yield from _words(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _words(item)


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def is_system_key(key: str) -> bool:
    """True for a member of a row that holds the system prompt, whatever the library calls it."""
    return bool(_SYSTEM.match(re.sub(r"[^a-z]", "", key.lower())))
