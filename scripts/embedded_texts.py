"""The texts that drafters of the embedded target learn from: its own replies over all offline workloads.

usage: python scripts/embedded_texts.py {bfcl,mix,held_out} [--work FOLDER] [--part I/N] [--count]

The target answers every decode point of the rollouts (agentbench_spec.train.regenerate), so a text is a recorded
context and what the target really says there. A second call goes on where the first was stopped; `--part 1/2` and
`--part 2/2` may run side by side. No rollout that the demo, the recorded runs or the offline tables decode is among
them: BFCL-v3 is split by scenario, coding sessions by session, generated ones by seed and by text. --count says what
there is to answer.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
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
from agentbench_spec.writing import write_bytes

ROOT = Path(__file__).parents[1]
WORK = cache_root() / "drafters"
MAX_NEW_TOKENS = 96
PIECE_TURNS = 3
"""Decode points of a piece of a session, at least."""
GENERAL = ("gsm8k", "math500", "humaneval", "mbpp", "livecodebench", "mt_bench", "alpaca")


@dataclass(frozen=True, slots=True)
class Source:
    """Rollouts of one workload."""

    workload: str
    rollouts: int
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    """Those that are measured have 0 to 3."""
    piece: int | None = None
    """Cut rollouts into pieces of about so many characters, for sessions that outgrow the window; None: leave them."""

    @property
    def name(self) -> str:
        """Unique among the sources."""
        return f"{self.workload}-{self.seed}"

    def built(self) -> Iterator[Rollout]:
        """The rollouts, whether they may be trained on or not."""
        rollouts = load_workload(self.workload, **self.options).rollouts(seed=self.seed)
        if self.piece is None:
            yield from rollouts
        else:
            cut = [piece for rollout in rollouts for piece in pieces(rollout, self.piece)]
            random.Random(self.seed).shuffle(cut)
            yield from cut


def pieces(rollout: Rollout, characters: int) -> Iterator[Rollout]:
    """Stretches of a session, of about so many characters, that begin with what the agent is told; dense ones only."""
    starts, held = [0], 0
    for at, message in enumerate(rollout.messages):
        if held > characters and message.role != "assistant":
            starts, held = [*starts, at], 0
        held += len(message.content or "")
    for start, stop in pairwise((*starts, len(rollout.messages))):
        messages = rollout.messages[start:stop]
        piece = rollout.model_copy(update={"id": f"{rollout.id}[{start}:{stop}]", "messages": messages})
        length = sum(len(message.content or "") for message in messages)
        if len(piece.decode_points()) >= PIECE_TURNS and length <= 2 * characters and messages[0].role != "assistant":
            yield piece


def sessions(count: int, characters: int, seed: int) -> Source:
    """Generated tool sessions; contexts grow to about a quarter of `characters` in tokens."""
    options = {"sessions": count, "turns": 7, "context_characters": characters}
    return Source("synthetic_agent", count, options, seed)


SOURCES = (
    Source("bfcl_v3", 26, {"tools": "involved"}),
    sessions(17, 6_000, seed=11),
    sessions(7, 14_000, seed=12),
    sessions(3, 26_000, seed=13),
    Source("coding_sessions", 3),
    Source("coding_sessions", 32, seed=2, piece=8_000),
    Source("agent_memory_bench", 7, {"offline_standin": True}),
    Source("agent_long_bench", 4, {"offline_standin": True}),
    *(Source(name, 10, {"offline_standin": True}) for name in GENERAL),
)
HELD_OUT: tuple[tuple[str, int, dict[str, Any], int], ...] = (
    ("bfcl_v3", 4, {"subset": "shipped"}, 0),
    ("synthetic_agent", 1, {"sessions": 2, "turns": 7, "context_characters": 26_000}, 0),
    ("coding_sessions", 2, {}, 3),
)
"""Workload, rollouts, options, seed of what is measured during training, which makes no choice by it."""
HELD_OUT_TURNS = 6
BFCL_PARTS, BFCL_BUILT = (range(40), range(99, 157)), 260
"""Rollouts of the first round, of those whose scenario is not held out: what two processes had answered."""


def bfcl_alone() -> list[Rollout]:
    """What the first round learns from."""
    built = list(load_workload("bfcl_v3", tools="involved").rollouts(limit=BFCL_BUILT, seed=0))
    kept_out = held_out_scenarios()
    usable = [rollout for rollout in built if rollout.labels["scenario"] not in kept_out]
    return [usable[index] for part in BFCL_PARTS for index in part]


def mixed() -> list[Rollout]:
    """Rollouts of all sources, in an order in which every beginning holds each source by its share."""
    scenarios, kept_out = held_out_scenarios(), list(measured())
    texts = {said(rollout) for rollout in kept_out}
    recorded = {rollout.id for rollout in kept_out if rollout.workload == "coding_sessions"}

    def apart(rollout: Rollout) -> bool:
        session = rollout.id.partition("[")[0]
        return (
            rollout.labels.get("scenario") not in scenarios and said(rollout) not in texts and session not in recorded
        )

    placed = []
    for source in SOURCES:
        found = list(islice(filter(apart, source.built()), source.rollouts))
        for at, rollout in enumerate(found):
            name = f"{source.name}/{rollout.id}"
            placed.append(((at + 0.5) / len(found), name, rollout.model_copy(update={"id": name})))
    return [rollout for *_, rollout in sorted(placed, key=lambda each: each[:2])]


def held_out() -> list[Rollout]:
    """Beginnings of rollouts that the recorded runs hold."""
    found = []
    for workload, limit, options, seed in HELD_OUT:
        for rollout in load_workload(workload, **options).rollouts(limit=limit, seed=seed):
            *_, last = islice(rollout.decode_points(), HELD_OUT_TURNS)
            found.append(rollout.model_copy(update={"messages": rollout.messages[: last + 1]}))
    return found


def held_out_scenarios() -> set[Any]:
    """BFCL's categories are variants of the same scenarios, so rollouts are told apart by it.

    Held out are those of the rollouts in the package, and of the first that a run without a seed takes.
    """
    shipped = read_rollouts(ROOT / "workloads" / "data" / "bfcl_v3_shipped.jsonl")
    first = load_workload("bfcl_v3", tools="involved").rollouts(limit=20, seed=0)
    return {rollout.labels["scenario"] for rollout in (*shipped, *first)}


def measured() -> Iterator[Rollout]:
    """Rollouts that a run of ours may decode, of workloads that another seed need not change."""
    for workload in ("agent_memory_bench", "agent_long_bench", *GENERAL):
        for seed in range(4):
            yield from load_workload(workload, offline_standin=True).rollouts(limit=12, seed=seed)
    for seed in range(4):
        yield from load_workload("coding_sessions").rollouts(limit=2, seed=seed)


def said(rollout: Rollout) -> str:
    """What makes two rollouts the same text, whatever they are called."""
    return json.dumps([message.model_dump(mode="json") for message in rollout.messages])


KINDS: dict[str, tuple[Callable[[], list[Rollout]], int]] = {
    "bfcl": (bfcl_alone, 4096),
    "mix": (mixed, 8192),
    "held_out": (held_out, 8192),
}
"""Name -> its rollouts, and the most tokens of a text."""


def replies(kind: str, work: Path) -> Path:
    """The token file of the target's replies to texts of this kind; what parts have answered is taken over."""
    data, out = rollouts_file(kind, work, kind), replies_file(work, kind)
    parts = sorted(work.glob(f"{kind}-*of*_replies.jsonl"))
    if parts and not out.is_file():
        places = {f"{r.id}@{at}": place for place, r in enumerate(read_rollouts(data)) for at in r.decode_points()}
        lines = [line for part in parts for line in part.read_text("utf-8").splitlines()]
        placed = [(places[name], line) for line in lines if (name := json.loads(line)["id"]) in places]
        placed.sort(key=lambda each: each[0])
        write_bytes(out, "".join(line + "\n" for _, line in placed).encode())
    answer(kind, work, kind)
    return out


