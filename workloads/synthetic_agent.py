"""Workload `synthetic_agent`: generated sessions of a tool-using agent whose calls are really carried out.

Origin: this repository (workloads/synthetic); licence MIT; nothing is taken from anywhere. An agent that follows a
script works on a file system, a key-value store and an SQL database, all in memory: it searches, reads, edits, counts
and notes, and each step uses what the call before it returned.
Size: as asked for: turns, length of results, share of repeated reads, total context from 1K to 1M tokens.
The paper does not use it. It is for scaling studies and tests; acceptance lengths on it say nothing about real agents,
whose texts vary more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agentbench_spec.rollout import ConfigError, Rollout, TokenCounter, Workload

from .synthetic.scripted_agent import Shape, build_session, characters
from .token_window import counter_for, cut_to_window

__all__ = ["SyntheticAgent", "make"]

_SAMPLE_CHARACTERS = 40_000


def make(
    *,
    sessions: int = 10,
    turns: int | None = None,
    observation_characters: int = 1200,
    repetition: float = 0.2,
    context_characters: int | None = None,
    context_tokens: int | None = None,
    tokenizer: TokenCounter | None = None,
    reserve_tokens: int = 0,
) -> Workload:
    """Generated agent sessions.

    turns: decode points (default: 20, or as many as the context takes). observation_characters: mean length of a long
    tool result; with turns and a context, the context decides. repetition: share of file reads that repeat one.
    context_characters, or context_tokens with `tokenizer` (counts as the target does): the session fills this
    context and does not exceed it. reserve_tokens: left free in it for the output.

    Raises ConfigError if an option is out of range, or tokens are asked for without a tokenizer.
    """
    if sessions < 1:
        raise ConfigError(f"sessions: expected 1 or more, found {sessions}")
    if context_characters is not None and context_tokens is not None:
        raise ConfigError("context_characters and context_tokens exclude each other: give one")
    if turns is None and context_characters is None and context_tokens is None:
        turns = 20
    given = context_characters if context_tokens is None else _SAMPLE_CHARACTERS
    shape = Shape(turns, observation_characters, repetition, given)
    if context_tokens is None:
        return SyntheticAgent(shape, sessions)
    counter = counter_for(tokenizer, "context_tokens")
    return SyntheticAgent(shape, sessions, context_tokens=context_tokens, reserve_tokens=reserve_tokens, count=counter)


class SyntheticAgent:
    """Sessions of one shape."""

    name = "synthetic_agent"

    def __init__(
        self,
        shape: Shape,
        sessions: int,
        *,
        context_tokens: int | None = None,
        reserve_tokens: int = 0,
        count: TokenCounter | None = None,
    ) -> None:
        self.shape, self.sessions = shape, sessions
        self._tokens, self._reserve, self._count = context_tokens, reserve_tokens, count

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterator[Rollout]:
        """The sessions; a smaller limit gives the first ones of a larger."""
        if limit is not None and limit < 0:
            raise ConfigError(f"limit: expected 0 or more, found {limit}")
        shape = self._in_characters(seed)
        for number in range(self.sessions if limit is None else min(limit, self.sessions)):
            yield self._one(shape, number, seed)

    def _one(self, shape: Shape, number: int, seed: int) -> Rollout:
        made = _session(shape, f"synthetic-{seed}-{number:04d}", seed)
        if self._tokens is None or self._count is None:
            return made
        fitted = cut_to_window(made, self._count.prompt, window_tokens=self._tokens, reserve_tokens=self._reserve)
        if fitted is None:
            raise ConfigError(f"context_tokens: {self._tokens} are too few for the tool list and one request")
        return fitted

    def _in_characters(self, seed: int) -> Shape:
        """The shape with its context in characters, a tenth too long, from a sample that is counted."""
        if self._tokens is None or self._count is None:
            return self.shape
        sample = _session(replace(self.shape, turns=None), f"sample-{seed}", seed)
        last = sample.decode_points()[-1]
        ratio = characters(sample) / self._count.prompt(sample, last)
        return replace(self.shape, context_characters=max(3_000, int(self._tokens * ratio * 1.1)))


def _session(shape: Shape, name: str, seed: int) -> Rollout:
    return build_session(shape, name=name, workload=SyntheticAgent.name, seed=seed, source={"name": "synthetic_agent"})
