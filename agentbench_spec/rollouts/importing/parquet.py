"""Rows of a parquet file, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing.jsontext import without_nulls
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = ["parquet_rows"]

_BATCH_ROWS = 8


def parquet_rows(path: Path) -> Iterator[Row | BadLine]:
    """The rows of `path`, without the null members that pad its structs; damage is a BadLine."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        file = pyarrow.parquet.ParquetFile(path, pre_buffer=False)
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            for i in range(batch.num_rows):
                number += 1
                yield _row(path, number, batch.slice(i, 1))
    except (pyarrow.ArrowException, OSError) as error:
        yield BadLine(path, number + 1, None, f"parquet data is cut off or damaged ({error})")


def _row(path: Path, number: int, batch: Any) -> Row | BadLine:
    row = Row(path, number, None)
    try:
        row.value = without_nulls(batch.to_pylist()[0], row.repairs.append)
    except UnicodeDecodeError as error:
        return BadLine(path, number, None, f"holds text that is not UTF-8 ({error})")
    return row
