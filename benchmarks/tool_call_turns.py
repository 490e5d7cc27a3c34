"""Speed-up of a recorded run on the turns in which the target calls a tool, beside all turns.

    python benchmarks/tool_call_turns.py RUN

Reads a run over the shipped BFCL-v3 rollouts on the embedded target. A turn counts as a call if the target's own reply
begins with `<tool_call>`, or, apart from that, if the recorded reply is a call.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.plugins import load_workload
from agentbench_spec.results import metrics
from agentbench_spec.results.costs import paired, speedup
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.intervals import speedup_intervals
from agentbench_spec.results.rows import TurnRow


def line(name: str, drafter: str, rows: Sequence[TurnRow]) -> str:
    """One drafter on one selection of turns."""
    pairs = paired(rows, drafter)
    found, interval = speedup(pairs), speedup_intervals(pairs).pooled
    own = [row for _, row in pairs]
    bounds = f"[{interval.low:.2f}, {interval.high:.2f}]" if interval else "-"
    same = sum(bool(row.identical) for row in own)
    tau = metrics.tau(own).pooled
    return (
        f"{name:16} {drafter:8} {len(own):3} turns  τ {tau:.2f}  speed-up {found.pooled:.2f} {bounds}  identical {same}"
    )


def main() -> None:
    """Read and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    given = arguments.parse_args()
    _, rows = read_run(given.run)
    tokenizer = load_tokenizer("smollm2-135m")
    rollouts = {rollout.id: rollout for rollout in load_workload("bfcl_v3", subset="shipped").rollouts()}
    calling = {
        (row.rollout, row.turn)
        for row in rows
        if row.drafter == metrics.BASELINE and tokenizer.decode(row.output_ids or []).startswith("<tool_call>")
    }
    selections = {
        "calls emitted": [row for row in rows if (row.rollout, row.turn) in calling],
        "calls recorded": [row for row in rows if rollouts[row.rollout].messages[row.message].tool_calls],
        "all turns": rows,
    }
    for name, selected in selections.items():
        for drafter in metrics.by_drafter(rows):
            if drafter != metrics.BASELINE:
                print(line(name, drafter, selected))


if __name__ == "__main__":
    main()
