"""Replay the sessions that a live run took, emitting what its target said, and compare τ turn by turn.

usage: python scripts/forced_replay.py RUN [--out FOLDER]

Every drafter must have the same output, rounds and τ as in the live run, on every turn; and, where the turn was not cut
by its cap, the same accepted drafts: beyond the cap a live target has an opinion on drafts, and a record has none.
Prints what differs; exits with 1 if anything does, or if a turn has no counterpart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import LIVE, read_run
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.runs.execute import run

SAME = ("status", "context_tokens", "output_ids", "rounds", "emitted", "tau")
SAME_UNCUT = ("matched", "tau_raw")


def forced(folder: Path) -> RunConfig:
    """The settings of a live run, with the sessions it took for a workload. Raises ConfigError if it was not live."""
    manifest, _ = read_run(folder)
    settings = manifest["settings"]
    if settings["replay"]["history"] != "live":
        raise ConfigError(f"{folder} is a run of recorded sessions, not a live one")
    if settings.get("backend", "engine") != "engine":
        raise ConfigError(f"{folder}: servers emit no record; use run --workload parts/NAME/{LIVE} --mode forced")
    settings["replay"]["history"] = "recorded"
    settings["decode"]["mode"] = "forced"
    settings["workload"] = {"name": str(folder / LIVE)}
    return RunConfig.model_validate(settings)


def differences(live: Path, again: Path) -> Iterator[str]:
    """What differs between two runs in other than clocks and modes, a line each."""
    before, after = (_by_turn(read_run(folder)[1]) for folder in (live, again))
    for key in sorted(before.keys() ^ after.keys()):
        yield f"{' '.join(map(str, key))}: only in the {'live run' if key in before else 'replay'}"
    for key in sorted(before.keys() & after.keys()):
        for name in (*SAME, *(SAME_UNCUT if before[key].stop_reason != "length" else ())):
            old, new = getattr(before[key], name), getattr(after[key], name)
            if old != new:
                yield f"{' '.join(map(str, key))}: {name}: {old} -> {new}"


def _by_turn(rows: list[TurnRow]) -> dict[tuple[str, int, str], TurnRow]:
    return {(row.rollout, row.turn, row.drafter): row for row in rows}


def main() -> int:
    """Replay and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="keep the replay there (a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = given.out or Path(temporary) / "forced"
        try:
            run(forced(given.run), out, tell=print)
        except ConfigError as error:
            print(error)
            return 2
        lines = list(differences(given.run, out))
        rows = read_run(given.run)[1]
    print(*lines, sep="\n", end="\n" if lines else "")
    turns = {(row.rollout, row.turn) for row in rows}
    print(f"{len(rows)} rows of {len(turns)} turns replayed: {len(lines)} differences")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
