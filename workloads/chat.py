"""Messages of a row in OpenAI's form to rollout messages, as the importer reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.importing import notes as importing
from agentbench_spec.importing.calls import tools_of
from agentbench_spec.importing.common import messages_of
from agentbench_spec.importing.pairing import pair
from agentbench_spec.rollout import Message

from .rows import Row

__all__ = ["Chat", "read_chat"]


@dataclass(frozen=True, slots=True)
class Chat:
    """A recorded chat in the rollout's terms."""

    messages: list[Message]
    tools: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    """Every repair, in words."""


def read_chat(row: Row, raw: Sequence[Any], field: str) -> Chat:
    """The messages of `raw`, calls paired with their results, with the tools of the row's field `tools`.

    Items without a role (rewards that some logs put among the messages) are left out with a note. Raises RowFault
    naming the message that cannot be read.
    """
    notes = importing.Notes()
    messages: list[Message] = []
    for i, item in enumerate(raw):
        if isinstance(item, dict) and "role" not in item:
            notes.add(f"items without a role were left out ({', '.join(sorted(item)) or 'empty'})", i)
            continue
        try:
            messages += messages_of(item, f"{field}[{i}]", notes, i)
        except importing.RowFault as fault:
            raise row.fault(fault.field, fault.reason) from fault
    try:
        tools = tools_of(row.value.get("tools"), "tools", notes)
    except importing.RowFault as fault:
        raise row.fault(fault.field, fault.reason) from fault
    return Chat(pair(messages, notes), tools, notes.lines())
