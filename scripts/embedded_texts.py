"""The texts that drafters of the embedded target learn from: its own replies over all offline workloads.

usage: python scripts/embedded_texts.py [--work FOLDER] [--part I/N] [--count]

The target answers every decode point of the rollouts (agentbench_spec.train.regenerate), so a text is a recorded
context and what the target really says there. A second call goes on where the first was stopped; `--part 1/2` and
`--part 2/2` may run side by side. No rollout that the demo, the recorded runs or the offline tables decode is among
them: BFCL-v3 is split by scenario, coding sessions by session, generated ones by seed and by text. --count says what
there is to answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from agentbench_spec.engine.embedded import NAME as TARGET
from agentbench_spec.engine.embedded import cache_root
from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.plugins import load_workload
from agentbench_spec.rollout import Rollout, read_rollouts, write_rollouts
from agentbench_spec.rollouts.render import Renderer, stop_ids
from agentbench_spec.train.options import TrainConfig
from agentbench_spec.train.regenerate import regenerate

ROOT = Path(__file__).parents[1]
SETTINGS: dict[str, Any] = {"target": TARGET, "max_tokens": 8192, "max_new_tokens": 96}
GENERAL = ("gsm8k", "math500", "humaneval", "mbpp", "livecodebench", "mt_bench", "alpaca")


@dataclass(frozen=True, slots=True)
class Source:
    """Rollouts of one workload."""

    workload: str
    rollouts: int
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    """Those that are measured have 0 to 3."""

    @property
    def name(self) -> str:
        """Unique among the sources."""
        return f"{self.workload}-{self.seed}"

    def built(self) -> Iterator[Rollout]:
        """The rollouts, whether they may be trained on or not."""
        yield from load_workload(self.workload, **self.options).rollouts(seed=self.seed)


def sessions(count: int, characters: int, seed: int) -> Source:
    """Generated tool sessions; contexts grow to about a quarter of `characters` in tokens."""
    options = {"sessions": 2 * count, "turns": 7, "context_characters": characters}
    return Source("synthetic_agent", count, options, seed)


SOURCES = (
    Source("bfcl_v3", 64, {"tools": "involved"}),
    sessions(40, 6_000, seed=11),
    sessions(16, 14_000, seed=12),
    sessions(8, 26_000, seed=13),
    Source("coding_sessions", 9),
    Source("agent_memory_bench", 16, {"offline_standin": True}),
    Source("agent_long_bench", 8, {"offline_standin": True}),
    *(Source(name, 24, {"offline_standin": True}) for name in GENERAL),
)
HELD_OUT = (
    ("synthetic_agent", 1, {"sessions": 2, "turns": 7, "context_characters": 26_000}, 0),
    ("coding_sessions", 2, {}, 3),
)
"""Measured during training beside BFCL-v3; training makes no choice by them. They are those that are recorded."""
HELD_OUT_BFCL = 3


def shipped() -> list[Rollout]:
    """BFCL-v3 rollouts of the package; no scenario of theirs is trained on."""
    return list(read_rollouts(ROOT / "workloads" / "data" / "bfcl_v3_shipped.jsonl"))


def held_out() -> Iterator[Rollout]:
    """A few rollouts that the recorded runs hold, six decode points of each at most."""
    yield from shipped()[:HELD_OUT_BFCL]
    for workload, limit, options, seed in HELD_OUT:
        yield from load_workload(workload, **options).rollouts(limit=limit, seed=seed)


def measured() -> Iterator[Rollout]:
    """Rollouts of these workloads that a run of ours decodes, whatever its seed."""
    for workload in ("agent_memory_bench", "agent_long_bench", *GENERAL):
        for seed in range(4):
            yield from load_workload(workload, offline_standin=True).rollouts(limit=12, seed=seed)
    for seed in range(4):
        yield from load_workload("coding_sessions").rollouts(limit=2, seed=seed)


def said(rollout: Rollout) -> str:
    """What makes two rollouts the same text, whatever they are called."""
    return json.dumps([message.model_dump(mode="json") for message in rollout.messages])


def usable() -> Iterator[tuple[Source, Iterator[Rollout]]]:
    """The rollouts of each source that may be trained on."""
    scenarios = {rollout.labels["scenario"] for rollout in shipped()}
    kept_out = {said(rollout) for rollout in measured()}

    def apart(rollout: Rollout) -> bool:
        return rollout.labels.get("scenario") not in scenarios and said(rollout) not in kept_out

    for source in SOURCES:
        yield source, islice(filter(apart, source.built()), source.rollouts)


def mixed() -> list[Rollout]:
    """All of them in an order in which every beginning holds each source by its share."""
    placed = []
    for source, rollouts in usable():
        found = [rollout.model_copy(update={"id": f"{source.name}/{rollout.id}"}) for rollout in rollouts]
        placed += [((at + 0.5) / len(found), rollout) for at, rollout in enumerate(found)]
    return [rollout for _, rollout in sorted(placed, key=lambda each: (each[0], each[1].id))]


def answer(rollouts: list[Rollout], work: Path, name: str) -> Path:
    """Let the target answer `rollouts`, and give the token file."""
    work.mkdir(parents=True, exist_ok=True)
    data, out = work / f"{name}.jsonl", work / f"{name}_replies.jsonl"
    if not data.is_file():
        write_rollouts(data, rollouts)
    regenerate(TrainConfig(drafter="eagle3", data=str(data), **SETTINGS), out)
    return out


def count(rollouts: list[Rollout]) -> None:
    """Print rollouts, decode points within the window and positions of each source."""
    tokenizer = load_tokenizer(TARGET)
    renderer = Renderer(tokenizer, stop=stop_ids(tokenizer, None))
    totals: dict[str, list[int]] = {}
    for rollout in rollouts:
        lengths = [len(renderer.prompt(rollout, index)) for index in rollout.decode_points()]
        fit = [length for length in lengths if length + SETTINGS["max_new_tokens"] <= SETTINGS["max_tokens"]]
        row = totals.setdefault(rollout.id.split("/")[0], [0, 0, 0])
        for at, more in enumerate((1, len(fit), max(fit, default=0))):
            row[at] += more
    totals["all"] = [sum(column) for column in zip(*totals.values(), strict=True)]
    for name, row in totals.items():
        print(f"{name:28} {row[0]:5} rollouts {row[1]:6} decode points {row[2]:9,} positions")


def main() -> None:
    """Build the rollouts unless they are there, and let the target answer this part of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=cache_root() / "drafters")
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--count", action="store_true")
    options = parser.parse_args()
    if options.count:
        return count(mixed())
    index, parts = map(int, options.part.split("/"))
    torch.set_num_threads(max(torch.get_num_threads() // parts, 1))
    answer(mixed()[index - 1 :: parts], options.work, f"train-{index}of{parts}")
    return None


if __name__ == "__main__":
    main()
