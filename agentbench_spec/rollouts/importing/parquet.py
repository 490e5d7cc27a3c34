"""Rows of a parquet or arrow file, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing.jsontext import without_nulls
from agentbench_spec.rollouts.importing.trace_row import Row

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ARROW_MAGIC", "ARROW_STREAM_MAGIC", "PARQUET_MAGIC", "table_row", "table_rows"]

PARQUET_MAGIC = b"PAR1"
ARROW_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
_BATCH_ROWS = 8


def table_rows(path: Path, file: IO[bytes], head: bytes) -> Iterator[Row | BadLine]:
    """The rows of an open table, without the null members that pad its structs; damage is a BadLine.

    head: how it begins, which tells parquet from arrow's file and stream. A map is an object.
    """
    import pyarrow

    number = 0
    name = "parquet" if head.startswith(PARQUET_MAGIC) else "arrow"
    try:
        for batch in _batches(file, head):
            has_maps = "map<" in str(batch.schema)
            for i in range(batch.num_rows):
                number += 1
                yield table_row(path, number, batch.slice(i, 1), has_maps=has_maps)
    except (pyarrow.ArrowException, OSError) as error:
        yield BadLine(path, number + 1, None, f"{name} data is cut off or damaged ({error})")


def _batches(file: IO[bytes], head: bytes) -> Iterator[Any]:
    import pyarrow.parquet

    if head.startswith(PARQUET_MAGIC):
        yield from pyarrow.parquet.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=_BATCH_ROWS)
    elif head.startswith(ARROW_MAGIC):
        reader = pyarrow.ipc.open_file(file)
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        yield from pyarrow.ipc.open_stream(file)


def table_row(path: Path, number: int, batch: Any, *, has_maps: bool = False) -> Row | BadLine:
    """The one row of `batch`, without the null members that pad its structs; has_maps: give maps as objects."""
    row = Row(path, number, None)
    try:
        value = batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        return BadLine(path, number, None, f"holds text that is not UTF-8 ({error})")
    if has_maps:
        value = {field.name: _with_objects(value[field.name], field.type) for field in batch.schema}
    row.value = without_nulls(value, row.repairs.append)
    return row


def _with_objects(value: Any, kind: pyarrow.DataType) -> Any:
    """`value` of arrow type `kind`, with each map, which arrow gives as pairs, as an object."""
    from pyarrow import types

    if value is None or not types.is_nested(kind):
        return value
    if types.is_map(kind):
        return {str(key): _with_objects(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: _with_objects(value.get(field.name), field.type) for field in kind}
    if hasattr(kind, "value_type"):
        return [_with_objects(item, kind.value_type) for item in value]
    return value
