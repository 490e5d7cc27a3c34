"""`--k auto` against every fixed K, on the texts of the recorded runs and on all of them mixed; one run a text.

usage: nice python benchmarks/chosen_k.py [--drafter suffix --drafter dlite] [--k 1 ...] [--limit N] [--out FOLDER]

Settings are those of each run under results/recorded. The mixed text takes their rollouts in turn, so what pays changes
from rollout to rollout. Runs go on where they were killed, and finished ones are read again. A line a text and drafter:
seconds per token with the chosen K over those with the best fixed one, on the same turns. Exit code 1 if a chosen K is
slower than the best fixed one by more than 3 % beyond its interval, or is not faster than it on the mixed text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.reproduce.ksweep import AUTO, NEAR, against_best, chosen_line
from agentbench_spec.reproduce.reuse import measured_run
from agentbench_spec.results.folder import read_manifest, read_run
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.rollout import write_rollouts
from agentbench_spec.runs.source import read_source

RECORDED = Path(__file__).parents[1] / "results" / "recorded"
MIXED = "mixed"


Text = tuple[str, RunConfig]
"""Its name, and what is run on it."""


def texts(drafters: Sequence[str], ks: Sequence[int], limit: int | None, out: Path) -> Iterator[Text]:
    """The recorded texts, those of live runs left out, and the mixed one, its rollouts written to a file."""
    flags = {"drafters": [BASELINE, *drafters], "decode.sweep": [*ks, AUTO], "decode.k": max(ks)}
    own = {folder.name: read_manifest(folder)["settings"] for folder in sorted(RECORDED.iterdir())}
    own = {name: base for name, base in own.items() if base["replay"]["history"] != "live"}
    found = {name: load_config(base=base, flags={**flags, "workload.limit": limit}) for name, base in own.items()}
    yield from found.items()
    in_turn = zip_longest(*(read_source(config).rollouts for config in found.values()))
    path = out / f"{MIXED}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rollouts(path, [rollout for rollout in chain.from_iterable(in_turn) if rollout is not None])
    first = next(iter(own.values()))
    whole = {**first, "workload": {"name": str(path)}}
    yield MIXED, load_config(base=whole, flags=flags)


def main() -> int:
    """Run what is missing and print a line for each text and drafter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", action="append", help="default: suffix and dlite")
    parser.add_argument("--k", type=int, action="append", help="default: 1 to 7")
    parser.add_argument("--limit", type=int, help="rollouts of each text; default: as recorded")
    parser.add_argument("--out", type=Path, default=Path("results/chosen_k"))
    options = parser.parse_args()
    drafters, ks = options.drafter or ["suffix", "dlite"], options.k or list(range(1, 8))
    failed = 0
    for name, config in texts(drafters, ks, options.limit, options.out):
        rows = read_run(measured_run(config, options.out, print))[1]
        for drafter in drafters:
            found = against_best(rows, drafter.partition("=")[0], ks)
            if found is None or found.ratio is None:
                print(f"{name}: {drafter}: not measured")
                failed += 1
                continue
            print(f"{name}: {chosen_line(found)} ({found.turns} turns)")
            slower = found.interval is not None and found.interval.low > NEAR
            failed += slower or (name == MIXED and found.ratio >= 1)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
