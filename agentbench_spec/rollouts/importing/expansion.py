"""From the rows of a file to one value a rollout: containers opened, sessions parted, requests folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing.agents.claude_code import split_sessions
from agentbench_spec.rollouts.importing.detect import UnknownFormat, detect
from agentbench_spec.rollouts.importing.exchanges.folding import folded_rows
from agentbench_spec.rollouts.importing.exchanges.telemetry import holds_spans, request_rows
from agentbench_spec.rollouts.importing.lost_words import word_keys
from agentbench_spec.rollouts.importing.shapes import is_claude_line, is_message_list
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["expanded", "named_lists"]


def expanded(rows: Iterable[Row | BadLine]) -> Iterator[Row | BadLine]:
    """`rows`, each of which should become one rollout."""
    return folded_rows(found for row in rows for found in ([row] if isinstance(row, BadLine) else _inner_rows(row)))


def _inner_rows(row: Row) -> Iterator[Row]:
    """The rollouts in one row, which is most often itself."""
    if holds_spans(row.value):
        yield from request_rows(row)
    elif isinstance(row.value, list) and any(map(is_claude_line, row.value[:5])):
        parts = split_sessions(row.value)
        for number, part in enumerate(parts, 1):
            yield Row(row.path, number, part, alone=len(parts) == 1, member=row.member, repairs=list(row.repairs))
    elif row.alone and (key := _container_key(row.value)):
        yield from _listed(row, key)
    else:
        yield from named_lists(row)


def named_lists(row: Row) -> Iterator[Row]:
    """The rollouts of a document {name: [messages], ...}; any other row comes back as it is."""
    if not (row.alone and _is_named_lists(row.value)):
        yield row
        return
    rest = word_keys({key: value for key, value in row.value.items() if not is_message_list(value)})
    more = f"; its other members were left out: {', '.join(rest)}" if rest else ""
    lists = ((str(key), value) for key, value in row.value.items() if is_message_list(value))
    for number, (key, messages) in enumerate(lists, 1):
        note = f"the rollout stood under {key!r} in a larger document{more}"
        value = {"id": key, "messages": messages}
        yield Row(row.path, number, value, member=row.member, repairs=[*row.repairs, note])


def _listed(row: Row, key: str) -> Iterator[Row]:
    rest = word_keys(row.value, (key,))
    more = f"; its other members were left out: {', '.join(rest)}" if rest else ""
    note = f"the rollout stood in the list {key!r} of a larger document{more}"
    for number, value in enumerate(row.value[key], 1):
        yield Row(row.path, number, value, member=row.member, repairs=[*row.repairs, note])


def _container_key(value: Any) -> str:
    """The one member of a document that lists rollouts, where the document itself is none; else ""."""
    if not isinstance(value, Mapping) or _is_rollout(value):
        return ""
    listing = [key for key, rows in value.items() if isinstance(rows, list) and any(map(_is_rollout_object, rows[:5]))]
    return str(listing[0]) if len(listing) == 1 else ""


def _is_named_lists(value: Any) -> bool:
    """True for {name: [messages], ...}, in which several members are a rollout each."""
    if not isinstance(value, Mapping) or _is_rollout(value):
        return False
    return sum(map(is_message_list, value.values())) > 1


def _is_rollout_object(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_rollout(value)


def _is_rollout(value: Any) -> bool:
    try:
        return bool(detect(value))
    except UnknownFormat:
        return False
