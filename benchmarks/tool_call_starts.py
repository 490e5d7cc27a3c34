"""Does the embedded target call tools where a call is due? Counts how its greedy replies begin.

    python benchmarks/tool_call_starts.py [--template FILE.jinja] [--limit 3] [--turns 8]

Replays shipped BFCL-v3 rollouts with recorded history and decodes six tokens at each turn: recorded calls and recorded
texts apart. `--template` tries another chat template. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from agentbench_spec import plugins
from agentbench_spec.engine import loading
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.target import Target
from agentbench_spec.rollouts.render import Renderer, stop_ids
from agentbench_spec.runs.fill import Conditions
from agentbench_spec.runs.replay import Replayer


def main() -> None:
    """Count and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--template", type=Path)
    arguments.add_argument("--limit", type=int, default=3)
    arguments.add_argument("--turns", type=int, default=8)
    given = arguments.parse_args()

    loaded = loading.load("smollm2-135m")
    if given.template:
        loaded.tokenizer.chat_template = given.template.read_text(encoding="utf-8")
    stop = stop_ids(loaded.tokenizer, loaded.model.generation_config)
    target = Target(loaded.model, name=loaded.name, capacity=8192)
    renderer = Renderer(loaded.tokenizer, stop=stop)
    conditions = Conditions(limits=Limits(0, 6, frozenset(stop)), max_turns=given.turns)
    replayer = Replayer(target, {"none": plugins.load_drafter("none")}, renderer, conditions, "bfcl_v3")
    begun: Counter[str] = Counter()
    for rollout in plugins.load_workload("bfcl_v3", subset="shipped").rollouts(limit=given.limit):
        for measured in replayer.replay(rollout):
            row = measured.rows[0]
            if row.output_ids is not None:
                due = "call" if rollout.messages[row.message].tool_calls else "text"
                said = "call" if renderer.text(row.output_ids).startswith("<tool_call>") else "text"
                begun[f"{due} due, {said} begun"] += 1
    for what, count in sorted(begun.items()):
        print(f"{what}: {count}")
    print(json.dumps(begun))


if __name__ == "__main__":
    main()
