"""A workload whose rollouts each come from one row of a data file: reading, faults, sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from agentbench_spec.rollout import BadLine, ConfigError, Message, Rollout, spread_sample
from agentbench_spec.rollouts import importing

from .locate import Data
from .tabular import data_rows

__all__ = ["NO_REPLY", "Row", "RowFault", "RowLeftOut", "RowWorkload", "unrecorded"]

NO_REPLY = "(no reply was recorded here)"
"""Text of a decode point for which the data holds no reply."""


def unrecorded() -> Message:
    """A decode point without a recorded reply."""
    return Message(role="assistant", content=NO_REPLY, synthetic=True)


class RowFault(ConfigError):
    """A row that cannot be turned into a rollout."""

    def __init__(self, bad: BadLine) -> None:
        super().__init__(str(bad))
        self.bad = bad


@dataclass(frozen=True, slots=True)
class Row:
    """One row, with checked access to its fields."""

    data: Data
    file: Path
    number: int
    value: dict[str, Any]
    repairs: tuple[str, ...] = ()
    """What had to be repaired to read it."""

    @property
    def source(self) -> dict[str, Any]:
        """Where the row comes from, for the rollout."""
        return self.data.source(self.file, self.number)

    def fault(self, field: str | None, reason: str) -> RowFault:
        """The error for a field of this row."""
        return RowFault(BadLine(self.file, self.number, field, reason))

    def imported(
        self, value: Any, *, workload: str, name: str, format: str = "auto", labels: dict[str, Any] | None = None
    ) -> Rollout:
        """The rollout in `value`, read by the importer (agentbench_spec.rollouts.importing). Raises RowFault."""
        try:
            return importing.convert_row(
                value,
                format=format,
                id=name,
                workload=workload,
                source=self.source,
                labels=labels,
                notes=dict.fromkeys(self.repairs),
            )
        except importing.RowFault as fault:
            raise self.fault(fault.field, fault.reason) from fault

    def text(self, *names: str) -> str:
        """The first of the fields `names` that is there; it must be text with more than blanks."""
        for name in names:
            if (value := self.value.get(name)) is not None:
                if isinstance(value, str) and value.strip():
                    return value
                raise self.fault(name, f"expected text, found {type(value).__name__ if value != '' else 'none'}")
        raise self.fault(names[0], f"is missing; the row has {', '.join(map(repr, self.value)) or 'no fields'}")

    def optional(self, *names: str) -> str | None:
        """As `text`, but None if there is none of the fields or the first one is blank."""
        value = next((self.value[name] for name in names if self.value.get(name) is not None), None)
        return value if isinstance(value, str) and value.strip() else None

    def items(self, name: str) -> list[Any]:
        """A list that is not empty."""
        value = self.value.get(name)
        if not isinstance(value, list) or not value:
            raise self.fault(name, "expected a list that is not empty")
        return value

    def id(self, *names: str) -> str:
        """The first of the fields that is there as text, else file name and row number."""
        found = next((self.value[name] for name in names if self.value.get(name) not in (None, "")), None)
        return str(found) if found is not None else f"{self.file.name.partition('.')[0]}-{self.number}"


class RowLeftOut(Exception):
    """A sound row that this workload cannot use; `RowWorkload.left_out` lists it."""

    def __init__(self, row: Row, reason: str) -> None:
        super().__init__(reason)
        self.line = BadLine(row.file, row.number, None, reason)


class _Named(Protocol):
    @property
    def id(self) -> str: ...


_Made = TypeVar("_Made", bound=_Named)
Build = Callable[[Row], _Made | None]
"""What is made of a row; None if it was not asked for. Raises RowFault for a bad row, RowLeftOut for a useless one."""


class RowWorkload(Generic[_Made]):
    """Rollouts, or tasks, made from the rows of data files, streamed."""

    def __init__(
        self,
        name: str,
        data: Data,
        build: Build[_Made],
        *,
        group: Callable[[dict[str, Any]], str] = lambda row: "",
        lenient: bool = False,
    ) -> None:
        """group: what a sample spreads over; lenient: pass over bad rows."""
        self.name, self.data = name, data
        self._build, self._group, self._lenient = build, group, lenient
        self.bad_lines: list[BadLine] = []
        """Bad rows passed over by the last `rollouts` call with lenient=True, and why."""
        self.left_out: list[BadLine] = []
        """Sound rows of no use to this workload that the last `rollouts` call met, and why."""

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterator[_Made]:
        """All in file order; with a limit, the first that can be used of an order drawn from the seed.

        Raises ConfigError if a row is bad (unless lenient), if two rows give one id, or if none gives a rollout.
        """
        if limit is not None and limit < 0:
            raise ConfigError(f"limit: expected 0 or more, found {limit}")
        self.bad_lines.clear()
        self.left_out.clear()
        seen: set[str] = set()
        for rollout in self._stream() if limit is None else islice(self._sample(limit, seed), limit):
            if rollout.id in seen:
                raise ConfigError(f"{self.data.root}: two rows give the id {rollout.id!r}; remove one of them")
            seen.add(rollout.id)
            yield rollout
        if not seen and limit != 0:
            passed_over = [*self.bad_lines, *self.left_out]
            why = f"; {len(passed_over)} rows were left out, first: {passed_over[0]}" if passed_over else ""
            raise ConfigError(f"{self.name}: no row of {self.data.root} matches what was asked for{why}")

    def _stream(self) -> Iterator[_Made]:
        for row in self._rows():
            if (rollout := self._built(row)) is not None:
                yield rollout

    def _sample(self, limit: int, seed: int) -> Iterator[_Made]:
        """In dealt order, a pass over the files for every `limit` rows, since some rows give no rollout."""
        if limit == 0:
            return
        order = spread_sample({_key(row): self._group(row.value) for row in self._rows()}, limit=None, seed=seed)
        for start in range(0, len(order), limit):
            wanted = order[start : start + limit]
            places = set(wanted)
            built = {k: self._built(row) for row in self._rows(quiet=True) if (k := _key(row)) in places}
            yield from (rollout for k in wanted if (rollout := built[k]) is not None)

    def _rows(self, *, quiet: bool = False) -> Iterator[Row]:
        for file in self.data.files:
            for row in (_checked(self.data, one) for found in data_rows(file) for one in _opened(found)):
                if isinstance(row, Row):
                    yield row
                elif not quiet:
                    self._leave_out(row)

    def _built(self, row: Row) -> _Made | None:
        try:
            return self._build(row)
        except RowLeftOut as useless:
            self.left_out.append(useless.line)
        except RowFault as fault:
            self._leave_out(fault.bad)
        return None

    def _leave_out(self, bad: BadLine) -> None:
        if not self._lenient:
            raise ConfigError(f"{bad} (lenient=true leaves such rows out and lists them)")
        self.bad_lines.append(bad)


def _opened(found: importing.Row | BadLine) -> Iterator[importing.Row | BadLine]:
    """The rows of a document that holds several, each a list of messages under its name."""
    return iter([found]) if isinstance(found, BadLine) else importing.named_lists(found)


def _checked(data: Data, found: importing.Row | BadLine) -> Row | BadLine:
    """The row with an object in it: a list that is one rollout's messages stands under `messages`."""
    if isinstance(found, BadLine):
        return found
    value = {"messages": found.value} if isinstance(found.value, list) and found.alone else found.value
    if not isinstance(value, dict):
        reason = f"expected a JSON object, found {type(value).__name__}"
        return BadLine(found.path, found.number, None, reason)
    return Row(data, found.path, found.number, value, tuple(found.repairs))


def _key(row: Row) -> str:
    """Place of a row; the same on every machine, since it decides what a sample holds."""
    return f"{row.data.name_of(row.file)}#{row.number:09d}"
