"""Mutated traces: nothing but our own errors, and no good rollout is lost beside a bad one."""

from __future__ import annotations

import copy
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import DATA, chat, imported, said

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import parse_rollout, write_rollouts
from agentbench_spec.rollouts.importing import RowFault, convert_row

BOUNDED = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
GOOD = [chat(said(name), id=name) for name in ("first", "last")]
ODD: list[Any] = [
    *(None, True, -1, 10**30, float("nan"), float("inf"), "", " ", "\ud800", "[", "{}", "exit", "user", "x" * 300),
    *([], {}, [[]], [None], {"role": "user"}, {"role": "assistant", "content": "x"}, [{"role": "tool"}]),
    *({"action": "run", "source": "agent"}, {"type": "text"}, {"id": None, "function": {"name": "f"}}, "\x00"),
]


@cache
def rows() -> tuple[str, ...]:
    """Every fixture row, and the parsed form of its inner JSON text, as JSON."""
    found: list[Any] = []
    for path in sorted(DATA.rglob("*")):
        if path.is_file():
            text = path.read_text("utf-8")
            if path.suffix == ".jsonl":
                found += [json.loads(line) for line in text.splitlines()]
            else:
                value = json.loads(text)
                found += value if isinstance(value, list) and "role" not in value[0] else [value]
    return tuple(json.dumps(value) for value in found)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every member and item inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inner for place in ((*path, key), *places(item, (*path, key)))]


def mutate(value: Any, data: st.DataObject) -> Any:
    """`value` with one to three members dropped, doubled, replaced or renamed."""
    for _ in range(data.draw(st.integers(1, 3))):
        found = places(value)
        if not found:
            return value
        *path, key = data.draw(st.sampled_from(found))
        holder = value
        for step in path:
            holder = holder[step]
        kind = data.draw(st.sampled_from(["drop", "double", "replace", "rename"]))
        if kind == "drop":
            del holder[key]
        elif kind == "double" and isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[key])))
        elif kind == "rename" and isinstance(holder, dict):
            holder[data.draw(st.sampled_from(["role", "content", "messages", "turns", "id", "?"]))] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    return value


@BOUNDED
@given(st.data())
def test_mutated_rows_are_rollouts_or_faults(data: st.DataObject) -> None:
    """Fails if a damaged row raises anything but RowFault, or gives a rollout that no reader takes."""
    value = mutate(json.loads(data.draw(st.sampled_from(rows()))), data)
    try:
        rollout = convert_row(value, id="r")
    except RowFault as fault:
        assert fault.reason
        return
    stored = json.loads(json.dumps(rollout.model_dump(exclude_defaults=True)).replace("\ud800", "?"))
    assert parse_rollout(Path("x"), 1, stored) == rollout or not rollout.decode_points()


@BOUNDED
@given(st.data())
def test_mutated_rows_never_cost_their_neighbours(data: st.DataObject) -> None:
    """Fails if a damaged row in a file of JSON lines hides the good rows around it, or is not listed."""
    value = mutate(json.loads(data.draw(st.sampled_from(rows()))), data)
    lines = [json.dumps(row).encode() for row in (GOOD[0], value, GOOD[1])]
    good, bad = import_bytes(b"\n".join(lines))
    assert {"t/first", "t/last"} <= good
    assert len(good) + bad == 3


@BOUNDED
@given(st.data())
def test_damaged_bytes_never_cost_other_lines(data: st.DataObject) -> None:
    """Fails if bytes cut out, doubled or overwritten in one line of a file cost another line, or crash the reader."""
    line = bytearray(data.draw(st.sampled_from(rows())).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(line) - 1, 0)))
        to = min(len(line), at + data.draw(st.integers(0, 40)))
        noise = data.draw(st.binary(max_size=6)).replace(b"\n", b" ")
        line[at:to] = data.draw(st.sampled_from([b"", noise, bytes(line[at:to]) * 2, b'"', b"\\", b"]", b"}"]))
    place = data.draw(st.integers(0, 2))
    lines = [json.dumps(row).encode() for row in GOOD]
    lines.insert(place, bytes(line))
    good, _ = import_bytes(b"\n".join(lines))
    assert {"t/first", "t/last"} <= good


@BOUNDED
@given(st.binary(max_size=200), st.sampled_from([b"", b"[", b"{", b"PAR1", b"\x1f\x8b\x08", b'{"messages": [']))
def test_any_bytes_are_listed_or_read(noise: bytes, start: bytes) -> None:
    """Fails if any file at all raises anything but our error, or vanishes."""
    good, bad = import_bytes(start + noise)
    assert len(good) + bad >= 1


def import_bytes(content: bytes) -> tuple[set[str], int]:
    """(ids of the good rollouts, number of bad rows) of a file; what is good can be written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_bytes(content)
        try:
            rollouts, bad = imported(path)
        except ConfigError as error:  # a listener is given, so this would be a fault of the importer
            raise AssertionError(f"raised in place of listing: {error}") from error
        assert write_rollouts(Path(folder) / "out.jsonl", rollouts) == len(rollouts)
    return {rollout.id for rollout in rollouts}, len(bad)
