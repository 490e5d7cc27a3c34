"""Stand-ins: generated rollouts of the shape a workload has, for machines that cannot have its data.

A stand-in measures the harness and the growth of a context; it says nothing about the workload it stands in for. So
its name, ids, labels, source and notes all say what it is, and it is made only when asked for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from agentbench_spec.rollout import ConfigError, Message, Rollout

from ..row_workload import unrecorded
from .scripted_agent import Shape, build_session
from .words import document, sentence

__all__ = ["Prompts", "StandIn", "stand_in"]


@dataclass(frozen=True, slots=True)
class Prompts:
    """The size of rollouts that are one user's questions, not an agent's work."""

    characters: int
    """Length of the first question, the document it is about included."""
    turns: int = 1


_SESSIONS = 50
_SHAPES: dict[str, Shape | Prompts] = {
    "bfcl_v3": Shape(turns=10, observation_characters=120),
    "swe_bench": Shape(turns=30, context_characters=200_000, repetition=0.3),
    "swe_bench_prompt": Prompts(200_000),
    "agent_long_bench": Shape(turns=120, context_characters=200_000, repetition=0.1),
    "agent_memory_bench": Shape(turns=8, observation_characters=600),
    "coding_sessions": Shape(turns=40, context_characters=250_000, repetition=0.4),
    "longbench_v2": Prompts(180_000),
    "gsm8k": Prompts(280),
    "math500": Prompts(250),
    "humaneval": Prompts(500),
    "mbpp": Prompts(80),
    "livecodebench": Prompts(2000),
    "mt_bench": Prompts(200, turns=2),
    "alpaca": Prompts(80),
}
"""Sizes of the real data, in round numbers (docs/workloads.md)."""


class StandIn:
    """Generated rollouts in the place of `workload`."""

    def __init__(self, workload: str, shape: Shape | Prompts | None = None) -> None:
        """shape: None for the workload's. Raises ConfigError if the workload has none."""
        if shape is None and workload not in _SHAPES:
            raise ConfigError(f"offline_standin: there is none for {workload!r}; known: {', '.join(_SHAPES)}")
        self.workload = workload
        self.name = f"{workload}-standin"
        self.shape = shape or _SHAPES[workload]

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterator[Rollout]:
        """Fifty rollouts, or the first `limit` of an endless row."""
        if limit is not None and limit < 0:
            raise ConfigError(f"limit: expected 0 or more, found {limit}")
        yield from (self._one(number, seed) for number in islice(count(), _SESSIONS if limit is None else limit))

    def _one(self, number: int, seed: int) -> Rollout:
        name = f"{self.name}-{number:04d}"
        source = {"name": "synthetic", "stands_in_for": self.workload, "seed": seed}
        if isinstance(self.shape, Shape):
            made = build_session(self.shape, name=name, workload=self.name, seed=seed, source=source)
        else:
            made = _prompts(self.shape, name=name, workload=self.name, seed=seed, source=source)
        note = f"offline stand-in: generated in the shape of {self.workload}; holds none of its data"
        return made.model_copy(
            update={
                "labels": {**made.labels, "category": "standin", "standin": True, "stands_in_for": self.workload},
                "notes": (note, *made.notes),
            }
        )


def stand_in(workload: str) -> StandIn:
    """The stand-in of a workload, by its name."""
    return StandIn(workload)


def _prompts(shape: Prompts, *, name: str, workload: str, seed: int, source: dict[str, object]) -> Rollout:
    draw = random.Random(f"{seed}:{name}")
    messages: list[Message] = []
    for turn in range(shape.turns):
        about = document(draw, shape.characters if turn == 0 else 80)
        messages += (Message(role="user", content=f"{about}\n\nIs it true? {sentence(draw)}"), unrecorded())
    return Rollout(id=name, workload=workload, source=source, messages=tuple(messages), labels={"synthetic": True})
