"""A/A: plain decoding against itself, over many seeded runs on a toy target; how often the interval contains 1.00.

usage: nice python benchmarks/aa.py [--runs 100] [--rollouts 6]

Each run replays its own rollouts, with its own seed, as `run --aa` does: balanced order, repeats of disturbed turns,
steady seconds, jackknife t over rollouts. Exit code 1 if fewer than 93 of 100 intervals contain 1.00.
"""

from __future__ import annotations

import argparse
import random

import torch
from agentbench_spec_drafters.none import NoDrafter

from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.target import Target
from agentbench_spec.results.clock_checks import Ratio, null_speedup
from agentbench_spec.results.metrics import AGAIN, BASELINE
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.runs.fill import Conditions
from agentbench_spec.runs.replay import Replayer
from agentbench_spec.testing import toy_target

TURNS, OUTPUT_TOKENS, LEAST = 3, 12, 0.93


class Words:
    """Renders messages of token ids in decimal."""

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        """As `Renders` has it."""
        return [token for message in rollout.messages[:index] for token in self._ids(message)] + [62]

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        """As `Renders` has it."""
        return self._ids(rollout.messages[index])

    def text(self, ids: list[int]) -> str:
        """As `Renders` has it."""
        return " ".join(map(str, ids))

    def _ids(self, message: Message) -> list[int]:
        return [60, *map(int, message.content.split())]


def rollout(run: int, number: int) -> Rollout:
    """Users and assistants in turn, with words of their own."""
    draw = random.Random(f"{run}/{number}")
    roles = ["user", "assistant"] * TURNS
    messages = [Message(role=role, content=" ".join(str(draw.randrange(60)) for _ in range(20))) for role in roles]
    return Rollout(id=f"r{number}", workload="toy", messages=tuple(messages))


def measure(target: Target, run: int, rollouts: int) -> Ratio | None:
    """The null of one run."""
    drafters = {name: NoDrafter() for name in (BASELINE, AGAIN)}
    for drafter in drafters.values():
        drafter.open(target.info, rows=1, capacity=target.capacity)
    conditions = Conditions(limits=Limits(0, OUTPUT_TOKENS), seed=run, repeats=2)
    replayer = Replayer(target, drafters, Words(), conditions, "toy")
    turns = (replayer.replay(rollout(run, i), TURNS * i) for i in range(rollouts))
    return null_speedup([row for replayed in turns for turn in replayed for row in turn.rows])


def main() -> int:
    """Print every run whose interval leaves 1.00 out, and how many do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rollouts", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = toy_target()
    measure(target, -1, 2)  # first calls allocate
    contain = 0
    for run in range(options.runs):
        null = measure(target, run, options.rollouts)
        assert null is not None and null.interval is not None
        contain += not null.excludes_one
        if null.excludes_one:
            print(f"seed {run}: {null.value:.4f} [{null.interval.low:.4f}, {null.interval.high:.4f}]")
    print(f"{contain} of {options.runs} intervals contain 1.00")
    return 0 if contain >= LEAST * options.runs else 1


if __name__ == "__main__":
    raise SystemExit(main())
