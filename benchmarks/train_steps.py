"""How long a training step of each embedded drafter takes: forward, backward and AdamW on one text.

The target's tables are real, its states are noise: a step costs the same. Prints JSON lines; run it on the machine
that is to train, idle:

    python benchmarks/train_steps.py --threads 2
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from agentbench_spec.engine import loading
from agentbench_spec.engine.target import Target
from agentbench_spec.train.features import Features
from agentbench_spec.train.interface import Setting
from agentbench_spec.train.options import TrainConfig
from agentbench_spec.train.parallel import World
from agentbench_spec.train.step import Step
from agentbench_spec.train.texts import Text, token_counts
from agentbench_spec.train.trainees import load_trainee
from agentbench_spec.train.trainer import Data, Trainer

PLAN: dict[str, dict[str, Any]] = {
    "eagle3": {"draft_vocab_size": 4096},
    "dflash": {"depth": 2, "taps": 3, "block_size": 8},
    "dspark": {"depth": 2, "taps": 3, "block_size": 7, "rank": 32, "tables": False},
    "dlite": {"depth": 2, "slots": 7, "rank": 56, "window": 32},
}
"""The sizes of the shipped drafters."""


class Noise:
    """Features of the right shape."""

    def __init__(self, length: int, layers: int, hidden: int, vocab: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self._found = Features(
            torch.randn(length, layers, hidden, generator=draw),
            torch.randn(length, hidden, generator=draw),
            torch.randint(vocab, (length,), generator=draw),
        )

    def __getitem__(self, index: int) -> Features:
        return self._found


def measure(name: str, target: Target, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One row per stage of the drafter's recipe."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(args.tokens_used, (args.tokens,), generator=draw).tolist()
    text = Text("noise", tuple(ids), ((args.tokens - args.supervised, args.tokens),))
    setting = Setting(target.info, token_counts([text], target.info.vocab_size), torch.Generator().manual_seed(0))
    trainee = load_trainee(name, setting, **PLAN[name])
    info = target.info
    data = Data([text], Noise(args.tokens, len(trainee.hidden_layers), info.hidden_size, args.tokens_used))
    stages = len(trainee.phases) * 8 if name == "dlite" else args.steps
    config = TrainConfig(drafter=name, steps=max(args.steps, stages // 2), batch=1, anchors=args.anchors)
    config = config.model_copy(update={"save_every": 10**6, "evaluate_every": 10**6})
    trainer = Trainer(Step(trainee, info), config, data, folder, World())
    rows: dict[str, list[tuple[float, float]]] = {}
    while trainer.done < trainer.total:
        place = trainer.place
        wall, cpu = time.perf_counter(), time.process_time()
        trainer._one_step(place)
        rows.setdefault(place.stage.name, []).append((time.perf_counter() - wall, time.process_time() - cpu))
    parameters = sum(p.numel() for p in trainer.trainee.parameters_of(trainer.phases[-1]))
    return [
        {
            "drafter": name,
            "stage": stage,
            "parameters": parameters,
            "wall_s": round(min(wall for wall, _ in times), 3),
            "cpu_s": round(min(cpu for _, cpu in times), 3),
            "steps": len(times),
        }
        for stage, times in rows.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048, help="length of the text")
    parser.add_argument("--supervised", type=int, default=256)
    parser.add_argument("--tokens-used", type=int, default=40000, help="token ids below this occur")
    parser.add_argument("--anchors", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--drafter", action="append")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = loading.load("smollm2-135m", device="cpu")
    target = Target(loaded.model, name=loaded.name, capacity=64)
    for name in args.drafter or PLAN:
        with tempfile.TemporaryDirectory() as folder:
            for row in measure(name, target, args, Path(folder)):
                print(json.dumps({**row, "anchors": args.anchors, "tokens": args.tokens}), flush=True)


if __name__ == "__main__":
    main()
