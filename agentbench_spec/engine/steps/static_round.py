"""One round whose steps do the same whatever the positions, the tokens and the counts: each can be one CUDA graph.

The target is fed a block of a few widths only, padded; what follows reads the positions that were asked for. What a
look-up guesses is padded on the host, so that its rounds have few shapes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.proposals import CPU, Drafted, proposed
from agentbench_spec.engine.sampling import RowSampler
from agentbench_spec.engine.spans import Asked, Numbers, following, host_span, kept_of, span_of
from agentbench_spec.engine.steps.plain_round import PlainRound, Tokens, accept
from agentbench_spec.engine.steps.static_target import Static, width_for
from agentbench_spec.engine.target import Evaluated, Target
from agentbench_spec.engine.verify import Verdict, sound, to_read

R = TypeVar("R")

LOOK_UPS = "look-ups"
"""Whose steps those of every drafter are that works on the host: they differ in what they guess alone."""


class StaticRound(PlainRound):
    """The steps of one static round of the first B rows."""

    def __init__(self, target: Target, drafter: Drafter, asked: Asked, k: int, sampler: RowSampler) -> None:
        super().__init__(target, drafter, asked, k, sampler)
        assert target.static is not None
        self._static: Static = target.static
        self._key: tuple[Hashable, ...] = ()

    def draft(self) -> None:
        """Ask the drafter: on the host, or as a step. Raises ContractError if its proposal breaks the contract."""
        self.target.check_start(0, self.asked.starts)
        if self.drafter.host_only:
            self._guess()
            return
        look_ahead = getattr(self.drafter, "look_ahead", None)
        more = look_ahead(self.asked.anchors, self.asked.positions, self.k) if look_ahead else ()
        self.feed = self.asked.feed(self.target.info.device, self.k, more, self._static.board)
        path = getattr(self.drafter, "path", None)
        self._key = (id(self.drafter), self.k, self.feed.layout, self.sampler.sampling, path)

        def step(sampler: RowSampler) -> Drafted:
            self.drafter.sampler, self.drafter.carried = sampler, self.feed.more
            return proposed(self.drafter, self.feed, self.k, self.target, values=False)

        self.drafted = self._run("draft", step)

    def _guess(self) -> None:
        self.drafter.sampler = self.sampler
        guess = proposed(self.drafter, self.asked.feed(CPU, self.k), self.k, self.target)
        rows, n = guess.ids.shape
        columns = min(width_for(n + 1) - 1, self.k)
        ids = F.pad(guess.ids, (0, columns - n))
        more = [ids.flatten().tolist(), guess.count.tolist()]
        self.feed = self.asked.feed(self.target.info.device, self.k, more, self._static.board)
        there, count = self.feed.more
        probs = None if guess.probs is None else F.pad(guess.probs, (0, 0, 0, columns - n)).to(there.device)
        self._key = (LOOK_UPS, self.k, self.feed.layout, self.sampler.sampling)
        self.drafted = Drafted(there.view(rows, columns), probs, count, guess.source)

    def verify(self) -> None:
        """Run anchors and drafts through the target."""
        taps, n = self.drafter.spec.hidden_layers, self.drafted.ids.shape[1]
        width = width_for(n + 1)
        self.target.cache.end_of(self.asked.starts, width)

        def step(_sampler: RowSampler) -> tuple[Tensor, Evaluated]:
            block = torch.cat([self.feed.anchor[:, None], self.drafted.ids], dim=1)
            padded = F.pad(block, (0, width - n - 1))
            seen = self._static.evaluate(self.target, self.feed.start.on_device, padded, taps)
            states = {layer: state[:, : n + 1] for layer, state in seen.states.items()}
            return block, Evaluated(seen.logits[:, : n + 1], states)

        self.block, self.evaluated = self._run("verify", step)

    def accept(self) -> list[list[int]]:
        """The target's word, row by row: the token after each position fed, then matched, proposed, sound positions."""

        def step(sampler: RowSampler) -> tuple[Verdict, Tensor, Tensor]:
            verdict = accept(self.evaluated.logits, self.drafted, self.feed.record, sampler, self.k)
            next_ids = following(self.drafted.ids, verdict.matched, verdict.next_ids)
            counts = verdict.matched, self.drafted.count, sound(self.evaluated.logits)
            return verdict, next_ids, to_read(next_ids, *counts)

        self.verdict, self.next_ids, outcome = self._run("accept", step)
        return outcome.tolist()

    def observe(self, kept: Sequence[int], tokens: Tokens, after: Tokens) -> None:
        """Tell the drafter what became of it: on the host, or as a step that is not told what the host knows."""
        rows, device = range(len(kept)), self.block.device
        if self.drafter.host_only:
            self.drafter.observe(host_span(rows, self.asked.starts, kept, tokens, after))
            return

        if on_host := getattr(self.drafter, "observe_on_host", None):
            on_host(host_span(rows, self.asked.starts, kept, tokens, after))

        def step(_sampler: RowSampler) -> None:
            count = Numbers(kept, kept_of(self.next_ids, self.verdict.matched, self.feed))
            everyone = Numbers(rows, torch.arange(len(kept), device=device))
            args = everyone, self.feed.start, count, self.block, self.next_ids, self.evaluated
            self.drafter.observe(span_of(self.drafter, *args))

        self._run("observe", step)

    def _run(self, name: str, step: Callable[[RowSampler], R]) -> R:
        return self._static.graphs.run((name, *self._key), step, self.sampler)
