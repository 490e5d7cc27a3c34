"""Public interface for workload authors: Rollout, Message, Workload.

A **rollout** is one recorded or simulated agent session. Each assistant message is a **decode point**: the target is
asked for it with everything before it as context, and the recorded message is the reference. One JSON object per
line is the interchange form (`read_rollouts`, `write_rollouts`).
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationError

from agentbench_spec.errors import ConfigError, ContractError, DataWarning
from agentbench_spec.jsonl import BadLine, file_sha256, json_objects, require_file, write_json_lines
from agentbench_spec.messages import FrozenModel, Message, ToolCall, View, shown, view_fault

__all__ = [
    "SCHEMA",
    "BadLine",
    "ConfigError",
    "DataWarning",
    "FileWorkload",
    "Message",
    "Rollout",
    "TokenCounter",
    "ToolCall",
    "View",
    "Workload",
    "file_sha256",
    "json_objects",
    "parse_rollout",
    "read_rollouts",
    "require_file",
    "spread_sample",
    "write_rollouts",
]

SCHEMA = 2
"""Version of the rollout JSONL form; readers refuse newer ones. A line without views is written as version 1."""


class Rollout(FrozenModel):
    """One agent session: an ordered list of messages over which the context grows."""

    id: str = Field(min_length=1)
    workload: str
    source: dict[str, Any] = Field(default_factory=dict)
    """Where it comes from: name, version, row, sha256 of the data."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON-schema function declarations, {"type": "function", "function": {...}}, in force from the start."""
    messages: tuple[Message, ...] = Field(min_length=1)
    views: tuple[View, ...] = ()
    """Where the model saw earlier messages otherwise than recorded: elided, condensed, closed. Empty: append-only."""
    labels: dict[str, Any] = Field(default_factory=dict)
    """Anything worth grouping by: category, length bucket, task."""
    notes: tuple[str, ...] = ()
    """Every repair the builder or importer made, in words."""

    def decode_points(self) -> list[int]:
        """Indices of the assistant messages that follow at least one other message."""
        return [i for i, m in enumerate(self.messages) if m.role == "assistant" and i > 0]

    def context_at(self, index: int) -> tuple[Message, ...]:
        """Exactly the messages the model saw when message `index` was asked for; messages[:index] if append-only."""
        return shown(self.messages, self.views, index) if self.views else self.messages[:index]

    def until(self, end: int) -> Rollout:
        """The first `end` messages, with the views that concern them."""
        views = tuple(view for view in self.views if view.at < end)
        return self.model_copy(update={"messages": self.messages[:end], "views": views})

    def tools_at(self, index: int) -> tuple[dict[str, Any], ...]:
        """The tool list in force when message `index` is asked for."""
        in_force = self.tools
        for message in self.messages[:index]:
            if message.tools is not None:
                in_force = message.tools
        return in_force


class Workload(Protocol):
    """A named source of rollouts; an entry point or "module:factory" names a callable `make(**options) -> Workload`."""

    name: str

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterable[Rollout]:
        """The rollouts, at most `limit` of them; a smaller limit gives a subset of a larger one (same seed).

        Raises ConfigError naming the file, row and field if the data cannot be used.
        """
        ...


class TokenCounter(Protocol):
    """Counts tokens as one target does; lengths in characters are never turned into tokens by a rule of thumb."""

    source: str
    """The target's name: what a label or a note says of it, since a rollout holds what JSON can hold."""

    def text(self, text: str) -> int:
        """Tokens of a plain text."""
        ...

    def prompt(self, rollout: Rollout, index: int) -> int:
        """Tokens of the prompt that asks for message `index`, in the target's chat template."""
        ...


def read_rollouts(path: str | Path, *, on_bad: Callable[[BadLine], None] | None = None) -> Iterator[Rollout]:
    """Rollouts of a .jsonl or .jsonl.gz file, one at a time.

    Without `on_bad` the first bad line raises ConfigError naming file, line, field and the way out. With it, bad
    lines go to `on_bad` and the good ones beside them are still yielded. A missing or empty file always raises.
    """
    return _read(Path(path), json_objects(Path(path)), on_bad)


def _read(
    path: Path, lines: Iterable[tuple[int, dict[str, Any] | BadLine]], on_bad: Callable[[BadLine], None] | None
) -> Iterator[Rollout]:
    first_line: dict[str, int] = {}
    for number, value in lines:
        rollout = value if isinstance(value, BadLine) else parse_rollout(path, number, value)
        if isinstance(rollout, Rollout) and rollout.id in first_line:
            reason = f"{rollout.id!r} is the id of line {first_line[rollout.id]} already; result rows are keyed by it"
            rollout = BadLine(path, number, "id", reason)
        if isinstance(rollout, BadLine):
            if on_bad is None:
                raise ConfigError(str(rollout))
            on_bad(rollout)
            continue
        first_line[rollout.id] = number
        yield rollout


def write_rollouts(path: str | Path, rollouts: Iterable[Rollout]) -> int:
    """Write rollouts as .jsonl or .jsonl.gz, whole or not at all; returns how many.

    Raises ContractError if two rollouts share an id, ConfigError if one cannot be stored as JSON.
    """
    return write_json_lines(Path(path), _lines_of(rollouts))


def _lines_of(rollouts: Iterable[Rollout]) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for rollout in rollouts:
        if rollout.id in seen:
            raise ContractError(f"workload {rollout.workload}: two rollouts have the id {rollout.id!r}")
        seen.add(rollout.id)
        if fault := view_fault(rollout.messages, rollout.views):
            raise ContractError(f"workload {rollout.workload}: rollout {rollout.id!r}: {fault[0]}: {fault[1]}")
        yield {"schema": 2 if rollout.views else 1, **rollout.model_dump(exclude_defaults=True)}


