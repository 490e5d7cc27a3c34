"""Rows of data files: tables by Hugging Face `datasets`, the rest by the importer's reader.

JSON keeps that reader, from the hub too: `datasets` 5.2 turns texts that look like dates into dates, asks for another
package where rows look like agent traces, holds a whole array in memory, and loses a file with one bad line without
naming the line. What no data set is published as (packed tables, feather) is left to it as well.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentbench_spec.rollout import BadLine
from agentbench_spec.rollouts import importing

__all__ = ["data_rows"]

_BATCH_ROWS = 8
_PARQUET, _ARROW_STREAM = b"PAR1", b"\xff\xff\xff\xff"


def data_rows(path: Path) -> Iterator[importing.Row | BadLine]:
    """The rows of a data file, told by its content, and what is wrong with those that cannot be read.

    Tables are streamed from where they lie, without a copy in the cache of `datasets`. Raises ConfigError if there is
    no such file.
    """
    head = b""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4)
    if head not in (_PARQUET, _ARROW_STREAM):
        yield from importing.read_rows(path)
        return
    with TemporaryDirectory() as locks:  # a builder locks its cache folder, even if it streams
        yield from _table_rows(path, locks, "parquet" if head == _PARQUET else "arrow")


def _table_rows(path: Path, locks: str, kind: str) -> Iterator[importing.Row | BadLine]:
    import pyarrow

    number = 0
    try:
        opened = _parquet(path, locks) if kind == "parquet" else _arrow(path)
        for table in opened.with_format("arrow").iter(batch_size=_BATCH_ROWS):
            for i in range(table.num_rows):
                number += 1
                yield importing.table_row(path, number, table.slice(i, 1))
    except (pyarrow.ArrowException, OSError) as error:
        yield BadLine(path, number + 1, None, f"{kind} data is cut off or damaged ({error})")
    except ValueError as error:  # a column of a type that `datasets` does not have, such as a map
        reason = f"`datasets` cannot read this {kind} file ({error}); `agentbench-spec rollouts import` may"
        yield BadLine(path, number + 1, None, reason)


def _parquet(path: Path, locks: str) -> Any:
    from datasets import Dataset
    from pyarrow.dataset import ParquetFragmentScanOptions

    lean = ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    return Dataset.from_parquet(
        glob.escape(str(path)),
        streaming=True,
        batch_size=_BATCH_ROWS,
        cache_dir=locks,
        fragment_scan_options=lean,
    )


def _arrow(path: Path) -> Any:
    from datasets import Dataset

    return Dataset.from_file(str(path))
