"""What keeping the prefix between turns saves, and what the harness itself costs.

    python benchmarks/replay_rate.py [--target smollm2-135m] [--turns 12]

Replays one shipped BFCL-v3 rollout twice, with plain decoding and a cap of a few tokens: once keeping every position
that the next prompt repeats, once prefilling every turn from scratch. Prints prefill seconds as a ratio, and the share
of decoding time that is neither drafter nor target (`other_s`). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from agentbench_spec.config import load_config
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.runs.execute import run


def replayed(prefix: str, target: str, turns: int, folder: Path) -> list[TurnRow]:
    """Rows of the replay under one prefix mode."""
    flags = {
        "target.source": target,
        "workload.options": {"subset": "shipped"},
        "workload.limit": 1,
        "drafters": ["none", "ngram"],
        "decode.max_new_tokens": 24,
        "replay.max_turns": turns,
        "replay.prefix": prefix,
    }
    run(load_config(flags=flags), folder / prefix)
    return read_run(folder / prefix)[1]


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--target", default="smollm2-135m")
    arguments.add_argument("--turns", type=int, default=12)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {prefix: replayed(prefix, given.target, given.turns, Path(folder)) for prefix in ("kept", "cold")}
    plain = {prefix: [row for row in own if row.drafter == "none"] for prefix, own in rows.items()}
    prefill_s = {prefix: sum(row.prefill_s or 0.0 for row in own) for prefix, own in plain.items()}
    tokens = {prefix: sum(row.new_tokens or 0 for row in own) for prefix, own in plain.items()}
    same = [row.output_ids for row in rows["kept"]] == [row.output_ids for row in rows["cold"]]
    decode_s = sum(row.attributed_decode_s or 0.0 for row in rows["kept"])
    other_share = sum(row.other_s or 0.0 for row in rows["kept"]) / decode_s
    print(f"{len(plain['kept'])} turns up to {plain['kept'][-1].context_tokens} tokens of context")
    for prefix in ("kept", "cold"):
        print(f"{prefix}: {tokens[prefix]:,} positions prefilled in {prefill_s[prefix]:.2f} s")
    print(f"from scratch / kept: {prefill_s['cold'] / prefill_s['kept']:.2f}x the seconds; same output: {same}")
    print(f"harness (other_s): {other_share:.2%} of decoding")
    print(
        json.dumps(
            {
                "turns": len(plain["kept"]),
                "prefill_s": prefill_s,
                "prefilled_tokens": tokens,
                "ratio": prefill_s["cold"] / prefill_s["kept"],
                "same_output": same,
                "other_share": other_share,
            }
        )
    )


if __name__ == "__main__":
    main()
