"""Rows of the parity target in the middle of their turns, on a pretended device or on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from agentbench_spec_drafters import hybrid
from pretended import PretendedDevice
from transformers import AutoModelForCausalLM

from agentbench_spec import plugins
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.loop import Turn, step
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler
from agentbench_spec.engine.spans import Board, host_span, span_of, stays_on_host
from agentbench_spec.engine.steps.capturing import capture
from agentbench_spec.engine.steps.graphs import Graphs
from agentbench_spec.engine.steps.recorded import recorded
from agentbench_spec.engine.steps.round_attention import RoundAttention
from agentbench_spec.engine.steps.static_target import Static
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock

DATA = Path(__file__).parent.parent / "parity" / "data"
CPU = torch.device("cpu")
CHECKPOINTS = (
    "dflash", "dflash-spec", "dflash-zlab", "dflash2-spec", "dflash2-zlab", "dlite-g1", "dlite-g2", "dlite-g3",
    "dspark-gated", "dspark-rnn", "dspark-spec", "dspark-vanilla", "eagle3", "pard", "peagle",
)  # fmt: skip
LOOK_UPS = ("none", "ngram", "suffix")
MIXED = "hybrid"
K = 5
MODEL: Any = AutoModelForCausalLM.from_pretrained(DATA / "target", dtype=torch.float32).eval().requires_grad_(False)
"""Loaded here, because loading does not go together with a mode that takes device arguments."""


def made(name: str) -> Drafter:
    """A drafter of the package, over the parity data where it needs a checkpoint."""
    if name == MIXED:
        return hybrid.make([made("suffix"), made("dflash")], min_match=2)
    options = {"checkpoint": DATA / name / "draft"} if name in CHECKPOINTS else {}
    return plugins.load_drafter(name.partition("-")[0], **options)


def forgetting(name: str) -> Drafter:
    """A drafter whose sliding layers forget after some 300 positions."""
    drafter: Any = made(name)
    drafter.behind = 16
    return drafter  # type: ignore[no-any-return]


@dataclass
class Bench:
    """Some rows of the parity target in the middle of their turns."""

    target: Target
    drafter: Drafter
    turns: list[Turn]
    limits: Limits
    sampler: RowSampler

    @classmethod
    def on(
        cls,
        device: PretendedDevice | torch.device | None,
        drafter: Drafter,
        rows: int = 2,
        static: Static | None = None,
        **changes: Any,
    ) -> Bench:
        """device: None for the CPU; changes: of the limits, `sampler`, `forced` (a record each), `prompt` tokens.

        static: of static rounds; they are captured if it has a way to.
        """
        moved = deepcopy(MODEL)
        if device is not None:
            moved = moved.to(device) if isinstance(device, torch.device) else device.moved(moved)
        target = Target(moved, name="golden", capacity=1024, rows=rows, static=static)
        drafter.open(target.info, rows=rows, capacity=1024 + 16)
        sampler, forced = changes.pop("sampler", RowSampler(GREEDY, [])), changes.pop("forced", None)
        length = changes.pop("prompt", 40)
        prompts = [text(row, length + 3 * row) for row in range(rows)]
        limits = Limits(**{"k": K, "max_new_tokens": 900, "stop_ids": frozenset({1, 2}), **changes})
        bench = cls(target, drafter, [], limits, sampler)
        if static is not None and static.graphs.on:
            capture(target, drafter, limits, lambda: sampler, rows=rows, forced=bool(forced))
        for row, prompt in enumerate(prompts):
            bench.begin(row, prompt, forced[row] if forced else None)
        return bench

    def begin(self, row: int, prompt: list[int], record: Sequence[int] | None) -> None:
        """Prefill a row."""
        target, drafter, device = self.target, self.drafter, self.target.info.device
        with torch.inference_mode():
            ids = torch.tensor([prompt], device=device)
            seen = target.evaluate(row, [0], ids, taps=drafter.spec.hidden_layers)
            target.commit(row, len(prompt))
            first = int(seen.logits[0, -1].argmax())
            after = [*prompt[1:], first]
            if stays_on_host(drafter, device) or (target.static is not None and drafter.host_only):
                span = host_span([row], [0], [len(prompt)], [prompt], [after])
            else:
                followers = torch.tensor([after], device=device)
                span = span_of(drafter, [row], [0], [len(prompt)], ids, followers, seen, [prompt])
            drafter.observe(span)
        self.turns.append(Turn(len(prompt), [record[0] if record else first], record))

    def round(self) -> None:
        step(self.target, self.drafter, self.turns, self.limits, self.sampler, Clock(CPU))


def static(device: torch.device = CPU, *, replayed: bool = False) -> Static:
    """Static rounds, launched as they come or replayed from a recording."""
    return Static(RoundAttention("masked"), Graphs(recorded if replayed else None), Board(device))


def text(seed: int, n: int) -> list[int]:
    """A text that repeats itself, for look-ups to find something."""
    part = torch.randint(3, 150, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
    return (part * (n // 12 + 1))[:n]


def outputs(
    device: PretendedDevice | torch.device | None, drafter: Drafter, rounds: int = 6, **changes: Any
) -> list[list[int]]:
    bench = Bench.on(device, drafter, **changes)
    for _ in range(rounds):
        bench.round()
    return [turn.output for turn in bench.turns]
