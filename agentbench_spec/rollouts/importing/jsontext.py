"""JSON as it is found in the wild: bad bytes, half surrogate pairs, NaN, raw control characters, text inside text."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from agentbench_spec.jsonl import not_json
from agentbench_spec.rollouts.importing.notes import RowFault

__all__ = ["decode", "embedded_json", "jsonable", "loads", "several", "without_nulls", "without_surrogates"]

BAD_TEXT = "bytes that are not UTF-8 or half surrogate pairs were replaced by U+FFFD"
CONTROL = "raw control characters inside JSON strings were accepted"
NOT_FINITE = "NaN or infinite numbers were turned into text"
PADDING = "null members of parquet structs were left out: padding cannot be told from null"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LENIENT = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[\s,\ufeff\x00]*")

Say = Callable[[str], None]


def decode(raw: bytes) -> str:
    """Text of `raw`; bytes that are not UTF-8 become half surrogates, for `loads` to replace and note."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("utf-8", errors="surrogateescape")


def loads(text: str, say: Say) -> Any:
    """Value of a JSON text. Raises RowFault if it is none; `say` hears of each repair."""
    try:
        value = _parse(text, say)
        suspect = _SURROGATE_ESCAPE.search(text) or not _encodable(text)
        return without_surrogates(value, say) if suspect else value
    except json.JSONDecodeError as error:
        raise RowFault(None, not_json(error)) from error
    except RecursionError as error:
        raise RowFault(None, "is nested too deeply to be read") from error
    except ValueError as error:  # an integer of thousands of digits
        raise RowFault(None, f"holds a number that cannot be read: {error}") from error


def _parse(text: str, say: Say) -> Any:
    repeated: dict[str, None] = {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.update(dict.fromkeys(key for key, count in counts.items() if count > 1))
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        if "control character" not in error.msg:
            raise
        value = json.loads(text, object_pairs_hook=unique, strict=False)
        say(CONTROL)
    for key in repeated:
        say(f"the member {key!r} stands twice in one object: the last one was read")
    return value


def several(text: str) -> tuple[list[str], str]:
    """(JSON texts of the objects and lists that stand behind one another in `text`, what is left of it)."""
    found: list[str] = []
    position = _BETWEEN.match(text, 0).end()  # type: ignore[union-attr]
    while text[position : position + 1] in ("{", "["):
        try:
            _, stop = _LENIENT.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        found.append(text[position:stop])
        position = _BETWEEN.match(text, stop).end()  # type: ignore[union-attr]
    return found, text[position:]


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def without_surrogates(value: Any, say: Say) -> Any:
    """`value` with every half surrogate pair in it replaced by U+FFFD."""
    if isinstance(value, str):
        if not _SURROGATE.search(value):
            return value
        say(BAD_TEXT)
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_surrogates(item, say) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(k, say): without_surrogates(v, say) for k, v in value.items()}
    return value


def without_nulls(value: Any, say: Say) -> Any:
    """`value` without the null members that parquet pads its structs with; null items of lists stay."""
    if isinstance(value, list):
        return [without_nulls(item, say) for item in value]
    if isinstance(value, dict):
        if None in value.values():
            say(PADDING)
        return {key: without_nulls(item, say) for key, item in value.items() if item is not None}
    return value


def embedded_json(text: str, field: str, say: Say) -> Any:
    """Value of JSON text found in a text field. Raises RowFault naming `field`."""
    try:
        return loads(text, say)
    except RowFault as fault:
        raise RowFault(field, f"holds text that is {fault.reason.removeprefix('is ')}") from fault


def jsonable(value: Any, say: Say) -> Any:
    """`value` as JSON can store it: finite numbers, text keys; dates and the like as text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        say(NOT_FINITE)
        return str(value)
    if isinstance(value, list | tuple):
        return [jsonable(item, say) for item in value]
    if isinstance(value, dict):
        return {str(key): jsonable(item, say) for key, item in value.items()}
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
