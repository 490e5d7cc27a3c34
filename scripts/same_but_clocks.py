"""Check that two results folders, made by the same commands, differ in their clocks only.

usage: python scripts/same_but_clocks.py OLD NEW

Runs are paired by the names of their folders, which hold the digests of their settings. Prints every value that
differs; exits with 1 if there is one, or if a run or a row has no counterpart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import MANIFEST, read_run
from agentbench_spec.results.rows import CLOCK_FIELDS
from agentbench_spec.results.throughput.pass_rows import CLOCK_FIELDS as PASS_CLOCK_FIELDS
from agentbench_spec.results.throughput.pass_rows import ROWS, read_rows


def rows_of(folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows of a run, or the passes of a throughput run, by their keys, without clocks."""
    if (folder / ROWS).exists():
        passes = {(row.drafter, str(row.concurrency)): asdict(row) for row in read_rows(folder)}
        return {key: _without(row, PASS_CLOCK_FIELDS) for key, row in passes.items()}
    turns = {(row.rollout, str(row.turn), row.drafter): asdict(row) for row in read_run(folder)[1]}
    return {key: _without(row, CLOCK_FIELDS) for key, row in turns.items()}


def differences(old: Path, new: Path) -> Iterator[str]:
    """What differs between two runs, a line each."""
    before, after = rows_of(old), rows_of(new)
    for key in sorted(before.keys() ^ after.keys()):
        yield f"{new.name}: {' '.join(key)}: only in the {'old' if key in before else 'new'} run"
    for key in sorted(before.keys() & after.keys()):
        for name, value in before[key].items():
            if after[key][name] != value:
                yield f"{new.name}: {' '.join(key)}: {name}: {value} -> {after[key][name]}"


def _without(row: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def main(arguments: list[str]) -> int:
    """Compare all runs below two folders."""
    if len(arguments) != 2:
        print(__doc__)
        return 2
    old, new = ({path.parent.name: path.parent for path in Path(a).rglob(MANIFEST)} for a in arguments)
    lines = [f"{name}: only in one of the folders" for name in sorted(old.keys() ^ new.keys())]
    shared = sorted(old.keys() & new.keys())
    compared = 0
    try:
        for name in shared:
            lines += differences(old[name], new[name])
            compared += len(rows_of(new[name]))
    except ConfigError as error:
        print(error)
        return 2
    print("\n".join([*lines, f"{compared} rows of {len(shared)} runs compared: {len(lines)} differences"]))
    return 1 if lines or not compared else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
