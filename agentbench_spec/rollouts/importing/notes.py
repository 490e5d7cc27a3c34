"""What an importer says about a row: notes on repairs, and the fault that makes a row useless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollouts.importing.lost_words import strings_of

__all__ = ["Notes", "RowFault", "short"]

_LISTED = 5


class RowFault(ConfigError):
    """A row that cannot be made a rollout: `field` is where, `reason` what is wrong and what would be right."""

    def __init__(self, field: str | None, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason


class Notes:
    """Repairs of one row, each kind said once with the messages it was made in."""

    def __init__(self) -> None:
        self._places: dict[str, dict[int, None]] = {}
        self._left_out: dict[str, None] = {}
        self.said: set[str] = set()
        """Strings of what was left out with a note."""
        self.users_calls: set[str] = set()
        """Ids of calls of a simulated user that were left out: their results go as well."""

    def add(self, text: str, message: int | None = None) -> None:
        """A repair in words; message: index of the message it was made in."""
        places = self._places.setdefault(text, {})
        if message is not None:
            places[message] = None

    def left_out(self, fields: Mapping[str, Any]) -> None:
        """Fields of messages for which a rollout has no place, with what they hold."""
        self._left_out.update(dict.fromkeys(map(str, fields)))
        self.left_out_part(fields)

    def left_out_part(self, part: Any) -> None:
        """Anything that another note says was left out: its strings are accounted for."""
        self.said.update(strings_of(part))

    def lines(self) -> tuple[str, ...]:
        """One line for each kind of repair."""
        lines = [text + _where(list(places)) for text, places in self._places.items()]
        if self._left_out:
            lines.append(f"fields of messages that are no part of a chat were left out: {', '.join(self._left_out)}")
        return tuple(lines)


def _where(messages: list[int]) -> str:
    if not messages:
        return ""
    listed = ", ".join(map(str, messages[:_LISTED]))
    more = len(messages) - _LISTED
    return f" (message{'s' * (len(messages) > 1)} {listed}{f' and {more} more' if more > 0 else ''})"


def short(value: object) -> str:
    """`value` as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
