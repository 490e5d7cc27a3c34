"""Tables: parquet, and what `datasets` saves, read as rows wherever they lie; and why JSON is not read that way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentbench_spec_workloads.tabular import data_rows

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing import Row, import_rollouts

ROWS: list[dict[str, Any]] = [
    {
        "id": f"s{n}",
        "messages": [
            {"role": "user", "content": f"Question {n}"},
            {"role": "assistant", "content": None if n % 2 else "An answer", "name": "a" if n % 2 else None},
            {"role": "assistant", "content": "The end"},
        ],
    }
    for n in range(20)
]


def saved(folder: Path, rows: list[dict[str, Any]] = ROWS, shards: int = 3) -> Path:
    datasets.Dataset.from_list(rows).save_to_disk(str(folder), num_shards=shards)
    return folder


def values(path: Path) -> list[Any]:
    found = list(data_rows(path))
    assert [row.number if isinstance(row, Row) else row.line for row in found] == list(range(1, len(found) + 1))
    return [row.value if isinstance(row, Row) else row.reason for row in found]


def test_a_saved_data_set_is_read_as_its_parquet_is(tmp_path: Path) -> None:
    """Fails if rows are lost, repeated or read otherwise from arrow shards than from parquet, padding included, or if
    the files that describe the data set pass for traces."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "all.parquet", row_group_size=7)
    folder = saved(tmp_path / "saved")
    assert [row for shard in sorted(folder.glob("*.arrow")) for row in values(shard)] == values(
        tmp_path / "all.parquet"
    )
    bad: list[BadLine] = []
    rollouts = list(import_rollouts([folder], on_bad=bad.append))
    assert bad == [] and len(rollouts) == len(ROWS)
    assert rollouts[8].source["file"] == "saved/data-00001-of-00003.arrow" and rollouts[8].source["row"] == 2


def test_what_map_left_beside_a_saved_data_set_is_not_data(tmp_path: Path) -> None:
    """Fails if the results that `datasets` keeps in the folder it works on are replayed as rollouts."""
    folder = saved(tmp_path / "saved")
    datasets.load_from_disk(str(folder)).map(lambda row: {"id": f"{row['id']}-again"})
    assert list(folder.glob("cache-*.arrow")), "nothing was kept, so this test shows nothing"
    assert len(list(import_rollouts([folder]))) == len(ROWS)


def test_a_file_lies_where_it_lies(tmp_path: Path) -> None:
    """Fails if brackets or stars in a path are taken for patterns, or an ending is needed."""
    folder = tmp_path / "run [v1] *"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows")
    assert len(values(folder / "rows")) == len(values(next(saved(folder / "saved", shards=1).glob("*.arrow")))) == 20


def test_a_table_is_read_where_nothing_may_be_written(tmp_path: Path) -> None:
    """Fails if a machine with a read-only cache of `datasets` cannot read a table, or `datasets` is loaded before one
    is read."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    code = """
    import sys
    from pathlib import Path
    from agentbench_spec_workloads.tabular import data_rows
    print("datasets" in sys.modules, "huggingface_hub" in sys.modules, len(list(data_rows(Path(sys.argv[1])))))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "a.parquet")]
    env = {**os.environ, "HF_DATASETS_CACHE": "/proc/read-only"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False", "20"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_damage_is_named_with_its_place(tmp_path: Path, kind: str) -> None:
    """Fails if a table that was cut off raises, gives no reason, or its last rows are lost without a word."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "good.parquet")
    whole = tmp_path / "good.parquet" if kind == "parquet" else next(saved(tmp_path / "s", shards=1).glob("*.arrow"))
    cut = tmp_path / f"cut.{kind}"
    cut.write_bytes(whole.read_bytes()[:-600])
    assert f"{kind} data is cut off or damaged" in values(cut)[-1]
    with pytest.raises(ConfigError, match="no such file"):
        values(tmp_path / "gone.parquet")


def test_tables_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    """Fails if a column type that `datasets` lacks, text that is not UTF-8, or a saved data set without its shards ends
    in a traceback, or a feather file is read by nobody."""
    pairs = pa.array([[("a", 1)]], type=pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"m": pairs}), tmp_path / "m.parquet")
    assert "cannot read this parquet file" in values(tmp_path / "m.parquet")[0]
    offsets, text = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffa")
    pq.write_table(pa.table({"t": pa.StringArray.from_buffers(2, offsets, text)}), tmp_path / "t.parquet")
    bad, good = values(tmp_path / "t.parquet")
    assert "not UTF-8" in bad and good == {"t": "a"}
    table = pa.table({"t": ["a"]})
    with pa.OSFile(str(tmp_path / "f.feather"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert values(tmp_path / "f.feather") == [{"t": "a"}]
    folder = saved(tmp_path / "saved")
    (folder / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(ConfigError, match=r"saved: a data set saved by `datasets` that it cannot read"):
        list(import_rollouts([folder]))


def test_json_is_not_read_by_the_library_for_these_reasons(tmp_path: Path) -> None:
    """Fails if a reader of JSON takes dates for dates, needs another package for rows that look like traces, or does
    not name the bad line and go on; and, of `datasets`, if it has learnt all of this, so that ours may go."""
    dated = {"id": "a", "date": "2023-08-21T00:00:00"}
    trace = {"id": "b", "source": "x", "model": "m", "system_prompt": "", "messages": [{"role": "user", "content": ""}]}
    path = tmp_path / "a.jsonl"
    path.write_text(f'{json.dumps(dated)}\n{{"id": \n{json.dumps(trace)}\n')
    assert values(path)[::2] == [dated, trace] and "JSON" in values(path)[1]

    def read(value: dict[str, Any]) -> Any:
        path.write_text(json.dumps(value) + "\n")
        return next(iter(datasets.Dataset.from_json(str(path), streaming=True, cache_dir=str(tmp_path / "cache"))))

    assert read(dated) != dated
    with pytest.raises(ImportError, match="teich"):
        read(trace)
