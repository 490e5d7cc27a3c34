"""Rows as lines of JSON, as a data frame and as an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.rows import COLUMNS, SCHEMA, RoundRow, TurnRow

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_Row = TypeVar("_Row", TurnRow, RoundRow)
_TURN = TypeAdapter(TurnRow)
_ROUND = TypeAdapter(RoundRow)


def row_line(row: TurnRow | RoundRow) -> str:
    """`row` as one line of JSON, newline included. Raises MeasurementError if a value is NaN or infinite."""
    values = asdict(row)
    try:
        return json.dumps(values, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
    except ValueError as error:
        bad = [name for name, value in values.items() if isinstance(value, float) and not abs(value) < float("inf")]
        raise MeasurementError(
            f"{row.rollout} turn {row.turn} {row.drafter}: {', '.join(bad) or error}: not a finite number; use None"
        ) from error


def parse_turn(line: str | bytes, path: Path, number: int) -> TurnRow:
    """The row of line `number` of `path`. Raises ConfigError naming file, line and field."""
    return _parse(_TURN, line, path, number)


def parse_round(line: str | bytes, path: Path, number: int) -> RoundRow:
    """The round of line `number` of `path`. Raises ConfigError naming file, line and field."""
    return _parse(_ROUND, line, path, number)


def parse_object(line: str | bytes, path: Path, number: int) -> dict[str, Any]:
    """The JSON object of line `number` of `path`. Raises ConfigError naming file and line."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: not JSON ({error}); remove the line or restore the file") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:{number}: expected a JSON object, found {type(values).__name__}")
    return values


def _parse(adapter: TypeAdapter[_Row], line: str | bytes, path: Path, number: int) -> _Row:
    values = parse_object(line, path, number)
    refuse_newer(values.get("schema"), f"{path}:{number}")
    try:
        row = adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        where = f"field {name!r}: " if name else ""  # none: pydantic's JSON is stricter than Python's
        raise ConfigError(f"{path}:{number}: {where}{first['msg']} (got {first['input']!r:.80})") from error
    row.schema = SCHEMA
    return row


def refuse_newer(schema: object, where: str) -> None:
    """Raises ConfigError if `schema` is missing, not a number, or newer than this package reads."""
    if not isinstance(schema, int):
        raise ConfigError(f"{where}: field 'schema' is {schema!r}; expected the number {SCHEMA}")
    if schema > SCHEMA:
        raise ConfigError(
            f"{where}: schema {schema} is newer than {SCHEMA}, the newest known here; upgrade the package"
        )


_PANDAS = {int: "Int64", float: "float64", bool: "boolean", str: "object"}


def rows_frame(rows: Sequence[TurnRow]) -> pd.DataFrame:
    """`rows` as a data frame, one column a field in the order of the row; whole numbers and flags keep their nulls."""
    import pandas as pd

    columns = {
        name: pd.Series([getattr(row, name) for row in rows], dtype=_PANDAS.get(kind, "object"))
        for name, kind in COLUMNS.items()
    }
    return pd.DataFrame(columns)


def rows_table(rows: Sequence[TurnRow]) -> pa.Table:
    """`rows` as an Arrow table with explicit types, so that an all-null column keeps its type."""
    import pyarrow as pa

    plain = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), list[int]: pa.list_(pa.int64())}
    plain[list[float]] = pa.list_(pa.float64())
    schema = pa.schema([(name, plain.get(kind, pa.map_(pa.string(), pa.string()))) for name, kind in COLUMNS.items()])
    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    columns["labels"] = [list(row.labels.items()) for row in rows]
    return pa.table(columns, schema=schema)
