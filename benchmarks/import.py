"""How fast the importer reads traces, and whether its memory stays flat: one generated file per layout.

    python benchmarks/import.py [--megabytes 200] [--layout "json lines"]

Each layout is imported in a process of its own, first a tenth of the file's size, then the whole: the peak memory of
the two must be nearly the same. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORDS = ("def", "return", "self", "value", "error", "test", "import", "path", "line", "file", "class", "print", "None")


def session(number: int) -> dict[str, Any]:
    """A coding session of 20 calls, about 40 KB as JSON."""
    draw = random.Random(number)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": "Fix."},
    ]
    for i in range(20):
        arguments = json.dumps({"command": f"cat file_{draw.randrange(100)}.py"})
        function = {"name": "bash", "arguments": arguments}
        messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": f"c{i}", "function": function}]})
        text = " ".join(draw.choices(WORDS, k=draw.randrange(100, 600))) + "\r\n"
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": text})
    return {"id": f"s{number}", "messages": [*messages, {"role": "assistant", "content": "Done."}]}


def swe_agent(number: int) -> dict[str, Any]:
    """The same session as SWE-agent stores it with exact prompts, observations older than three steps elided."""
    history = session(number)["messages"]
    points = [i for i, message in enumerate(history) if message["role"] == "assistant"]
    stub = {"role": "tool", "content": "Old environment output: (1 lines omitted)"}
    steps = []
    for i in points:
        query = [
            {**stub, "tool_call_id": m["tool_call_id"]} if m["role"] == "tool" and k < i - 6 else m
            for k, m in enumerate(history[:i])
        ]
        steps.append({"action": "", "observation": "", "response": "", "thought": "", "state": {}, "query": query})
    return {"instance_id": f"s{number}", "history": history, "trajectory": steps, "info": {}}


def as_lines(make: Callable[[int], Any]) -> Callable[[Path, int], None]:
    def write(path: Path, size_bytes: int) -> None:
        with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as file:
            for text in texts(make, size_bytes):
                file.write(text + b"\n")

    return write


def as_array(path: Path, size_bytes: int) -> None:
    """One JSON array on a single line."""
    with path.open("wb") as file:
        for i, text in enumerate(texts(session, size_bytes)):
            file.write((b", " if i else b"[") + text)
        file.write(b"]")


def as_parquet(path: Path, size_bytes: int) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [json.loads(text) for text in texts(session, 4 << 20)]
    schema = pyarrow.Table.from_pylist(rows).schema
    with pyarrow.parquet.ParquetWriter(path, schema, compression="snappy") as writer:
        for start in range(max(1, size_bytes >> 22)):
            named = [{**row, "id": f"{start}-{row['id']}"} for row in rows]
            writer.write_table(pyarrow.Table.from_pylist(named, schema=schema), row_group_size=100)


def texts(make: Callable[[int], Any], size_bytes: int) -> Iterator[bytes]:
    written = number = 0
    while written < size_bytes:
        text = json.dumps(make(number)).encode()
        written, number = written + len(text), number + 1
        yield text


LAYOUTS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "json lines": ("t.jsonl", as_lines(session)),
    "json lines, gzip": ("t.jsonl.gz", as_lines(session)),
    "one json array": ("t.json", as_array),
    "parquet": ("t.parquet", as_parquet),
    "swe-agent, exact prompts": ("t.traj", as_lines(swe_agent)),
}


def measure(path: Path) -> dict[str, Any]:
    """Import `path` in a process of its own."""
    command = [sys.executable, __file__, "--one", str(path)]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def import_one(path: Path) -> dict[str, Any]:
    from agentbench_spec.rollout import write_rollouts
    from agentbench_spec.rollouts.importing import import_rollouts

    start, cpu = time.perf_counter(), time.process_time()
    written = write_rollouts(path.with_suffix(".out.jsonl"), import_rollouts([path]))
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    path.with_suffix(".out.jsonl").unlink()
    return {"rollouts": written, "seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak_memory_bytes()}


def peak_memory_bytes() -> int:
    """Largest resident size of this process; ru_maxrss would count the parent's from before the exec."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200, help="JSON bytes per layout, in 10^6")
    parser.add_argument("--layout", action="append", choices=list(LAYOUTS), help="repeatable; default: all")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(import_one(options.one)))
        return
    results: dict[str, Any] = {}
    columns = f"{'MB/s':>7} {'MB/CPU s':>9} {'rollouts/s':>10} {'peak, tenth':>12} {'peak MB':>8}"
    print(f"{'layout':26} {'file MB':>8} {columns}")
    for name in options.layout or LAYOUTS:
        file_name, write = LAYOUTS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file_name
            write(path, options.megabytes * 100_000)
            tenth = measure(path)
            write(path, options.megabytes * 1_000_000)
            whole, size = measure(path), path.stat().st_size
        row = {"file_bytes": size, **whole, "peak_bytes_tenth": tenth["peak_bytes"]}
        results[name] = row
        speed, cpu_speed = (options.megabytes / whole[key] for key in ("seconds", "cpu_seconds"))
        print(
            f"{name:26} {size / 1e6:8.0f} {speed:7.1f} {cpu_speed:9.1f} {whole['rollouts'] / whole['seconds']:10.0f} "
            f"{tenth['peak_bytes'] / 1e6:12.0f} {whole['peak_bytes'] / 1e6:8.0f}"
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