def parse_rollout(path: Path, number: int, value: dict[str, Any]) -> Rollout | BadLine:
    """The rollout one line holds, or what is wrong with it. Takes `schema` out of `value`."""
    schema = value.pop("schema", SCHEMA)
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        reason = f"this version reads rollout schema 1 to {SCHEMA}, found {schema!r}; update agentbench-spec"
        return BadLine(path, number, "schema", reason)
    try:
        rollout = Rollout.model_validate(value)
    except ValidationError as error:
        return BadLine(path, number, *_first_fault(error))
    if not rollout.decode_points():
        reason = "no assistant message after another message, so there is nothing to decode; drop the line"
        return BadLine(path, number, "messages", reason)
    if fault := view_fault(rollout.messages, rollout.views):
        return BadLine(path, number, *fault)
    for field, tools in _tool_lists(rollout):
        for i, tool in enumerate(tools):
            function = tool.get("function")
            if not (isinstance(function, dict) and function.get("name")):
                reason = 'expected {"type": "function", "function": {"name": ..., "parameters": ...}}'
                return BadLine(path, number, f"{field}[{i}].function.name", reason)
    return rollout


def _tool_lists(rollout: Rollout) -> Iterator[tuple[str, tuple[dict[str, Any], ...]]]:
    yield "tools", rollout.tools
    for i, message in enumerate(rollout.messages):
        if message.tools is not None:
            yield f"messages[{i}].tools", message.tools


_WAY_OUT = {
    "missing": "is missing; add it",
    "string_type": 'expected text, found {input!r}; write "" for no text, and join the parts of a list',
    "tuple_type": "expected a list, found {input!r}; write [] or leave the field out",
    "dict_type": "expected an object, found {input!r}; parse JSON text first and keep it in raw_arguments",
    "too_short": "is empty; drop the line or add what is missing",
    "string_too_short": "is empty; every rollout needs an id of its own",
}


def _first_fault(error: ValidationError) -> tuple[str, str]:
    """Field path and reason of the first fault, and how many more there are."""
    faults = error.errors(include_url=False)
    # pydantic also calls a list too short when one of its items is bad: keep the item's fault only
    faults = [f for f in faults if not any(_inside(g["loc"], f["loc"]) for g in faults)]
    fault = faults[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
    reason = _WAY_OUT.get(fault["type"], "{message}").format(input=_short(fault["input"]), message=fault["msg"])
    if fault["type"] == "extra_forbidden":
        reason = _unknown_field(fault["loc"])
    more = len(faults) - 1
    return path, reason + (f" (and {more} more fault{'s' * (more > 1)} in this line)" if more else "")


def _inside(loc: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(loc) > len(outer) and loc[: len(outer)] == outer


def _short(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else str(value)[:60]


_OWNERS: dict[int | str, type[FrozenModel]] = {
    "tool_calls": ToolCall,
    "messages": Message,
    "show": Message,
    "views": View,
}


def _unknown_field(loc: tuple[int | str, ...]) -> str:
    owner = next((_OWNERS[part] for part in reversed(loc[:-1]) if part in _OWNERS), Rollout)
    near = difflib.get_close_matches(str(loc[-1]), owner.model_fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(owner.model_fields)}"
    return f"is not a field of {owner.__name__}; {hint}"


def spread_sample(groups: Mapping[str, str], *, limit: int | None, seed: int) -> list[str]:
    """At most `limit` of the ids in `groups` (id -> group), taken in turn from every group.

    The order inside a group is drawn from `seed` and the group's name, so a smaller sample is the beginning of a
    larger one. Raises ConfigError if limit is negative.
    """
    if limit is not None and limit < 0:
        raise ConfigError(f"limit: expected 0 or more, found {limit}")
    queues: dict[str, list[str]] = {}
    for name, group in groups.items():
        queues.setdefault(group, []).append(name)
    for group, queue in queues.items():
        queue.sort()
        random.Random(f"{seed}:{group}").shuffle(queue)
    longest = max(map(len, queues.values()), default=0)
    dealt = [queue[i] for i in range(longest) for queue in queues.values() if i < len(queue)]
    return dealt[:limit]


class FileWorkload:
    """The rollouts of one JSONL file."""

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        keep: Callable[[Rollout], bool] = lambda rollout: True,
        lenient: bool = False,
    ) -> None:
        """name: None for the file's; keep: which rollouts to use; lenient: pass over bad lines, listed in `bad_lines`.

        Raises ConfigError if there is no such file; nothing else is ever used in its place.
        """
        self.path = require_file(path)
        self.name = name or path.name.removesuffix(".gz").removesuffix(".jsonl")
        self.lenient = lenient
        self.bad_lines: list[BadLine] = []
        self._keep = keep

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterator[Rollout]:
        """The file's rollouts in its order; a limit spreads over the label `category` where there is one.

        Raises ConfigError if no rollout of the file is kept.
        """
        chosen: set[str] | None = None
        if limit is not None:
            groups = {r.id: str(r.labels.get("category", "")) for r in self._kept()}
            chosen = set(spread_sample(groups, limit=limit, seed=seed))
        yield from (r for r in self._kept() if chosen is None or r.id in chosen)

    def _kept(self) -> Iterator[Rollout]:
        self.bad_lines.clear()
        kept = 0
        for rollout in read_rollouts(self.path, on_bad=self.bad_lines.append if self.lenient else None):
            if self._keep(rollout):
                kept += 1
                yield rollout
        if not kept:
            why = f"; {len(self.bad_lines)} bad lines, first: {self.bad_lines[0]}" if self.bad_lines else ""
            raise ConfigError(f"{self.path}: no rollout in it matches what was asked for{why}")