def answer(kind: str, work: Path, name: str, part: slice = slice(None)) -> None:
    """Let the target answer what is missing in a part of the rollouts; NAME.jsonl and NAME_replies.jsonl hold both."""
    data = rollouts_file(kind, work, name, part)
    settings = {"target": TARGET, "max_tokens": KINDS[kind][1], "max_new_tokens": MAX_NEW_TOKENS}
    regenerate(TrainConfig(drafter="eagle3", data=str(data), **settings), replies_file(work, name))


def rollouts_file(kind: str, work: Path, name: str, part: slice = slice(None)) -> Path:
    """The file of a part of the rollouts; it is built once."""
    path = work / f"{name}.jsonl"
    if not path.is_file():
        work.mkdir(parents=True, exist_ok=True)
        write_rollouts(path, KINDS[kind][0]()[part])
    return path


def replies_file(work: Path, name: str) -> Path:
    """Where the replies to NAME.jsonl are or will be."""
    return work / f"{name}_replies.jsonl"


def count(kind: str) -> None:
    """Print rollouts, decode points within the window and positions of each source."""
    build, max_tokens = KINDS[kind]
    tokenizer = load_tokenizer(TARGET)
    renderer = Renderer(tokenizer, stop=stop_ids(tokenizer, None))
    totals: dict[str, list[int]] = {}
    for rollout in build():
        lengths = [len(renderer.prompt(rollout, index)) for index in rollout.decode_points()]
        fit = [length for length in lengths if length + MAX_NEW_TOKENS <= max_tokens]
        row = totals.setdefault(rollout.id.split("/")[0] if kind == "mix" else rollout.workload, [0, 0, 0])
        for at, more in enumerate((1, len(fit), max(fit, default=0))):
            row[at] += more
    totals["all"] = [sum(column) for column in zip(*totals.values(), strict=True)]
    for name, row in totals.items():
        print(f"{name:28} {row[0]:5} rollouts {row[1]:6} decode points {row[2]:9,} positions")


def main() -> None:
    """Build the rollouts unless they are there, and let the target answer this part of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--part", metavar="I/N")
    parser.add_argument("--count", action="store_true")
    options = parser.parse_args()
    if options.count:
        count(options.kind)
    elif options.part:
        index, parts = map(int, options.part.split("/"))
        torch.set_num_threads(max(torch.get_num_threads() // parts, 1))
        answer(options.kind, options.work, f"{options.kind}-{index}of{parts}", slice(index - 1, None, parts))
    else:
        replies(options.kind, options.work)


if __name__ == "__main__":
    main()
